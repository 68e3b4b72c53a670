"""Hosts with very many tokens: nothing that is quadratic in them is allocated."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from scipy.fft import dctn, idctn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import unsmooth
from tests.support.small_hosts import host
from unsmooth.diagnosis import measure, samples
from unsmooth.diagnosis.samples import _lattice, _reduce
from unsmooth.remedies import token_graying
from unsmooth.remedies.token_graying import Graying, dct, inverse_dct

MANY = 65_536


class Largest(TorchDispatchMode):
    """Records the number of entries of the largest tensor with memory that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self.entries = max(self.entries, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def windowed() -> nn.Module:
    """12,544 tokens in windows."""
    return timm.create_model("swin_tiny_patch4_window7_224", img_size=448, embed_dim=16, depths=(2,), num_heads=(2,))


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


def test_a_diagnosis_holds_nothing_that_is_quadratic_in_the_tokens() -> None:
    model = windowed().eval()
    tokens = 112 * 112
    with Largest() as largest:
        diagnosis = unsmooth.diagnose(model, torch.randn(1, 3, 448, 448), reference=False)
    assert diagnosis["token_cosine"][0] is not None
    assert largest.entries < tokens**2 / 8


def test_a_plan_holds_nothing_large() -> None:
    model = windowed().eval()
    unsmooth.plan(model, "no_skip")
    with Largest() as largest:
        for remedy in ("token_graying", "token_graying(transform=svd)", "token_graying(where=patches)"):
            assert unsmooth.plan(model, remedy).sites
    assert largest.entries < 12_544 * 300  # a forward pass for the anatomy


def test_token_similarity_by_rows_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsmooth.vitals import token_cosine as module

    x = torch.randn(2, 33, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 3] = 0
    whole = module.token_cosine(x)
    monkeypatch.setattr(module, "ENTRIES", 33 * 2 * 4)
    assert torch.allclose(module.token_cosine(x), whole, atol=1e-12)
    u = torch.nn.functional.normalize(x, dim=-1)
    pairs = [(u[:, i] * u[:, j]).sum(-1).abs() for i in range(33) for j in range(i)]
    assert torch.allclose(whole, torch.stack(pairs).mean(dim=0), atol=1e-12)


def test_maps_that_are_too_large_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measure, samples):
        monkeypatch.setattr(module, "LARGEST_MAPS", 100)
    model, images = host("deit"), torch.randn(2, 3, 32, 32)
    diagnosis = unsmooth.diagnose(model, images, reference=False)
    assert "only on request: vitals=attention_entropy" in diagnosis.vitals["attention_entropy"].skipped[0]
    assert diagnosis["token_cosine"][0] is not None and not diagnosis.samples[0].blocks[0].maps
    assert unsmooth.diagnose(model, images, "attention_entropy", reference=False)["attention_entropy"][0] is not None


def test_large_maps_are_computed_one_image_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of four images of 4,096 tokens and 12 heads would take 3.2 GB, several times over."""
    model, images = host("deit"), torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = unsmooth.diagnose(model, images, batch_size=4, progress=False)
    sizes: list[int] = []
    by_image = measure._Pass.by_image

    def noted(self: Any, attention: Any, a: Tensor) -> Tensor:
        sizes.append(self.batch)
        return by_image(self, attention, a)

    monkeypatch.setattr(measure._Pass, "by_image", noted)
    monkeypatch.setattr(measure, "MAP_SIDE", 4)  # maps of 17 tokens are large: of four images only
    unsmooth.diagnose(model, images, batch_size=4, progress=False)
    assert max(sizes) == 4
    sizes.clear()
    monkeypatch.setattr("unsmooth.diagnosis.diagnose.MAPS_AT_ONCE", 0)
    split = unsmooth.diagnose(model, images, batch_size=4, progress=False)
    assert split.images.count == plain.images.count == 9
    for key in ("token_cosine", "effective_rank", "block_influence"):
        assert split[key] == pytest.approx(plain[key], rel=1e-4)
    assert sizes and max(sizes) == 1


@pytest.mark.parametrize(("side", "count"), [(17, 9), (9, 8), (4, 4), (1, 1)])
def test_fewer_images_have_their_maps_computed_if_maps_are_large(
    monkeypatch: pytest.MonkeyPatch, side: int, count: int
) -> None:
    """16 images of maps of `side` tokens, as many numbers of maps of 17 tokens, and one image at least."""
    model, images = host("deit"), torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(measure, "MAP_SIDE", side)
    diagnosis = unsmooth.diagnose(model, images, reference=False, progress=False)
    spread = diagnosis.vitals["attention_entropy"].parts[""][0]
    assert spread is not None and spread.images == count
    assert diagnosis.vitals["token_cosine"].parts[""][0].images == 9
