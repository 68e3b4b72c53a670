"""Gradients: they reach everything that learns, and are right, by finite differences or by a rule's own reference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import CASES, example, host, pairs, treat
from unsmooth.hosts.inputs import first_tensor, run
from unsmooth.remedies.adder import AdderLinear
from unsmooth.remedies.adder_attention import AdderScores
from unsmooth.remedies.base import REGISTRY
from unsmooth.remedies.token_graying import dct_matrix, gray_dct, gray_svd

CANONICAL = CASES[: len(REGISTRY)]
# Adder networks train with a rule that is not the derivative, so no finite difference can agree with it.
BY_RULE = ("adder", "adder_attention")
BY_DERIVATIVE = [
    *(case for case in CASES if case.partition("(")[0] not in BY_RULE),
    "attn_scale+feat_scale+context_broadcast(kind=scaled)",
    "logistic_attention+attn_scale",
    "token_graying(rescale=false)",
    "token_graying(transform=svd, rescale=false)",
]


def loss(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """A fixed random projection of what a host gives out."""
    torch.manual_seed(2)  # ViLT shuffles its patches
    out = first_tensor(run(model, inputs))
    assert out is not None
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=out.dtype)
    return (out * weights).sum()


def image() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def slope(model: nn.Module, x: Tensor, moved: list[Tensor], seed: int, reach: float = 1e-5) -> tuple[float, float]:
    """The derivative of the loss along a random direction of some tensors: by autograd, and by a difference."""
    generator = torch.Generator().manual_seed(seed)
    direction = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in moved]
    length = math.sqrt(sum(float(d.square().sum()) for d in direction))
    direction = [d / length for d in direction]
    gradients = torch.autograd.grad(loss(model, {"image": x}), moved)
    exact = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))

    def at(distance: float) -> float:
        with torch.no_grad():
            for t, d in zip(moved, direction, strict=True):
                t.add_(d, alpha=distance)
            value = loss(model, {"image": x})
            for t, d in zip(moved, direction, strict=True):
                t.sub_(d, alpha=distance)
        return float(value)

    return exact, (at(reach) - at(-reach)) / (2 * reach)


def new_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for _, part in unsmooth.parts(model) for parameter in part.parameters()]


@pytest.mark.parametrize("case", BY_DERIVATIVE)
def test_gradients_are_the_derivative(case: str) -> None:
    """Of the new parameters, of the host's own, and of the image."""
    model, x = treat(host("deit").double(), case), image().requires_grad_()
    new = new_parameters(model)
    known = {id(p) for p in new}
    own = [p for p in model.parameters() if id(p) not in known]
    for moved in ([new] if new else []) + [own, [x]]:
        for seed in range(3):
            exact, difference = slope(model, x, moved, seed)
            assert exact == pytest.approx(difference, rel=1e-5, abs=1e-8)


# These heads average the patch tokens: what the last MLP makes of the class token is not read by anything.
NOT_READ = {(name, "specialized_norm"): ("blocks.1.norm2.unsmooth_",) for name in ("beit", "eva02")}


