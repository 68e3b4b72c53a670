"""The seam recognises attention however it is written, passes on what it does not know, and never goes silent."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.small_hosts import ALL, host, outputs, treat
from unsmooth.seam.intercept import AttentionCall, AttentionInterceptor, multi_head_attention
from unsmooth.seam.patched import ModulePatches, PatchedForward, module_patches, patched_class, unpatch
from unsmooth.seam.products import Product
from unsmooth.seam.residual_sums import ResidualScale


class Witness(AttentionInterceptor):
    """Remembers which events passed."""

    follows_products = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall] = []
        self.scores = 0

    def on_attention(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return super().on_attention(call)

    def on_scores(self, product: Product) -> Tensor:
        self.scores += 1
        return super().on_scores(product)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Multi-head attention, which torch runs as one function

TOKENS, BATCH, HEADS, CHANNELS = 6, 2, 3, 12
MASKS: dict[str, Tensor | None] = {
    "none": None,
    "float": draw(TOKENS, TOKENS, seed=8),
    "bool": torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1),
    "float for each head": draw(BATCH * HEADS, TOKENS, TOKENS, seed=9),
    "bool for each head": (draw(BATCH * HEADS, TOKENS, TOKENS, seed=9) > 0.5) & ~torch.eye(TOKENS, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("biased", [True, False])
def test_decomposed_multi_head_attention_is_the_same_function(mask: Tensor | None, biased: bool) -> None:
    x = draw(TOKENS, BATCH, CHANNELS).requires_grad_()
    packed, out = draw(3 * CHANNELS, CHANNELS, seed=1).requires_grad_(), draw(CHANNELS, CHANNELS, seed=2)
    packed_bias, out_bias = (draw(3 * CHANNELS, seed=3), draw(CHANNELS, seed=4)) if biased else (None, None)
    given = (x, x, x, CHANNELS, HEADS, packed, packed_bias, None, None, False, 0.0, out, out_bias)
    options: dict[str, Any] = {"training": True, "need_weights": False, "attn_mask": mask}
    wanted = F.multi_head_attention_forward(*given, **options)[0]
    ours, weights = multi_head_attention(*given, **options)
    assert weights is None
    torch.testing.assert_close(ours, wanted)
    for a, b in zip(
        *(torch.autograd.grad(y.square().sum(), (x, packed)) for y in (ours, wanted)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_multi_head_module_is_intercepted_as_attention(batch_first: bool, grad: bool, mask: Tensor | None) -> None:
    """In training and in inference, where torch has a path of its own that no mode could see."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=batch_first).train(grad)
    x = draw(BATCH, TOKENS, CHANNELS) if batch_first else draw(TOKENS, BATCH, CHANNELS)
    with torch.set_grad_enabled(grad):
        wanted = module(x, x, x, need_weights=False, attn_mask=mask)[0]
        with Witness() as seen:
            out = module(x, x, x, need_weights=False, attn_mask=mask)[0]
    torch.testing.assert_close(out, wanted)
    assert [call.v.shape for call in seen.calls] == [(BATCH, HEADS, TOKENS, CHANNELS // HEADS)]
    torch.testing.assert_close(seen.calls[0].map() @ seen.calls[0].v, seen.calls[0].attend(seen.calls[0].v))


def test_a_causal_hint_with_its_mask() -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True), draw(BATCH, TOKENS, CHANNELS)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    wanted = module(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0]
    with Witness() as seen:
        out = module(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0]
    torch.testing.assert_close(out, wanted)
    assert len(seen.calls) == 1


X, Y = draw(BATCH, TOKENS, CHANNELS), draw(BATCH, TOKENS + 1, CHANNELS, seed=1)
HIDDEN = torch.tensor([[False] * 5 + [True], [False] * 6])
OTHER_FORMS: dict[str, tuple[dict[str, Any], tuple[Tensor, ...], dict[str, Any]]] = {
    "weights wanted": ({}, (X, X, X), {"need_weights": True}),
    "weights of each head": ({}, (X, X, X), {"need_weights": True, "average_attn_weights": False}),
    "padding": ({}, (X, X, X), {"need_weights": False, "key_padding_mask": HIDDEN}),
    "cross attention": ({}, (X, Y, Y), {"need_weights": False}),
    "one image": ({}, (X[0], X[0], X[0]), {"need_weights": False}),
    "zero attention": ({"add_zero_attn": True}, (X, X, X), {"need_weights": False}),
    "key bias": ({"add_bias_kv": True}, (X, X, X), {"need_weights": False}),
    "separate weights": ({"kdim": CHANNELS, "vdim": 7}, (X, X, Y[:, 1:, :7]), {"need_weights": False}),
}


@pytest.mark.parametrize(("build", "given", "options"), OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_other_forms_of_multi_head_attention_run_untouched(
    build: dict[str, Any], given: tuple[Tensor, ...], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True, **build)
    wanted, weights = module(*given, **options)
    with Witness() as seen:
        out, same_weights = module(*given, **options)
    assert torch.equal(out, wanted)
    assert same_weights is weights is None or torch.equal(same_weights, weights)
    assert not seen.calls


# Fused attention

Q, K, V = (draw(2, 4, 5, 6, seed=seed) for seed in (1, 2, 3))
FEW_K, FEW_V = (draw(2, 2, 5, 6, seed=seed) for seed in (4, 5))
ADDED, TAKEN = draw(2, 1, 5, 5, seed=6), torch.ones(5, 5, dtype=torch.bool).tril(1)
FUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "by place": ((Q, K, V), {}),
    "by name": ((), {"query": Q, "key": K, "value": V}),
    "mixed": ((Q,), {"value": V, "key": K}),
    "all by place": ((Q, K, V, ADDED, 0.0, False), {}),
    "all by name": ((), {"query": Q, "key": K, "value": V, "attn_mask": TAKEN, "dropout_p": 0.0, "is_causal": False}),
    "added mask": ((Q, K, V), {"attn_mask": ADDED}),
    "boolean mask": ((Q, K, V, TAKEN), {}),
    "causal": ((Q, K, V), {"is_causal": True}),
    "causal by place": ((Q, K, V, None, 0.0, True), {}),
    "scale": ((Q, K, V), {"scale": 0.9}),
    "grouped keys": ((Q, FEW_K, FEW_V), {"enable_gqa": True}),
    "grouped, causal, scaled": ((Q, FEW_K, FEW_V), {"enable_gqa": True, "is_causal": True, "scale": 0.2}),
}


@pytest.mark.parametrize(("args", "kwargs"), FUSED.values(), ids=FUSED.keys())
def test_fused_attention_is_intercepted_for_every_call_style(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wanted = F.scaled_dot_product_attention(*args, **kwargs)
    with Witness() as seen:
        out = F.scaled_dot_product_attention(*args, **kwargs)
    assert torch.equal(out, wanted)
    (call,) = seen.calls
    weights = call.map()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    values = call.v.repeat_interleave(2, dim=1) if kwargs.get("enable_gqa") else call.v
    torch.testing.assert_close(weights @ values, wanted)
    assert call.via == "sdpa" and call.q is Q


def test_dropout_of_fused_attention_is_passed_on() -> None:
    torch.manual_seed(0)
    wanted = F.scaled_dot_product_attention(Q, K, V, dropout_p=0.5)
    torch.manual_seed(0)
    with Witness() as seen:
        assert torch.equal(F.scaled_dot_product_attention(Q, K, V, dropout_p=0.5), wanted)
    assert len(seen.calls) == 1
    assert not torch.allclose(seen.calls[0].map() @ V, wanted), "the map is the one before dropout"


# Explicit attention

SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "torch.softmax by name": lambda x: torch.softmax(input=x, dim=-1),
    "Tensor.softmax": lambda x: x.softmax(dim=-1),
    "F.softmax": lambda x: F.softmax(x, dim=-1),
    "F.softmax in fp32": lambda x: F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype),
    "nn.Softmax": nn.Softmax(dim=-1),
    "and dropout": lambda x: F.dropout(x.softmax(-1), 0.5),
}
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda a, b: a @ b,
    "torch.matmul": torch.matmul,
    "torch.matmul by name": lambda a, b: torch.matmul(a, other=b),
    "Tensor.matmul": lambda a, b: a.matmul(b),
    "torch.bmm": torch.bmm,
    "torch.bmm by name": lambda a, b: torch.bmm(input=a, mat2=b),
    "Tensor.bmm": lambda a, b: a.bmm(b),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
