"""Folding adder hosts to int8: outputs near those of single precision, and the rules of other folded models."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch

import unsmooth
from tests.support.small_hosts import ALL, host, outputs, treat
from unsmooth.remedies.kernels import adder as adder_ops
from unsmooth.surgery.fold_int8 import Int8AdderLinear


def int8(model: torch.nn.Module) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return unsmooth.fold(model, dtype="int8")


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", ALL)
def test_outputs_are_near(name: str) -> None:
    try:
        model = treat(host(name), "adder")
    except unsmooth.UnsmoothError:
        model = treat(host(name), "adder(identity=false)")
    want, keys = outputs(model, name), {k: v.clone() for k, v in model.state_dict().items()}
    result = int8(model)
    assert 0 < error(outputs(result, name), want) < 0.1
    assert all(torch.equal(v, keys[k]) for k, v in model.state_dict().items()), "the model itself is not changed"


def test_weights_are_bytes() -> None:
    model = treat(host("deit"), "adder")
    layers = [part for _, part in unsmooth.parts(int8(model), "adder") if isinstance(part, Int8AdderLinear)]
    assert len(layers) == 8
    for layer in layers:
        assert layer.weight.dtype == torch.uint8
        assert not list(layer.parameters())
    assert [tuple(layer.weight.shape) for layer in layers[:2]] == [(18, 6, 8, 8), (6, 6, 8, 8)]


def test_scores_alone_and_other_remedies() -> None:
    model = treat(host("deit"), "adder_attention+attn_scale+context_broadcast")
    result = int8(model)
    assert 0 < error(outputs(result, "deit"), outputs(model, "deit")) < 0.05
    assert unsmooth.surgery.record.record_of(result).folded == ("attn_scale", "context_broadcast", "adder_attention")
    assert str(unsmooth.applied(result)) == str(unsmooth.applied(model))


def test_a_large_error_is_reported() -> None:
    """One weight far from the others sets the step of its layer, and the others become equal bytes."""
    model = treat(host("deit"), "adder")
    layer = dict(unsmooth.parts(model, "adder"))["blocks.0.unsmooth_adder_attn_qkv"]
    layer.weight.data[0, 0] = 1e4
    with pytest.warns(UserWarning, match=r"in int8, .* differs by \d+ %.* Evaluate the folded model"):
        unsmooth.fold(model, dtype="int8")


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    result = int8(treat(host("deit"), "adder"))
    fast = outputs(result, "deit")
    monkeypatch.setattr(adder_ops, "compiled_operators", lambda: None)
    torch.testing.assert_close(outputs(result, "deit"), fast, rtol=1e-2, atol=1e-2 * float(fast.abs().max()))


def test_gradients_pass() -> None:
    """For attacks on inputs: those of the layers that the bytes stand for."""
    model = treat(host("deit"), "adder")
    result = int8(model)
    x, y = (torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    result(x).square().sum().backward()
    model(y).square().sum().backward()
    assert error(x.grad, y.grad) < 0.2


@pytest.mark.slow
@torch.no_grad()
def test_copies_half_precision_compile_and_export() -> None:
    model = treat(host("deit"), "adder")
    result = int8(model)
    x = torch.randn(2, 3, 32, 32)
    want = result(x)
    assert torch.equal(copy.deepcopy(result)(x), want)
    compiled = torch.compile(result, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want)
    program = torch.export.export(result, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), want)
    half = int8(copy.deepcopy(model).bfloat16())
    assert half(x.bfloat16()).dtype == torch.bfloat16
    assert error(half(x.bfloat16()).float(), want) < 0.1


def test_bad_input(tmp_path: Path) -> None:
    model = treat(host("deit"), "attn_scale")
    with pytest.raises(unsmooth.UnsmoothError, match="for models with the remedy adder"):
        unsmooth.fold(model, dtype="int8")
    adder = treat(host("deit"), "adder")
    for dtype in ("int4", torch.qint8, ""):
        with pytest.raises(unsmooth.UnsmoothError, match="fold has no dtype"):
            unsmooth.fold(adder, dtype=dtype)
    result = int8(adder)
    calls = (
        unsmooth.fold,
        unsmooth.remove,
        lambda m: unsmooth.apply(m, "feat_scale"),
        lambda m: unsmooth.save(m, tmp_path),
    )
    for call in calls:
        with pytest.raises(unsmooth.UnsmoothError, match="folded"):
            call(result)
