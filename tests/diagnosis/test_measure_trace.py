"""The pass over images: nothing silent, nothing changed, any precision, and memory that does not grow."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnosis.test_measure import (
    COUNT,
    EVERY,
    HOSTS,
    PAIRS,
    SHAPED,
    STREAMED,
    TREATED,
    agree,
    build,
    images_for,
    in_batches,
    in_one_batch,
    measure_on,
    some_labels,
)
from tests.diagnosis.test_probe import traces_left
from tests.support.small_hosts import ALL, CONVMIXER
from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis import measure as measure_module
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis.measure import Measurements, measure, singular_values
from unsmooth.diagnosis.moments import Moments
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import batch_inputs, first_tensor, run
from unsmooth.surgery.plan import anatomy_of

# Nothing is silent


@pytest.mark.parametrize(
    ("name", "case"), [*((name, "") for name in (*ALL, CONVMIXER)), *TREATED, ("cait", "attn_scale")]
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_block_has_a_value_or_a_reason(name: str, case: str, count: int) -> None:
    model = build(name, case, torch.float32)
    actual = measure_on(model, [NamedImages(images_for(model, count), some_labels(count))])
    assert actual.images == count and actual.broken is None
    for vital in EVERY:
        series = actual.values[vital.key].get(vital.main, [None] * actual.blocks)
        for i in range(actual.blocks):
            value, reason = series[i], actual.skipped[vital.key].get(i, "")
            assert (value is None) == bool(reason.strip()), f"{vital.key} of block {i}: {value}, {reason!r}"
            assert value is None or math.isfinite(value.mean), f"{vital.key} of block {i}"
    for key in ("token_cosine", "effective_rank", "high_frequency_ratio", "diversity"):
        assert not actual.skipped[key]


@pytest.mark.parametrize("branch", ["attn", "mlp"])
@pytest.mark.parametrize("name", HOSTS)
def test_the_first_thing_that_breaks_is_named(name: str, branch: str) -> None:
    model = build(name, dtype=torch.float32)
    anatomy = anatomy_of(model)
    weight = getattr(anatomy.blocks[1], branch).linears[0].weight
    model.get_parameter(weight).data[0, 0] = float("nan")
    # With fewer keys than a vector register holds, torch's kernel makes zeros of NaN: 160 pixels give PVT 25.
    measured = measure(model, anatomy, in_batches(images_for(model, 5, 160), 4, some_labels(5)), EVERY)
    assert measured.broken == (1, {"attn": "attention branch", "mlp": "MLP branch"}[branch])
    whole = in_one_batch(name, "")
    for vital in EVERY:
        series = measured.values[vital.key].get(vital.main, [None] * measured.blocks)
        there = whole.values[vital.key].get(vital.main, [None] * measured.blocks)[0]
        if vital.key != "similar_blocks":  # which needs another block with maps
            assert (series[0] is None) == (there is None), vital.key
        for i in range(measured.blocks):
            assert (series[i] is None) == bool(measured.skipped[vital.key].get(i)), vital.key
            assert series[i] is None or np.isfinite(series[i].mean).all()
    assert measured.values["token_cosine"][""][1:] == [None] * (measured.blocks - 1)
    assert "NaN" in measured.skipped["token_cosine"][1]


def test_an_image_that_is_not_finite_does_not_take_others_along() -> None:
    model = build("deit")
    images = images_for(model, 6)
    spoilt = images.clone()
    spoilt[2] = float("nan")
    chosen = [vital for vital in STREAMED if vital.key != "depth_probe"]
    requested = [vital.key for vital in chosen]  # samples that hold all six images
    others = measure_on(model, [NamedImages(images[[0, 1, 3, 4, 5]])], chosen, requested=requested)
    for size in (1, 3, 6):
        actual = measure_on(model, in_batches(spoilt, size), chosen, requested=requested)
        assert actual.broken is not None and actual.broken[0] == 0
        agree(actual, others, chosen)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_labels_stay_with_their_images_when_one_is_not_finite(size: int) -> None:
    model = build("deit")
    a, b = images_for(model, 2)
    noise = 0.01 * torch.randn(6, *a.shape, generator=torch.Generator().manual_seed(2))
    pictures = torch.stack([torch.full_like(a, float("nan")), a, a, a, a, b, b, b])
    pictures[2:] += noise
    labels = torch.tensor([1, 0, 0, 0, 0, 1, 1, 1])
    actual = measure_on(model, in_batches(pictures, size, labels), vitals.select("depth_probe"))
    series = actual.values["depth_probe"].get("", [None, None])
    for i in (0, 1):  # neighbours are near copies, so every label is guessed
        assert series[i] is None or series[i].mean == 1.0
    if size == 1:
        assert series[0] is not None


def test_labels_that_are_no_classes_are_a_reason_and_not_a_crash() -> None:
    model = build("deit")
    labels = torch.tensor([0.5, 1.5, 2.5, 0.5, 1.5])
    actual = measure_on(model, [NamedImages(images_for(model, 5), labels)], vitals.select("depth_probe"))
    assert len(actual.values["depth_probe"].get("", [])) == 2 or "label" in actual.skipped["depth_probe"][0]


# Nothing changes


def everything_of(model: nn.Module, images: Tensor) -> tuple[Any, ...]:
    with torch.no_grad():
        logits = first_tensor(run(model, batch_inputs(model, images)))
    states = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    return logits, states, weights, traces_left(model), [p.grad for p in model.parameters()]


def assert_unchanged(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    assert torch.equal(before[0], after[0]), "logits"
    assert torch.equal(before[1][0], after[1][0]) and before[1][1:] == after[1][1:], "random state"
    assert before[2].keys() == after[2].keys() and all(torch.equal(before[2][k], after[2][k]) for k in before[2])
    assert before[3:] == after[3:], "hooks, flags, classes, gradients"


class Trouble(Exception):
    pass


def trouble(*_: Any) -> Any:
    raise Trouble


FAILING = ("token_cosine", "attention_entropy", "branch_ratio", "block_influence", "equivalent_rank", "layer_cka")


@pytest.mark.parametrize(
    ("name", "case", "failing"),
    [*((n, c, "") for n, c in PAIRS), *((n, c, f) for n, c in (("deit", "attn_scale"), ("swin", "")) for f in FAILING)],
)
def test_a_look_changes_nothing(name: str, case: str, failing: str) -> None:
    model = build(name, case, torch.float32)
    model.get_submodule(anatomy_of(model).blocks[0].name).training = True  # an odd flag that must survive
    images = images_for(model, 5)
    before = everything_of(model, images)
    chosen = [dataclasses.replace(v, measure=trouble) if v.key == failing else v for v in EVERY]
    if failing:
        with pytest.raises(Trouble):
            measure_on(model, [NamedImages(images)], chosen)
    else:
        measure_on(model, [NamedImages(images)], chosen)
    assert_unchanged(before, everything_of(model, images))


def test_images_are_not_written_on() -> None:
    model = build("deit", dtype=torch.float32)
    images = images_for(model, 5)
    copy = images.clone()
    measure_on(model, [NamedImages(images)])
    assert torch.equal(images, copy)


def test_a_look_inside_inference_mode() -> None:
    model, images = build("deit"), images_for(build("deit"), 5)
    wanted = measure_on(model, [NamedImages(images)])
    with torch.inference_mode():
        actual = measure_on(model, [NamedImages(images)])
    agree(actual, wanted, EVERY)


# Precision and kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["deit", "swin", "hf_vit", "torchvision_vit", "pvt_v2"])
def test_hosts_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype=dtype)
    actual, exact = (
        measure_on(model, [NamedImages(images_for(model, COUNT), some_labels(COUNT))]),
        in_one_batch(name, ""),
    )
    assert actual.broken is None and actual.skipped == exact.skipped
    for key in ("token_cosine", "high_frequency_ratio", "effective_rank", "attention_entropy", "branch_ratio"):
        for mine, real in zip(*(m.values[key][vitals.get(key).main] for m in (actual, exact)), strict=True):
            assert mine.mean == pytest.approx(real.mean, rel=0.1), key
            assert mine.images == real.images


def test_large_sums_in_half_precision_are_not_taken_for_infinity() -> None:
    """float16 ends at 65,504: every token is far below, their sum is not."""
    model = build("deit", dtype=torch.float32)
    model.pos_embed.data += 100
    images = images_for(model, 5)
    exact, actual = measure_on(model, [NamedImages(images)]), measure_on(model.half(), [NamedImages(images)])
    assert actual.broken is None and actual.skipped == exact.skipped


EXPLICIT: dict[str, Callable[[nn.Module], Any]] = {
    "deit": lambda model: [setattr(block.attn, "fused_attn", False) for block in model.blocks],
    "dinov2_registers": lambda model: [setattr(block.attn, "fused_attn", False) for block in model.blocks],
    "pvt_v2": lambda model: [setattr(m, "fused_attn", False) for m in model.modules() if hasattr(m, "fused_attn")],
    "hf_vit": lambda model: model.set_attn_implementation("eager"),
    "hf_swin": lambda model: model.set_attn_implementation("eager"),
    "swin": lambda model: [setattr(m, "fused_attn", False) for m in model.modules() if hasattr(m, "fused_attn")],
}


def both_kernels(name: str) -> tuple[Measurements, Measurements]:
    fused, explicit = build(name), build(name)
    for module in fused.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    EXPLICIT[name](explicit)
    for model, via in ((fused, "sdpa"), (explicit, "softmax")):
        assert {a.via for block in anatomy_of(model).blocks for a in block.attentions} == {via}
    images = images_for(fused, 5)
    return measure_on(fused, [NamedImages(images)], SHAPED), measure_on(explicit, [NamedImages(images)], SHAPED)


@pytest.mark.parametrize("name", EXPLICIT)
def test_fused_and_explicit_kernels_give_the_same_maps(name: str) -> None:
    fused, explicit = both_kernels(name)
    agree(fused, explicit, [vital for vital in SHAPED if vital.key != "max_logit"])
    if "swin" not in name:  # whose bias for positions is inside the explicit logits only
        agree(fused, explicit, [vitals.get("max_logit")])


@pytest.mark.parametrize("name", ["swin", "hf_swin"])
def test_a_mask_is_no_logit(name: str) -> None:
    """Shifted windows add -100 to pairs that must not meet; the largest logit is that of the others."""
    fused, explicit = both_kernels(name)
    for mine, real in zip(*(m.values["max_logit"][""] for m in (explicit, fused)), strict=True):
        assert mine.mean == pytest.approx(real.mean, rel=0.5)  # but for the bias of positions


class Writer(nn.Module):
    """A block that writes over its input, or does not."""

    def __init__(self, over: bool) -> None:
        super().__init__()
        self.over, self.qkv, self.proj = over, nn.Linear(12, 36), nn.Linear(12, 12)
        self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.attn = nn.ModuleDict({"qkv": self.qkv, "proj": self.proj})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        f = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x.add_(f) if self.over else x + f
        f = self.mlp(x)
        return x.add_(f) if self.over else x + f


class Host(nn.Module):
    def __init__(self, over: bool) -> None:
        super().__init__()
        self.image_size = 32
        self.patch_embed = nn.Conv2d(3, 12, 8, 8)
        self.blocks = nn.Sequential(Writer(over), Writer(over), Writer(over))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.patch_embed(x).flatten(2).mT.contiguous()).mean(1)


def test_a_host_that_writes_over_its_tokens() -> None:
    torch.manual_seed(0)
    plain = Host(False).eval()
    writer = Host(True).eval()
    writer.load_state_dict(plain.state_dict())
    images = images_for(plain, 5)
    chosen = [vital for vital in EVERY if vital.key != "depth_probe"]
    wanted, actual = (
        measure_on(plain, [NamedImages(images)], chosen),
        measure_on(writer, [NamedImages(images)], chosen),
    )
    assert not wanted.skipped["high_frequency_gain"]
    agree(actual, wanted, chosen)


# Numbers and memory


@pytest.mark.parametrize("shape", [(2, 17, 48), (3, 30, 6), (1, 1, 5)], ids=str)
def test_singular_values(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(singular_values(x), np.linalg.svd(x.double().numpy(), compute_uv=False), rtol=1e-6)


def test_moments_leave_out_what_is_not_finite() -> None:
    values = torch.tensor([[1.0, math.nan], [3.0, math.inf], [math.nan, math.nan], [8.0, -math.inf]])
    for parts in (values.split(4), values.split(1), values.split(3)):
        moments = Moments()
        for part in parts:
            moments.add(part)
        spread = moments.spread()
        assert spread is not None and spread.images == 3
        assert spread.mean[0] == pytest.approx(4) and spread.sd[0] == pytest.approx(math.sqrt(13))
        assert (spread.low[0], spread.high[0]) == (1, 8)
        assert all(v[1] is None for v in (spread.mean, spread.sd, spread.low, spread.high))
        assert spread.rounded().mean == [4.0, None]
    assert Moments().spread() is None
    alone = Moments()
    alone.add(torch.tensor([2.0]))
    assert alone.spread().mean == 2 and alone.spread().sd is None


def bytes_held(thing: Any, met: set[int]) -> int:
    """Bytes of all tensors that can be reached from here, models and anatomies aside."""
    if id(thing) in met or isinstance(thing, Anatomy | nn.Module):
        return 0
    met.add(id(thing))
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        if storage.data_ptr() in met:
            return 0
        met.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(thing, dict):
        return sum(bytes_held(value, met) for value in thing.values())
    if isinstance(thing, list | tuple | set):
        return sum(bytes_held(value, met) for value in thing)
    return bytes_held(vars(thing), met) if hasattr(thing, "__dict__") and not isinstance(thing, type) else 0


@pytest.mark.parametrize("name", ["deit", "swin", "pvt_v2"])
def test_what_is_held_does_not_grow_with_the_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each batch; the depth probe, which keeps a vector of each image and says so, is left out."""
    model, held = build(name, dtype=torch.float32), []

    class Watched(measure_module._Pass):
        def end_batch(self, batch: NamedImages) -> None:
            super().end_batch(batch)
            held.append(bytes_held(self, set()))

    monkeypatch.setattr(measure_module, "_Pass", Watched)
    chosen = [vital for vital in EVERY if vital.key != "depth_probe"]
    measure_on(model, in_batches(images_for(model, 24), 4), chosen)
    assert len(held) == 6
    assert held[0] == held[1] == held[-1] > 0
