"""The probe sees what a model really does, changes nothing, and leaves nothing behind."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from tests.support.small_hosts import ALL, host, outputs, treat
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Attention, Block
from unsmooth.hosts.inputs import first_tensor
from unsmooth.seam.intercept import AttentionCall
from unsmooth.seam.observers import observers_are_paused
from unsmooth.seam.patched import PatchedForward, patches_of
from unsmooth.surgery.plan import anatomy_of

KINDS = {name: ["global", "global"] for name in ALL} | {
    **{name: ["windowed", "windowed", "global"] for name in ("swin", "hf_swin", "torchvision_swin")},
    "pvt_v2": ["pooled-kv", "pooled-kv", "pooled-kv", "global"],
}
HOSTS = ("deit", "cait", "swin", "hf_vit", "torchvision_vit")
CASES = (
    "attn_scale",
    "adder_attention",
    "adder_attention(identity=false)",
    "l2_attention",
    "l2_attention(tau=3.0)",
    "logistic_attention",
    "adder_attention+attn_scale",
    "attn_scale+adder_attention",
    "logistic_attention+attn_scale",
)


def traces_left(model: nn.Module) -> dict[str, Any]:
    """All that a probe could leave on a model or in the process."""
    return {
        "hooks": [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()],
        "flags": [(m._forward_hooks_with_kwargs, m._forward_hooks_always_called) for m in model.modules()],
        "training": [m.training for m in model.modules()],
        "classes": [type(m) for m in model.modules()],
        "attributes": [sorted(m.__dict__) for m in model.modules()],
        "observers": [patches.observers for patches in patches_of(model) if patches.observers],
        "observers_paused": observers_are_paused(),
        "modes": _get_current_function_mode_stack(),
    }


def look_at_all(seen: list[Tensor]) -> dict[str, Callable[..., None]]:
    """Callbacks that do what a curious user does: make maps and products of them."""
    return {
        "on_tokens": lambda block, x: seen.append(x.mean()),
        "on_attention": lambda block, attention, call: seen.append((call.map() @ call.v).mean()),
    }


@pytest.mark.parametrize(("name", "case"), [*((name, "") for name in ALL), *((n, c) for n in HOSTS for c in CASES)])
def test_looking_changes_nothing(name: str, case: str) -> None:
    model = treat(host(name), case) if case else host(name)
    next(model.modules()).training = True  # an odd flag that must survive
    plain, before = outputs(model, name), traces_left(model)
    assert before["observers"] == before["modes"] == []
    seen: list[Tensor] = []
    with probe(model, **look_at_all(seen)):
        assert torch.equal(outputs(model, name), plain)
    assert len(seen) == 2 * len(KINDS[name]), "the tokens of each block once, and its attention once"
    assert traces_left(model) == before
    assert torch.equal(outputs(model, name), plain)


class Broken(Exception):
    pass


def fail(*_: Any) -> None:
    raise Broken


@pytest.mark.parametrize("case", ["", "attn_scale", "adder_attention"])
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("callback", ["on_tokens", "on_attention"])
def test_a_callback_that_fails_leaves_nothing(callback: str, name: str, case: str) -> None:
    model = treat(host(name), case) if case else host(name)
    plain, before = outputs(model, name), traces_left(model)
    with pytest.raises(Broken), probe(model, **(look_at_all([]) | {callback: fail})):
        outputs(model, name)
    assert traces_left(model) == before
    assert torch.equal(outputs(model, name), plain)


@pytest.mark.parametrize("case", ["", "attn_scale", "adder_attention"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_model_that_fails_leaves_nothing_and_the_next_pass_is_seen(name: str, case: str) -> None:
    """It fails inside its attention, the worst place: the probe is in the middle of that module."""
    model = treat(host(name), case) if case else host(name)
    core = model.get_submodule(anatomy_of(model).blocks[1].attentions[0].core)
    plain, before = outputs(model, name), traces_left(model)
    seen: list[int] = []
    with probe(model, on_attention=lambda block, attention, call: seen.append(block.index)):
        failing = core.register_forward_hook(fail)
        with pytest.raises(Broken):
            outputs(model, name)
        failing.remove()
        seen.clear()
        assert torch.equal(outputs(model, name), plain)
    assert seen == list(range(len(KINDS[name])))
    assert traces_left(model) == before


@pytest.mark.parametrize(("name", "case"), [*((name, "") for name in ALL), ("deit", "no_skip"), ("swin", "feat_scale")])
def test_tokens_are_what_each_block_gives_out(name: str, case: str) -> None:
    model = treat(host(name), case) if case else host(name)
    anatomy = anatomy_of(model)
    given: list[Tensor | None] = []
    for block in anatomy.blocks:
        model.get_submodule(block.name).register_forward_hook(lambda _, __, out: given.append(first_tensor(out)))
    seen: list[tuple[Block, Tensor]] = []
    with probe(model, on_tokens=lambda block, x: seen.append((block, x)), anatomy=anatomy):
        outputs(model, name)
    assert [block for block, _ in seen] == list(anatomy.blocks)
    assert all(x is own for (_, x), own in zip(seen, given, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_the_map_of_every_host(name: str) -> None:
    """Maps are stochastic and reproduce the attention; CaiT's are mixed over heads by a layer of its own."""
    model, kinds = host(name), []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        weights = call.map()
        assert (weights.shape[-2], weights.shape[-1]) == (attention.queries, attention.keys)
        assert weights.shape[attention.head_axis] == attention.heads
        torch.testing.assert_close(weights @ call.v, call.attend(call.v), rtol=1e-5, atol=1e-5)
        rows = weights.sum(-1)
        if name == "cait":
            mixer = model.get_submodule(attention.core).proj_w
            sums = mixer.weight.sum(1) + mixer.bias * attention.keys
            torch.testing.assert_close(rows, sums.view(-1, 1).expand(rows.shape), rtol=1e-4, atol=1e-5)
        else:
            assert (weights >= 0).all()
            torch.testing.assert_close(rows, torch.ones_like(rows))
        kinds.append((block.index, attention.kind))

    with probe(model, on_attention=record):
        outputs(model, name)
    assert kinds == list(enumerate(KINDS[name]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", HOSTS)
def test_the_map_of_a_treated_model_is_the_one_it_used(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, used, seen_outputs = treat(host(name), case), [], []
    on_attention = PatchedForward.on_attention

    def recorded(self: PatchedForward, call: AttentionCall) -> Tensor:
        used.append(on_attention(self, call))
        return used[-1]

    monkeypatch.setattr(PatchedForward, "on_attention", recorded)
    with probe(model, on_attention=lambda block, attention, call: seen_outputs.append(call.map() @ call.v)):
        outputs(model, name)
    assert len(seen_outputs) == len(KINDS[name])
    for mine, real in zip(seen_outputs, used, strict=True):
        torch.testing.assert_close(mine, real, rtol=1e-5, atol=1e-5)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def reference(spec: str, q: np.ndarray, k: np.ndarray, learned: dict[str, np.ndarray]) -> np.ndarray:
    """The effective map of one attention, from the equations of the papers."""
    channels, keys = q.shape[-1], k.shape[-2]
    difference = q[..., :, None, :] - k[..., None, :, :]
    scores = np.einsum("bhnc,bhmc->bhnm", q, k) / math.sqrt(channels)
    if "adder_attention" in spec:
        scores = -np.abs(difference).sum(-1) / math.sqrt(2 * (1 - 2 / math.pi) * channels)
    elif "l2_attention" in spec:
        scores = -np.square(difference).sum(-1) / (3.0 if "tau=3.0" in spec else math.sqrt(channels))
    elif "logistic_attention" in spec:
        queries, others = (np.einsum("bhnc,hc->bhn", x, learned[u]) for x, u in ((q, "u_q"), (k, "u_k")))
        affine = queries[..., :, None] + others[..., None, :] + learned["b"][:, None, None]
        scores = np.where(affine > 0, affine, 0.2 * affine)
    effective = softmax(scores)
    for remedy in spec.split("+"):
        if remedy == "adder_attention":
            effective = effective + np.eye(keys)
        elif remedy == "attn_scale":
            effective = 1 / keys + (1 + learned["omega"][:, None, None]) * (effective - 1 / keys)
    return effective


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["deit", "hf_vit", "torchvision_vit"])
def test_the_map_is_that_of_the_equations(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts whose scores have no bias and no mask: queries and keys as they meet the kernel give the whole map."""
    model = treat(host(name).double(), case)
    met: list[tuple[np.ndarray, np.ndarray]] = []
    on_sdpa = PatchedForward.on_sdpa

    def recorded(self: PatchedForward, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        met.append((q.numpy(), k.numpy()))
        return on_sdpa(self, q, k, v, options)

    maps: list[np.ndarray] = []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        if call.q is not None and call.k is not None:
            assert np.array_equal(call.q.numpy(), met[-1][0]) and np.array_equal(call.k.numpy(), met[-1][1])
        core = model.get_submodule(attention.core)
        learned = {
            key.split(".")[-1]: value.detach().numpy() for key, value in core.named_parameters() if "unsmooth_" in key
        }
        maps.append(call.map().numpy())
        np.testing.assert_allclose(maps[-1], reference(case, *met[-1], learned), rtol=1e-9, atol=1e-12)

    monkeypatch.setattr(PatchedForward, "on_sdpa", recorded)
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad(), probe(model, on_attention=record):
        model(image)
    assert len(maps) == len(met) == 2


@pytest.mark.parametrize("case", ["", "attn_scale", "adder_attention"])
@pytest.mark.parametrize("name", HOSTS)
def test_nothing_is_kept(name: str, case: str) -> None:
    """One block's map, values and scores are gone before the next block's are made; tokens with the pass."""
    model = treat(host(name), case) if case else host(name)
    made: list[weakref.ref[Tensor]] = []
    tokens: list[weakref.ref[Tensor]] = []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        assert [ref() for ref in made] == [None] * len(made)
        made.extend(map(weakref.ref, (call.map(), call.attend(call.v))))

    with probe(model, on_attention=record, on_tokens=lambda block, x: tokens.append(weakref.ref(x))):
        outputs(model, name)
        assert len(made) == 2 * len(KINDS[name])
        assert [ref() for ref in made + tokens] == [None] * len(made + tokens), "the probe is still open"


def test_two_probes_do_not_see_each_other() -> None:
    for case in ("", "attn_scale"):
        model = treat(host("deit"), case) if case else host("deit")
        outer: list[Tensor] = []
        inner: list[Tensor] = []
        anatomy = anatomy_of(model)  # examining the model again would be one more pass to see
        with probe(model, **look_at_all(outer)), probe(model, **look_at_all(inner), anatomy=anatomy):
            outputs(model, "deit")
        assert len(outer) == len(inner) == 4
        assert sorted(map(float, outer)) == sorted(map(float, inner))


def test_a_probe_of_one_model_does_not_hear_another() -> None:
    model, other, seen = host("deit"), treat(host("deit"), "attn_scale"), []
    with probe(model, **look_at_all(seen)):
        outputs(other, "deit")
    assert seen == []
