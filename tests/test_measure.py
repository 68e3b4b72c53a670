"""The pass over images: the same numbers as a naive look at everything at once, in any batches, and no trace left."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.small_hosts import ALL, CONVMIXER, host, treat
from tests.test_probe import traces_left
from unsmooth import measure as measure_module
from unsmooth import vitals
from unsmooth.anatomy import Anatomy
from unsmooth.feeding import Batch, example
from unsmooth.hosts import image_size, run
from unsmooth.measure import Measurements, measure, singular_values
from unsmooth.moments import Moments, Spread
from unsmooth.places import distances
from unsmooth.planning import anatomy_of
from unsmooth.trace import first_tensor

# For each host: the modules whose output a residual sum adds, attention's and MLP's, and which of their runs in a
# block it is; how many tokens stand in front of the patches; the grid of patches at each block.
HOSTS: dict[str, tuple[tuple[tuple[str, int], tuple[str, int]], int, tuple[int, ...]]] = {
    "deit": ((("drop_path1", 0), ("drop_path2", 0)), 1, (4, 4)),
    "dinov2_registers": ((("drop_path1", 0), ("drop_path2", 0)), 5, (4, 4)),
    "cait": ((("drop_path", 0), ("drop_path", 1)), 0, (4, 4)),
    "swin": ((("drop_path1", 0), ("drop_path2", 0)), 0, (14, 14, 7)),
    "pvt_v2": ((("drop_path1", 0), ("drop_path2", 0)), 0, (16, 8, 4, 2)),
    "hf_vit": ((("dropout", 0), ("dropout", 1)), 1, (4, 4)),
    "hf_swin": ((("drop_path", 0), ("dropout", 1)), 0, (14, 14, 7)),
    "torchvision_vit": ((("dropout", 0), ("mlp", 0)), 1, (4, 4)),
    "torchvision_swin": ((("stochastic_depth", 0), ("stochastic_depth", 1)), 0, (14, 14, 7)),
}
TREATED = (("deit", "attn_scale"), ("deit", "no_skip"), ("deit", "no_skip(branch=both)"), ("swin", "feat_scale"))
PAIRS = [*((name, "") for name in HOSTS), *TREATED]
SIZES = dict.fromkeys(("deit", "swin", "cait"), (1, 3, 5))  # of batches; three alone for other hosts
COUNT = 10  # images: more than the vitals that decompose maps look at
EVERY = [vital for vital in vitals.select("all") if vital.of != "model"]  # which no pass measures
STREAMED = [vital for vital in EVERY if vital.key != "layer_cka"]  # which is defined by its batches
SHAPED = [vital for vital in EVERY if vital.accepts]  # of maps


def build(name: str, case: str = "", dtype: torch.dtype = torch.float64) -> nn.Module:
    model = host(name).to(dtype)
    return treat(model, case) if case else model


def images_for(model: nn.Module, count: int, large: int = 64) -> Tensor:
    channels, height, width = image_size(model)
    side = (large, large) if height > 56 else (height, width)  # convolutional hosts take any size
    return torch.randn(count, channels, *side, generator=torch.Generator().manual_seed(1))


def in_batches(images: Tensor, size: int, labels: Tensor | None = None) -> list[Batch]:
    marks = [None] * len(images.split(size)) if labels is None else labels.split(size)
    return [Batch(x, y) for x, y in zip(images.split(size), marks, strict=True)]


def some_labels(count: int) -> Tensor:
    return torch.arange(count) % 3


def look(model: nn.Module, batches: list[Batch], chosen: Any = EVERY, **options: Any) -> Measurements:
    return measure(model, anatomy_of(model), batches, chosen, **options)


# A naive look: everything is kept, with hooks and patched functions alone


@dataclasses.dataclass
class Seen:
    before: Tensor
    after: Tensor
    branches: dict[str, tuple[Tensor, Tensor, Tensor]]  # stream, what the branch adds, sum
    scores: Tensor
    maps: Tensor  # by image, window, head


@contextmanager
def maps_caught(model: nn.Module, name: str) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Scores without a mask, and maps, in the order of the blocks."""
    caught: list[tuple[Tensor, Tensor]] = []
    handles: list[Any] = []
    patch = pytest.MonkeyPatch()

    def explicit(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, *_: Any, **options: Any) -> Tensor:
        scores = q @ k.mT * (options.get("scale") or q.shape[-1] ** -0.5)
        caught.append((scores, (scores if attn_mask is None else scores + attn_mask).softmax(-1)))
        return caught[-1][1] @ v

    def of_qkv(module: nn.Module, args: Any, out: Tensor) -> None:
        q, k, _ = out.unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        a = scores.softmax(-1)
        omega = next((p for n, p in model.named_parameters() if n.endswith("omega") and f".{len(caught)}." in n), None)
        if omega is not None:
            a = 1 / a.shape[-1] + (1 + omega.view(-1, 1, 1)) * (a - 1 / a.shape[-1])
        caught.append((scores, a))

    softmax = F.softmax
    if name == "deit":
        handles += [block.attn.qkv.register_forward_hook(of_qkv) for block in model.blocks]
    elif name == "cait":
        scores: list[Tensor] = []
        for block in model.blocks:
            own = block.attn
            handles.append(own.proj_l.register_forward_hook(lambda m, a, out: scores.append(out.permute(0, 3, 1, 2))))
            handles.append(own.attn_drop.register_forward_pre_hook(lambda m, a: caught.append((scores[-1], a[0]))))
    elif name == "swin":
        for module in model.modules():
            if isinstance(module, nn.Softmax):
                handles.append(module.register_forward_hook(lambda m, a, out: caught.append((a[0], out))))
    elif name == "torchvision_swin":

        def noted(x: Tensor, dim: int) -> Tensor:
            caught.append((x, softmax(x, dim)))
            return caught[-1][1]

        patch.setattr(F, "softmax", noted)
    else:
        patch.setattr(F, "scaled_dot_product_attention", explicit)
        # torch would run the whole of multi-head attention as one kernel where nothing has a gradient
        patch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    try:
        yield caught
    finally:
        patch.undo()
        for handle in handles:
            handle.remove()