@pytest.mark.parametrize("softmax", SOFTMAXES.values(), ids=SOFTMAXES.keys())
def test_explicit_attention_is_intercepted_for_every_spelling(
    softmax: Callable[[Tensor], Tensor], product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    q, k, v = Q[:, 0], K[:, 0], V[:, 0]  # three axes, which bmm wants

    def attention() -> Tensor:
        torch.manual_seed(0)
        return product(softmax(product(q, k.mT) / 6**0.5), v)

    wanted = attention()
    with Witness() as seen:
        assert torch.equal(attention(), wanted)
    (call,) = seen.calls
    assert seen.scores == 1
    assert call.via == "softmax" and call.v is v
    torch.testing.assert_close(call.map() @ v, wanted)
    torch.testing.assert_close(call.attend(2 * v), 2 * wanted)


def test_a_softmax_without_values_is_not_attention() -> None:
    with Witness() as seen:
        classes = draw(2, 7).softmax(-1)
        draw(2, 3, 4) @ draw(4, 4)
        classes.sum()
    assert not seen.calls
    assert seen.scores == 1


@pytest.mark.parametrize("name", ALL)
def test_a_plain_interceptor_changes_nothing(name: str) -> None:
    model = host(name)
    plain = outputs(model, name)
    with Witness() as seen:
        assert torch.equal(outputs(model, name), plain)
    assert seen.calls


# A treated module


def skip_attention(self: nn.Module, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def sums_in_disguise(self: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    x = torch.sub(x, -self.attn(self.norm1(x)))
    return torch.sub(x, -self.mlp(self.norm2(x)))


@pytest.mark.parametrize(
    ("case", "path", "other_way", "missed"),
    [
        ("attn_scale", "blocks.0.attn", skip_attention, "attention"),
        ("adder_attention", "blocks.0.attn", skip_attention, "attention and attention scores"),
        ("adder", "blocks.0.mlp", skip_attention, "linear layers"),
        ("no_skip", "blocks.0", sums_in_disguise, "residual sums"),
    ],
)
def test_a_host_that_runs_another_path_raises(
    case: str, path: str, other_way: Callable[..., Tensor], missed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remedy must never be silently off."""
    model = treat(host("deit"), case)
    outputs(model, "deit")
    module = model.get_submodule(path)
    monkeypatch.setattr(getattr(type(module), "_unsmooth_host", type(module)), "forward", other_way)
    with pytest.raises(RuntimeError, match=f"did not reach the {missed} that"):
        outputs(model, "deit")


def unfuse(name: str, model: nn.Module, fused: bool = False) -> None:
    if name == "hf_vit":
        model.set_attn_implementation("sdpa" if fused else "eager")
    else:
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused


@pytest.mark.parametrize("case", ["adder_attention", "l2_attention", "logistic_attention", "adder"])
@pytest.mark.parametrize("name", ["deit", "hf_vit"])
def test_other_scores_raise_when_attention_is_no_longer_fused(name: str, case: str) -> None:
    """Where the scores then are was never examined. Treated anew, the same host works, and gives the same."""
    model = treat(host(name), case)
    wanted = outputs(model, name)
    unfuse(name, model)
    with pytest.raises(RuntimeError, match="did not reach the attention"):
        outputs(model, name)
    explicit = host(name)
    unfuse(name, explicit)
    treat(explicit, case)
    torch.testing.assert_close(outputs(explicit, name), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["attn_scale", "adder_attention", "l2_attention", "logistic_attention"])
def test_explicit_attention_that_becomes_fused_stays_treated(case: str) -> None:
    model = host("deit")
    unfuse("deit", model)
    treat(model, case)
    wanted = outputs(model, "deit")
    unfuse("deit", model, fused=True)
    torch.testing.assert_close(outputs(model, "deit"), wanted, rtol=1e-4, atol=1e-4)


def test_attn_scale_needs_no_fused_kernel() -> None:
    model = treat(host("hf_vit"), "attn_scale")
    wanted = outputs(model, "hf_vit")
    unfuse("hf_vit", model)
    torch.testing.assert_close(outputs(model, "hf_vit"), wanted, rtol=1e-4, atol=1e-4)


def test_a_treated_multi_head_module_with_need_weights_raises() -> None:
    model = treat(host("torchvision_vit"), "attn_scale")
    attention, x = model.encoder.layers[0].self_attention, draw(2, 17, 48)
    attention(x, x, x, need_weights=False)
    with pytest.raises(RuntimeError, match="did not reach the attention"):
        attention(x, x, x, need_weights=True)


def test_a_weighted_residual_sum_is_not_scaled() -> None:
    x, branch = draw(2, 5, 6), draw(2, 5, 6, seed=1)
    treatment = PatchedForward.as_mode(
        ModulePatches(residuals=[ResidualScale("attn", skip=0.0)], residual_branches=("attn",)), nn.Identity(), x
    )
    with treatment:
        out = torch.add(x, branch, alpha=2.0)
    assert torch.equal(out, torch.add(x, branch, alpha=2.0))
    with pytest.raises(RuntimeError, match="residual sums"):
        treatment.check("a block")


@pytest.mark.parametrize("write", [torch.add, Tensor.add, lambda x, y: x + y, lambda x, y: y + x])
@pytest.mark.parametrize(("skip", "gain"), [(0.0, 1.0), (0.75, 0.75), (1.0, 0.5), (1.0, 1.0)])
def test_a_residual_sum_is_scaled_for_every_spelling(
    write: Callable[[Tensor, Tensor], Tensor], skip: float, gain: float
) -> None:
    x, branch = draw(2, 5, 6), draw(2, 5, 6, seed=1)
    treatment = PatchedForward.as_mode(
        ModulePatches(residuals=[ResidualScale("attn", skip, gain)], residual_branches=("attn", "mlp")),
        nn.Identity(),
        x,
    )
    with treatment:
        once = write(x, branch)
        twice = write(once, branch)  # the MLP's sum, which no patch scales
    treatment.check("a block")
    torch.testing.assert_close(once, skip * x + gain * branch)
    torch.testing.assert_close(twice, once + branch)


def test_the_class_of_a_treated_module() -> None:
    cls = patched_class(nn.Linear)
    assert patched_class(nn.Linear) is cls
    assert issubclass(cls, nn.Linear)
    assert (cls.__name__, cls.__module__) == (nn.Linear.__name__, nn.Linear.__module__)
    assert patched_class(nn.Conv2d) is not cls


def test_treated_modules_keep_their_type() -> None:
    model, plain = treat(host("deit"), "attn_scale+no_skip"), host("deit")
    changed = 0
    for name, module in plain.named_modules():
        own = model.get_submodule(name)
        assert isinstance(own, type(module)), name
        assert type(own).__name__ == type(module).__name__
        changed += type(own) is not type(module)
    assert changed == 4, "the attention and the block of both"
    first, second = model.blocks[0].attn, model.blocks[1].attn
    assert type(first) is type(second) is patched_class(type(plain.blocks[0].attn))
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert type(copied) is type(first)


def test_module_patches_are_created_once_and_removed_with_the_last_patch() -> None:
    module = nn.Linear(3, 3)
    patches = module_patches(module)
    assert module_patches(module) is patches
    patches.residuals.append(ResidualScale("attn"))
    unpatch(module)
    assert type(module) is patched_class(nn.Linear), "it still has a patch"
    patches.residuals.clear()
    unpatch(module)
    assert type(module) is nn.Linear
    assert "_unsmooth_patches" not in module.__dict__
