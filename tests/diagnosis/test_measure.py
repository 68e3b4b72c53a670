"""The pass over images: the same numbers as a naive measurement of all at once, in any batches, and no trace left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.small_hosts import host, treat
from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis.measure import Measurements, measure
from unsmooth.hosts.inputs import batch_inputs, first_tensor, image_size, run
from unsmooth.hosts.token_layout import distances
from unsmooth.results.measured import Spread
from unsmooth.surgery.plan import anatomy_of

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
# No pass measures vitals of the model; those of values are compared with the host's own in test_sinks.py.
EVERY = [vital for vital in vitals.select("all") if vital.of not in ("model", "values", "map_values")]
STREAMED = [vital for vital in EVERY if vital.key != "layer_cka"]  # which is defined by its batches
SHAPED = [vital for vital in EVERY if vital.accepts]  # of maps


def build(name: str, case: str = "", dtype: torch.dtype = torch.float64) -> nn.Module:
    model = host(name).to(dtype)
    return treat(model, case) if case else model


def images_for(model: nn.Module, count: int, large: int = 64) -> Tensor:
    channels, height, width = image_size(model)
    side = (large, large) if height > 56 else (height, width)  # convolutional hosts take any size
    return torch.randn(count, channels, *side, generator=torch.Generator().manual_seed(1))


def in_batches(images: Tensor, size: int, labels: Tensor | None = None) -> list[NamedImages]:
    marks = [None] * len(images.split(size)) if labels is None else labels.split(size)
    return [NamedImages(x, y) for x, y in zip(images.split(size), marks, strict=True)]


def some_labels(count: int) -> Tensor:
    return torch.arange(count) % 3


def measure_on(model: nn.Module, batches: list[NamedImages], chosen: Any = EVERY, **options: Any) -> Measurements:
    return measure(model, anatomy_of(model), batches, chosen, **options)


# A naive measurement: everything is kept, with hooks and patched functions alone


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
        run(model, batch_inputs(model, images))
    for handle in handles:
        handle.remove()
    actual = []
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
        actual.append(Seen(flat["in"][0], flat["out"][0], branches, *by_image))
    return actual


def named(actual: Any) -> dict[str, Tensor]:
    return actual if isinstance(actual, dict) else {"": actual}


def wanted_values(vital: Any, seen: list[Seen], name: str, prefix: bool, size: Any) -> dict[tuple[str, int], Tensor]:
    """By part and block, a number for each image, from the vital's function on all of them at once."""
    front, out = HOSTS[name][1], {}
    start = 0 if prefix else front
    few = slice(None, vital.images(requested=False))
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
            sites = {"": x} | {site: t[: vital.site_images(requested=False), start:] for site, t in inner.items()}
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


def check_spread(actual: Spread, values: Tensor, where: str) -> None:
    n = values.double().numpy()
    assert actual.images == len(n), where
    for mine, real in ((actual.mean, n.mean(0)), (actual.sd, n.std(0, ddof=1)), (actual.low, n.min(0)),
                       (actual.high, n.max(0))):  # fmt: skip
        np.testing.assert_allclose(mine, real, rtol=1e-5, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("prefix", [True, False], ids=["with prefix", "without prefix"])
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_the_pass_is_a_naive_look_at_everything(name: str, case: str, prefix: bool) -> None:
    model = build(name, case)
    images = images_for(model, 18 if name == "deit" else COUNT)
    labels = some_labels(len(images))
    seen = naive(model, name, case, images)
    actual = measure_on(model, [NamedImages(images, labels)], prefix=prefix)
    assert (actual.images, actual.blocks, actual.broken) == (len(images), len(seen), None)
    for vital in EVERY:
        series = actual.values[vital.key]
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
    return measure_on(model, [NamedImages(images_for(model, COUNT), some_labels(COUNT))])


@pytest.mark.parametrize(("name", "case", "size"), [(n, c, s) for n, c in PAIRS for s in SIZES.get(n, (3,))])
def test_the_size_of_the_batches_does_not_matter(name: str, case: str, size: int) -> None:
    """For all but CKA, which is an estimate from minibatches and needs four images in each."""
    model, reported = build(name, case), []
    actual = measure_on(
        model, in_batches(images_for(model, COUNT), size, some_labels(COUNT)), STREAMED, progress=reported.append
    )
    whole = in_one_batch(name, case)
    assert reported == [size] * (COUNT // size) + [COUNT % size] * (COUNT % size > 0)
    assert actual.images == whole.images == COUNT
    agree(actual, whole, STREAMED)
    assert all(actual.skipped[vital.key] == whole.skipped[vital.key] for vital in STREAMED)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 2], [2]], ids=str)
def test_some_blocks_have_the_values_that_they_have_among_all(chosen: list[int]) -> None:
    name = "swin"
    model = build(name)
    actual, whole = (
        measure_on(model, [NamedImages(images_for(model, COUNT), some_labels(COUNT))], blocks=chosen),
        in_one_batch(name, ""),
    )
    alone = [vital for vital in EVERY if vital.of != "blocks" or vital.key == "depth_probe"]
    for vital in alone:
        for part, series in actual.values[vital.key].items():
            if part == "lost.matrix":  # a comparison with every other block
                continue
            assert [i for i, value in enumerate(series) if value is not None] == [
                i for i in chosen if whole.values[vital.key][part][i] is not None
            ]
            for i in chosen:
                same(series[i], whole.values[vital.key][part][i], f"{vital.key} {part} of block {i}")
    assert all(set(reasons) <= set(chosen) for reasons in actual.skipped.values())
    # "The block before" is that, whoever else was looked at; where it was not, there is a reason and no number.
    for key, part in (("layer_cka", ""), ("similar_blocks", "previous")):
        for i in chosen:
            value = actual.values[key].get(part, [None] * 3)[i]
            if value is not None:
                same(value, whole.values[key][part][i], f"{key} of block {i} with {chosen}")