@torch.no_grad()
def naive(model: nn.Module, name: str, case: str, images: Tensor) -> list[Seen]:
    blocks = anatomy_of(model).blocks
    taken: dict[tuple[int, str], list[Tensor]] = {}

    def keep(key: tuple[int, str]) -> Callable[..., None]:
        return lambda module, args, out: taken.setdefault(key, []).append(first_tensor(out))

    handles = []
    for i, block in enumerate(blocks):
        module = model.get_submodule(block.name)
        handles.append(module.register_forward_pre_hook(lambda m, args, kwargs, i=i: taken.setdefault(
            (i, "in"), []).append(first_tensor((args, kwargs))), with_kwargs=True))  # fmt: skip
        handles.append(module.register_forward_hook(keep((i, "out"))))
        for part in {part for part, _ in HOSTS[name][0]}:
            handles.append(module.get_submodule(part).register_forward_hook(keep((i, part))))
    with maps_caught(model, name) as caught:
        run(model, example(model, images))
    for handle in handles:
        handle.remove()
    found = []
    for i in range(len(blocks)):
        flat = {k: [t.flatten(1, -2) for t in v] for (j, k), v in taken.items() if j == i}
        x, branches = flat["in"][0], {}
        for which, (part, time) in zip(("attn", "mlp"), HOSTS[name][0], strict=True):
            f = flat[part][time]
            lost = "no_skip" in case and (which == "attn" or "both" in case)
            out = f if lost else x + f
            branches[which] = (x, f, out)
            x = out
        torch.testing.assert_close(x, flat["out"][0])
        by_image = [t.unflatten(0, (len(images), -1)) for t in caught[i]]
        found.append(Seen(flat["in"][0], flat["out"][0], branches, *by_image))
    return found


def named(found: Any) -> dict[str, Tensor]:
    return found if isinstance(found, dict) else {"": found}


