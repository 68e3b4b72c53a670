"""Hosts with very many tokens: nothing that is quadratic in them is allocated."""

from __future__ import annotations

import pytest
import torch
from scipy.fft import dctn, idctn
from torch import Tensor

from unsmooth.diagnosis.samples import _lattice, _reduce
from unsmooth.remedies import token_graying
from unsmooth.remedies.token_graying import Graying, dct, inverse_dct

MANY = 65_536


@pytest.mark.parametrize("size", [1, 2, 5, 64, 1025])
def test_the_dct_by_fft_is_scipys(size: int) -> None:
    x = torch.randn(2, size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    expected = torch.from_numpy(dctn(x.numpy(), type=2, norm="ortho", axes=[1]))
    assert torch.allclose(dct(x, None), expected, atol=1e-12)
    assert torch.allclose(inverse_dct(expected, None), x, atol=1e-12)


def test_many_tokens_are_grayed_by_fft_with_the_same_result_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def result(dense: int) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(token_graying, "DENSE", dense)
        leaf = x.clone().requires_grad_()
        out = Graying("dct", 0.8, True, 24, 8, True).double().gray(leaf)
        return out, torch.autograd.grad(out.square().sum() + out.sum(), leaf)[0]

    for by_matrix, by_fft in zip(result(1024), result(0), strict=True):
        assert torch.allclose(by_matrix, by_fft, atol=1e-10)


def test_many_tokens_need_linear_memory() -> None:
    """65,536 tokens: a matrix would need 34 GB."""
    part = Graying("dct", 0.95, True, MANY, 4, True)
    assert sum(buffer.numel() for buffer in part.buffers()) < 100
    x = torch.randn(1, MANY, 4)
    grayed = part.gray(x)
    spectrum = dctn(x.double().numpy(), norm="ortho", axes=[1, 2])
    peak = abs(spectrum).max()
    import numpy as np

    expected = idctn(np.sign(spectrum) * peak * (abs(spectrum) / peak) ** 0.95, norm="ortho", axes=[1, 2])
    assert torch.allclose(grayed, torch.from_numpy(expected).float(), atol=1e-3)


def test_similarity_of_samples_is_of_the_shown_queries_only() -> None:
    tokens = torch.nn.functional.normalize(torch.randn(MANY, 4), dim=-1)
    index = _lattice((256, 256))
    assert len(index) == 49
    queries, shown = _reduce((tokens[index] @ tokens.mT).abs().unsqueeze(0), (256, 256))
    assert len(queries) == 49 and shown.shape == (1, 49, 16, 16)
