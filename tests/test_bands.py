"""The mean token and the rest: sums in place of means, for few numbers and for many, in every precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsmooth.bands import FEW, add_mean, mix
from unsmooth.remedies.context_broadcast import Broadcast, ScaledBroadcast
from unsmooth.remedies.feat_scale import LearnedBandGain


def by_definition(x: Tensor, low: Tensor | float, high: Tensor | float, axes: tuple[int, ...]) -> Tensor:
    mean = x.double().mean(axes, keepdim=True)
    return low * mean + high * (x.double() - mean)


SIZES = [(2, 5, 8), (1, FEW // 8 + 1, 8), (2, 3, 4, 8), (3, 1, 8)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_patches_are_mixes(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(size).to(dtype)
    tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 0.02
    for last in (True, False):
        tokens = x if last else x.movedim(-1, 1)
        axes = tuple(range(1, x.ndim - 1)) if last else tuple(range(2, x.ndim))
        scale, scaled, plain = LearnedBandGain(8, last), ScaledBroadcast(8, last), Broadcast(last)
        for patch in (scale, scaled, plain):
            assert patch(patch, (), tokens).equal(patch.treat(tokens, None))  # the hook of an output, without keywords
            if patch is not plain:
                assert patch.treat(tokens, None).equal(tokens.float() if dtype.itemsize < 4 else tokens)  # at the start
            for parameter in patch.parameters():
                nn.init.normal_(parameter)
            low, high = (
                g.detach().double().view(-1, *(1,) * (0 if last else x.ndim - 2)) if isinstance(g, Tensor) else g
                for g in patch.gains()
            )
            got = patch.treat(tokens, None).detach().double()
            torch.testing.assert_close(got, by_definition(tokens, low, high, axes), atol=tolerance, rtol=tolerance)


def test_half_precision_does_not_overflow() -> None:
    x = torch.full((1, 300, 4), 300.0, dtype=torch.float16)
    assert torch.equal(add_mean(x, x, 1.0), 2 * x)
    assert torch.equal(mix(x, 1.0, 0.5), x)


@pytest.mark.parametrize("share", [0.5, torch.randn(3, dtype=torch.float64)], ids=["number", "per channel"])
def test_gradients(share: Tensor | float) -> None:
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    s, t = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x: add_mean(x, x, share), (x,))
    patch = LearnedBandGain(3, True).double()

    def run(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(patch, {"s": s, "t": t}, (patch, (), x))
        return result

    assert torch.autograd.gradcheck(run, (x, s, t))
    assert torch.func.vmap(run, in_dims=(None, 0, None))(x, torch.stack((s, t)), t).shape == (2, 2, 4, 3)


def test_a_compiled_number_of_tokens_stays_variable() -> None:
    patch = LearnedBandGain(4, True)
    nn.init.normal_(patch.s)

    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Identity()
            self.layer.register_forward_hook(patch)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x)
            return result

    host, x = Host(), torch.randn(2, 5, 4)
    tokens = torch.export.Dim("tokens", min=2)
    program = torch.export.export(host, (x,), dynamic_shapes={"x": {1: tokens}}).module()
    compiled = torch.compile(host, fullgraph=True, backend="aot_eager")
    for each in (x, torch.randn(2, 9, 4)):
        torch.testing.assert_close(program(each), host(each))
        torch.testing.assert_close(compiled(each), host(each))


def test_hooks_read_outputs_of_any_form() -> None:
    """An output that is a tuple, and an input that is given by its name."""
    patch = Broadcast(True)
    x = torch.randn(1, 4, 8)

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x, "rest"

    host = Pair()
    host.register_forward_hook(patch)
    tokens, rest = host(x=x)
    assert rest == "rest"
    torch.testing.assert_close(tokens, mix(x, 1.0, 0.5))