def wanted_values(vital: Any, seen: list[Seen], name: str, prefix: bool, size: Any) -> dict[tuple[str, int], Tensor]:
    """By part and block, a number for each image, from the vital's function on all of them at once."""
    front, out = HOSTS[name][1], {}
    start = 0 if prefix else front
    few = slice(None, vital.sample)
    for i, block in enumerate(seen):
        x, before, first = (t[few, start:] for t in (block.after, block.before, seen[0].before))
        side = HOSTS[name][2][i]
        given: dict[str, tuple[Tensor, ...]] = {}  # by the name of the site
        if vital.of == "tokens":
            given[""] = (x,)
        elif vital.of == "growth" and x.shape == first.shape:
            given[""] = (x, first)
        elif vital.of == "change":
            given[""] = (before, x)
        elif vital.of == "branches":
            given = {which: (a[few, start:], f[few, start:]) for which, (a, f, _) in block.branches.items()}
        elif vital.of == "grid":
            given[""] = (block.after[few, front:].unflatten(1, (side, side)),)
        elif vital.of == "singular":
            inner = {w: f for w, (_, f, _) in block.branches.items()}
            inner |= {f"{w}+skip": s for w, (_, _, s) in block.branches.items()}
            sites = {"": x} | {site: t[: vital.site_sample, start:] for site, t in inner.items()}
            given = {site: (torch.linalg.svdvals(t),) for site, t in sites.items() if site in vital.sites}
        for site, tensors in given.items():
            for part, values in named(vital.measure(*tensors)).items():
                out[".".join(filter(None, (site, part))), i] = values
        if vital.of in ("map", "scores", "map_singular", "map_grid"):
            a = (block.scores if vital.of == "scores" else block.maps)[few]
            square, windowed = a.shape[-1] == a.shape[-2], a.shape[1] > 1
            kind = "windowed" if windowed else "global" if square else "pooled-kv"
            if kind not in vital.accepts:
                continue
            flat = a.flatten(0, 1)
            arguments: tuple[Tensor, ...] = (flat,)
            if vital.of == "map_singular":
                arguments = (torch.linalg.svdvals(flat),)
            elif vital.of == "map_grid":
                arguments = (flat[..., front:, front:], distances((side, side), size))
            for part, values in named(vital.measure(*arguments)).items():
                heads = values.unflatten(0, a.shape[:2]).mean(1)
                if heads.ndim == 2:
                    out[part, i], out[f"{part}.heads".lstrip("."), i] = heads.mean(1), heads
                else:
                    out[part, i] = heads
    return out


def check_spread(found: Spread, values: Tensor, where: str) -> None:
    n = values.double().numpy()
    assert found.images == len(n), where
    for mine, real in ((found.mean, n.mean(0)), (found.sd, n.std(0, ddof=1)), (found.low, n.min(0)),
                       (found.high, n.max(0))):  # fmt: skip
        np.testing.assert_allclose(mine, real, rtol=1e-5, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("prefix", [True, False], ids=["with prefix", "without prefix"])
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_the_pass_is_a_naive_look_at_everything(name: str, case: str, prefix: bool) -> None:
    model = build(name, case)
    images = images_for(model, 18 if name == "deit" else COUNT)
    labels = some_labels(len(images))
    seen = naive(model, name, case, images)
    found = look(model, [Batch(images, labels)], prefix=prefix)
    assert (found.images, found.blocks, found.broken) == (len(images), len(seen), None)
    for vital in EVERY:
        series = found.values[vital.key]
        if vital.of != "blocks":
            wanted = wanted_values(vital, seen, name, prefix, images.shape[-2:])
            assert {(p, i) for p, s in series.items() for i, v in enumerate(s) if v is not None} == wanted.keys()
            for (part, i), values in wanted.items():
                check_spread(series[part][i], values, f"{vital.key} {part} of block {i}")
            continue
        collector = vital.measure()
        for i, block in enumerate(seen):
            start = 0 if prefix else HOSTS[name][1]
            collector.tokens(i, block.after[: vital.sample, start:], prefix and HOSTS[name][1] > 0)
            if vital.accepts:
                collector.map(i, block.maps[: vital.sample].mean(1))
        for i, parts in collector.end_of_batch(labels).items():
            for part, values in parts.items():
                check_spread(series[part][i], values, f"{vital.key} {part} of block {i}")
        for i, parts in collector.final().items():
            for part, value in parts.items():
                np.testing.assert_allclose(series[part][i].mean, value, rtol=1e-6, err_msg=vital.key)


def same(a: Any, b: Any, where: str) -> None:
    assert (a is None) == (b is None), where
    if a is not None:
        assert a.images == b.images, where
        for which in ("mean", "sd", "low", "high"):
            one, other = (np.array(getattr(s, which), dtype=float) for s in (a, b))
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=f"{where} {which}")


def agree(a: Measurements, b: Measurements, chosen: Any, blocks: Any = None) -> None:
    for vital in chosen:
        assert a.values[vital.key].keys() == b.values[vital.key].keys()
        for part, series in a.values[vital.key].items():
            for i in range(a.blocks) if blocks is None else blocks:
                same(series[i], b.values[vital.key][part][i], f"{vital.key} {part} of block {i}")


@cache
def in_one_batch(name: str, case: str) -> Measurements:
    model = build(name, case)
    return look(model, [Batch(images_for(model, COUNT), some_labels(COUNT))])