def reached(model: nn.Module, name: str) -> dict[str, Tensor]:
    model.zero_grad()
    loss(model, example(name)).backward()
    return {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


@cache
def reached_before(name: str) -> frozenset[str]:
    return frozenset(reached(host(name), name))


@pytest.mark.law
@pytest.mark.parametrize(("name", "case"), pairs(cases=CANONICAL, refused=False))
def test_gradients_reach_everything_that_learns(name: str, case: str) -> None:
    """Every new parameter, and each of the host's own that learned before and is not made idle."""
    model = treat(host(name), case)
    gradients = reached(model, name)
    idle = {key for key, p in model.named_parameters() if not p.requires_grad}
    assert bool(idle) == (case == "adder")
    assert reached_before(name) - idle <= set(gradients)
    for key, gradient in gradients.items():
        assert gradient.isfinite().all(), key
    new = [key for key, _ in model.named_parameters() if "unsmooth_" in key]
    assert bool(new) == bool(new_parameters(model))
    for key in new:
        assert key in gradients, f"no gradient reaches {key}"
        if any(key.startswith(prefix) for prefix in NOT_READ.get((name, case), ())):
            assert gradients[key].abs().max() == 0, f"the head reads {key} after all"
            continue
        assert gradients[key].abs().max() > 0, f"the gradient of {key} is zero"


def array(tensor: Tensor | None) -> np.ndarray:
    assert tensor is not None
    return tensor.detach().numpy()


def normalised_pull(y: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The gradient in front of a LayerNorm over the last axis, from the one behind it."""
    deviation = np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    hat = (y - y.mean(-1, keepdims=True)) / deviation
    return (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True)) / deviation


@pytest.mark.parametrize(("options", "eta", "gain"), [("", 0.2, 1.0), ("(eta=0.05, gain=5.0)", 0.05, 5.0)])
@pytest.mark.parametrize("layer", ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"])
def test_adder_layers_learn_by_the_rule_of_addernet(layer: str, options: str, eta: float, gain: float) -> None:
    """dW = Σ(x − W)g at norm η√k, dx = Σ clamp(gain·(W − x), −1, 1)g, with g in front of the layer's LayerNorm."""
    model = treat(host("deit").double(), f"adder{options}")
    part = model.get_submodule(f"blocks.1.unsmooth_adder_{layer.replace('.', '_')}")
    assert isinstance(part, AdderLinear)
    met: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        for tensor in (args[0], output):
            tensor.retain_grad()
            met.append(tensor)

    part.register_forward_hook(keep)
    loss(model, {"image": image()}).backward()
    source, output = met
    x = array(source).reshape(-1, source.shape[-1])
    weight, scale = array(part.weight), array(part.scale)
    behind = array(output.grad).reshape(-1, len(weight))
    y = np.stack([-np.abs(row - weight).sum(-1) for row in x])
    parts = 3 if layer == "attn.qkv" else 1  # q, k and v are normed each apart
    apart = (len(x), parts, len(weight) // parts)
    g = normalised_pull(y.reshape(apart), (behind * scale).reshape(apart)).reshape(y.shape)

    full = g.T @ x - weight * g.sum(0)[:, None]
    full *= eta * math.sqrt(full.size) / np.linalg.norm(full)
    np.testing.assert_allclose(array(part.weight.grad), full, rtol=1e-8, atol=1e-10)
    pull = np.stack([(np.clip(gain * (weight - row), -1, 1) * g[n][:, None]).sum(0) for n, row in enumerate(x)])
    np.testing.assert_allclose(array(source.grad).reshape(pull.shape), pull, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(array(part.shift.grad), behind.sum(0), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("identity", ["true", "false"])
def test_adder_scores_pull_queries_and_keys_together(identity: str) -> None:
    """dq = Σ clamp(k − q, −1, 1)g and the same for k, with g the gradient of the distances."""
    model = treat(host("deit").double(), f"adder_attention(identity={identity})")
    part = model.get_submodule("blocks.1.attn.unsmooth_adder_attention")
    assert isinstance(part, AdderScores)
    scores, met = part.scores, []

    def kept(q: Tensor, k: Tensor) -> Tensor:
        met.extend((q, k, scores(q, k)))
        for tensor in met:
            tensor.retain_grad()
        return met[-1]

    part.scores = kept  # type: ignore[method-assign]
    loss(model, {"image": image()}).backward()
    q, k, out = met
    g = array(out.grad) / math.sqrt(2 * (1 - 2 / math.pi) * q.shape[-1])
    difference = np.clip(array(k)[..., None, :, :] - array(q)[..., :, None, :], -1, 1) * g[..., None]
    np.testing.assert_allclose(array(q.grad), difference.sum(-2), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(array(k.grad), -difference.sum(-3), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", BY_RULE)
def test_the_adder_rule_is_not_the_derivative(case: str) -> None:
    """Which is why these two stand apart above: nobody should expect a finite difference to agree."""
    model, x = treat(host("deit").double(), case), image().requires_grad_()
    for moved in ([p for p in new_parameters(model) if p.ndim == 2], [x]):
        if moved:
            exact, difference = slope(model, x, moved, 0)
            assert exact != pytest.approx(difference, rel=1e-2)


def spectrum(tokens: int, channels: int, values: Iterable[float]) -> Tensor:
    """Two matrices with the singular values that are given."""
    generator = torch.Generator().manual_seed(5)
    sigma = torch.tensor(list(values), dtype=torch.float64)
    left, right = (
        torch.linalg.qr(torch.randn(2, size, len(sigma), generator=generator, dtype=torch.float64)).Q
        for size in (tokens, channels)
    )
    return (left * sigma) @ right.mT


def gray(x: Tensor, transform: str, rescale: bool, epsilon: float = 0.7) -> Tensor:
    if transform == "svd":
        return gray_svd(x, epsilon, rescale)
    rows, columns = (dct_matrix(size, dtype=x.dtype) for size in x.shape[-2:])
    return gray_dct(x, epsilon, rescale, rows, columns)


SIZES = [(7, 4), (4, 7), (5, 5)]
FORMS = [(transform, rescale) for transform in ("dct", "svd") for rescale in (True, False)]


@pytest.mark.parametrize(("tokens", "channels"), SIZES)
@pytest.mark.parametrize(("transform", "rescale"), FORMS)
def test_graying_has_the_right_gradient(transform: str, rescale: bool, tokens: int, channels: int) -> None:
    x = torch.randn(2, tokens, channels, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: gray(x, transform, rescale), x.requires_grad_())


@pytest.mark.parametrize("values", [(3.0, 1.0, 1.0, 1.0), (3.0, 2.0, 2.0, 1e-2), (2.0, 1.0, 1.0 + 1e-7, 0.5)])
@pytest.mark.parametrize(("tokens", "channels"), [(7, 4), (4, 7)])
@pytest.mark.parametrize("rescale", [True, False])
def test_singular_values_that_meet_keep_the_right_gradient(
    rescale: bool, tokens: int, channels: int, values: tuple[float, ...]
) -> None:
    """Below the largest, the function is smooth where they meet, though single singular vectors are not."""
    x = spectrum(tokens, channels, values).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gray(x, "svd", rescale), x)


KINKS = {
    "the largest repeats": (2.0, 2.0, 1.0, 0.5),
    "all repeat": (1.0, 1.0, 1.0, 1.0),
    "rank two": (2.0, 1.0, 0.0, 0.0),
    "rank one": (1.0, 0.0, 0.0, 0.0),
    "all but lost": (1.0, 1e-5, 1e-9, 1e-14),
    "zero": (0.0, 0.0, 0.0, 0.0),
    "faint": (1e-25, 1e-26, 1e-27, 1e-28),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", KINKS.values(), ids=KINKS.keys())
@pytest.mark.parametrize(("tokens", "channels"), [(7, 4), (4, 7)])
@pytest.mark.parametrize(("transform", "rescale"), FORMS)
def test_graying_stays_finite_where_it_has_kinks(
    transform: str, rescale: bool, tokens: int, channels: int, values: tuple[float, ...], dtype: torch.dtype
) -> None:
    x = spectrum(tokens, channels, values).to(dtype).requires_grad_()
    out = gray(x, transform, rescale)
    assert out.isfinite().all()
    assert bool((out != 0).any()) == any(values)
    out.backward(100 * torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=dtype))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("rescale", ["true", "false"])
@pytest.mark.parametrize("transform", ["dct", "svd"])
@pytest.mark.parametrize("where", ["embedding", "patches"])
def test_a_black_image_gives_finite_gradients(where: str, transform: str, rescale: str) -> None:
    """All patches of such an image are equal, and without the embedding's bias they are zero."""
    model = treat(host("deit"), f"token_graying(transform={transform}, where={where}, rescale={rescale})")
    nn.init.zeros_(model.patch_embed.proj.bias)
    x = torch.zeros(2, 3, 32, 32, requires_grad=True)
    loss(model, {"image": x}).backward()
    for gradient in (x.grad, *(p.grad for p in model.parameters())):
        assert gradient is not None and gradient.isfinite().all()