@pytest.mark.parametrize(("name", "case", "size"), [(n, c, s) for n, c in PAIRS for s in SIZES.get(n, (3,))])
def test_the_size_of_the_batches_does_not_matter(name: str, case: str, size: int) -> None:
    """For all but CKA, which is an estimate from minibatches and needs four images in each."""
    model, told = build(name, case), []
    found = look(model, in_batches(images_for(model, COUNT), size, some_labels(COUNT)), STREAMED, progress=told.append)
    whole = in_one_batch(name, case)
    assert told == [size] * (COUNT // size) + [COUNT % size] * (COUNT % size > 0)
    assert found.images == whole.images == COUNT
    agree(found, whole, STREAMED)
    assert all(found.skipped[vital.key] == whole.skipped[vital.key] for vital in STREAMED)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 2], [2]], ids=str)
def test_some_blocks_have_the_values_that_they_have_among_all(chosen: list[int]) -> None:
    name = "swin"
    model = build(name)
    found, whole = (
        look(model, [Batch(images_for(model, COUNT), some_labels(COUNT))], blocks=chosen),
        in_one_batch(name, ""),
    )
    alone = [vital for vital in EVERY if vital.of != "blocks" or vital.key == "depth_probe"]
    for vital in alone:
        for part, series in found.values[vital.key].items():
            assert [i for i, value in enumerate(series) if value is not None] == [
                i for i in chosen if whole.values[vital.key][part][i] is not None
            ]
            for i in chosen:
                same(series[i], whole.values[vital.key][part][i], f"{vital.key} {part} of block {i}")
    assert all(set(reasons) <= set(chosen) for reasons in found.skipped.values())
    # "The block before" is that, whoever else was looked at; where it was not, there is a reason and no number.
    for key, part in (("layer_cka", ""), ("similar_blocks", "previous")):
        for i in chosen:
            value = found.values[key].get(part, [None] * 3)[i]
            if value is not None:
                same(value, whole.values[key][part][i], f"{key} of block {i} with {chosen}")


# Nothing is silent


@pytest.mark.parametrize(
    ("name", "case"), [*((name, "") for name in (*ALL, CONVMIXER)), *TREATED, ("cait", "attn_scale")]
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_block_has_a_value_or_a_reason(name: str, case: str, count: int) -> None:
    model = build(name, case, torch.float32)
    found = look(model, [Batch(images_for(model, count), some_labels(count))])
    assert found.images == count and found.broken is None
    for vital in EVERY:
        series = found.values[vital.key].get(vital.main, [None] * found.blocks)
        for i in range(found.blocks):
            value, reason = series[i], found.skipped[vital.key].get(i, "")
            assert (value is None) == bool(reason.strip()), f"{vital.key} of block {i}: {value}, {reason!r}"
            assert value is None or math.isfinite(value.mean), f"{vital.key} of block {i}"
    for key in ("token_cosine", "effective_rank", "high_frequency_ratio", "diversity"):
        assert not found.skipped[key]


@pytest.mark.parametrize("branch", ["attn", "mlp"])
@pytest.mark.parametrize("name", HOSTS)
def test_the_first_thing_that_breaks_is_named(name: str, branch: str) -> None:
    model = build(name, dtype=torch.float32)
    anatomy = anatomy_of(model)
    weight = getattr(anatomy.blocks[1], branch).linears[0].weight
    model.get_parameter(weight).data[0, 0] = float("nan")
    # With fewer than eight keys, torch's own kernel makes zeros of NaN: 96 pixels give PVT nine.
    found = measure(model, anatomy, in_batches(images_for(model, 5, 96), 4, some_labels(5)), EVERY)
    assert found.broken == (1, {"attn": "attention branch", "mlp": "MLP branch"}[branch])
    whole = in_one_batch(name, "")
    for vital in EVERY:
        series = found.values[vital.key].get(vital.main, [None] * found.blocks)
        there = whole.values[vital.key].get(vital.main, [None] * found.blocks)[0]
        if vital.key != "similar_blocks":  # which needs another block with maps
            assert (series[0] is None) == (there is None), vital.key
        for i in range(found.blocks):
            assert (series[i] is None) == bool(found.skipped[vital.key].get(i)), vital.key
            assert series[i] is None or np.isfinite(series[i].mean).all()
    assert found.values["token_cosine"][""][1:] == [None] * (found.blocks - 1)
    assert "not finite" in found.skipped["token_cosine"][1]


def test_an_image_that_is_not_finite_does_not_take_others_along() -> None:
    model = build("deit")
    images = images_for(model, 6)
    spoilt = images.clone()
    spoilt[2] = float("nan")
    chosen = [vital for vital in STREAMED if vital.key != "depth_probe"]
    others = look(model, [Batch(images[[0, 1, 3, 4, 5]])], chosen)
    for size in (1, 3, 6):
        found = look(model, in_batches(spoilt, size), chosen)
        assert found.broken is not None and found.broken[0] == 0
        agree(found, others, chosen)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_labels_stay_with_their_images_when_one_is_not_finite(size: int) -> None:
    model = build("deit")
    a, b = images_for(model, 2)
    noise = 0.01 * torch.randn(6, *a.shape, generator=torch.Generator().manual_seed(2))
    pictures = torch.stack([torch.full_like(a, float("nan")), a, a, a, a, b, b, b])
    pictures[2:] += noise
    labels = torch.tensor([1, 0, 0, 0, 0, 1, 1, 1])
    found = look(model, in_batches(pictures, size, labels), vitals.select("depth_probe"))
    series = found.values["depth_probe"].get("", [None, None])
    for i in (0, 1):  # neighbours are near copies, so every label is guessed
        assert series[i] is None or series[i].mean == 1.0
    if size == 1:
        assert series[0] is not None


def test_labels_that_are_no_classes_are_a_reason_and_not_a_crash() -> None:
    model = build("deit")
    labels = torch.tensor([0.5, 1.5, 2.5, 0.5, 1.5])
    found = look(model, [Batch(images_for(model, 5), labels)], vitals.select("depth_probe"))
    assert len(found.values["depth_probe"].get("", [])) == 2 or "label" in found.skipped["depth_probe"][0]


# Nothing changes


def everything_of(model: nn.Module, images: Tensor) -> tuple[Any, ...]:
    with torch.no_grad():
        logits = first_tensor(run(model, example(model, images)))
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
            look(model, [Batch(images)], chosen)
    else:
        look(model, [Batch(images)], chosen)
    assert_unchanged(before, everything_of(model, images))


def test_images_are_not_written_on() -> None:
    model = build("deit", dtype=torch.float32)
    images = images_for(model, 5)
    copy = images.clone()
    look(model, [Batch(images)])
    assert torch.equal(images, copy)


def test_a_look_inside_inference_mode() -> None:
    model, images = build("deit"), images_for(build("deit"), 5)
    wanted = look(model, [Batch(images)])
    with torch.inference_mode():
        found = look(model, [Batch(images)])
    agree(found, wanted, EVERY)


# Precision and kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["deit", "swin", "hf_vit", "torchvision_vit", "pvt_v2"])
def test_hosts_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype=dtype)
    found, exact = look(model, [Batch(images_for(model, COUNT), some_labels(COUNT))]), in_one_batch(name, "")
    assert found.broken is None and found.skipped == exact.skipped
    for key in ("token_cosine", "high_frequency_ratio", "effective_rank", "attention_entropy", "branch_ratio"):
        for mine, real in zip(*(m.values[key][vitals.get(key).main] for m in (found, exact)), strict=True):
            assert mine.mean == pytest.approx(real.mean, rel=0.1), key
            assert mine.images == real.images


def test_large_sums_in_half_precision_are_not_taken_for_infinity() -> None:
    """float16 ends at 65,504: every token is far below, their sum is not."""
    model = build("deit", dtype=torch.float32)
    model.pos_embed.data += 100
    images = images_for(model, 5)
    exact, found = look(model, [Batch(images)]), look(model.half(), [Batch(images)])
    assert found.broken is None and found.skipped == exact.skipped


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
    return look(fused, [Batch(images)], SHAPED), look(explicit, [Batch(images)], SHAPED)


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
    wanted, found = look(plain, [Batch(images)], chosen), look(writer, [Batch(images)], chosen)
    assert not wanted.skipped["high_frequency_gain"]
    agree(found, wanted, chosen)


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
        assert all(math.isnan(v[1]) for v in (spread.mean, spread.sd, spread.low, spread.high))
        assert spread.to_json()["mean"] == [4.0, None]
    assert Moments().spread() is None
    alone = Moments()
    alone.add(torch.tensor([2.0]))
    assert alone.spread().mean == 2 and math.isnan(alone.spread().sd)


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
        def end(self, batch: Batch) -> None:
            super().end(batch)
            held.append(bytes_held(self, set()))

    monkeypatch.setattr(measure_module, "_Pass", Watched)
    chosen = [vital for vital in EVERY if vital.key != "depth_probe"]
    look(model, in_batches(images_for(model, 24), 4), chosen)
    assert len(held) == 6
    assert held[0] == held[1] == held[-1] > 0
