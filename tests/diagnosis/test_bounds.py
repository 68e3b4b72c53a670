"""The bounds of theory on whole models: what is measured stays below them, and both are what they say."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import host, look_trained
from unsmooth.diagnosis.bounds.jacobian_spectrum import branch_function, dense_jacobian, pull, push, singular_spectra
from unsmooth.diagnosis.registry import get
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import examine
from unsmooth.vitals.mixing_rate import mixing_rate

PLAIN = ("deit", "deit_distilled", "deit3", "dinov2", "hf_vit", "hf_dinov2", "torchvision_vit")


def images(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def bound(key: str, model: nn.Module) -> dict[str, list[torch.Tensor]]:
    anatomy = examine(model)
    with torch.no_grad():
        return get(key).measure(model, anatomy, images(), list(range(len(anatomy.blocks))))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("key", ["smoothing_bound", "diversity_bound"])
def test_what_is_measured_stays_below_the_bound(name: str, key: str) -> None:
    actual = bound(key, host(name))
    for part in [part for part in actual if not part.endswith(".measured")]:
        for above, below in zip(actual[part], actual[f"{part}.measured"], strict=True):
            assert (below <= above + 1e-6).all(), part


def hc(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - x.mean(axis=0)))


def softmax(p: np.ndarray) -> np.ndarray:
    e = np.exp(p - p.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("variant", ["attention", "heads", "skip"])
def test_parts_removed_from_a_deit_in_numpy(variant: str) -> None:
    """The measured curve of each variant, from the weights alone."""
    model = host("deit").double()
    actual = bound("smoothing_bound", model)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    picture = images()[:1].double()
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(picture))))[0].numpy()
    heads, start = model.blocks[0].attn.num_heads, hc(x)
    for i in range(len(model.blocks)):
        at = f"blocks.{i}."
        mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
        y = (x - mean) / np.sqrt(variance + model.blocks[i].norm1.eps)
        y = y * weights[at + "norm1.weight"] + weights[at + "norm1.bias"]
        qkv = y @ weights[at + "attn.qkv.weight"].T + weights[at + "attn.qkv.bias"]
        q, k, v = (part.reshape(len(x), heads, -1) for part in np.split(qkv, 3, axis=1))
        out = np.zeros_like(v)
        for h in range(1 if variant == "attention" else heads):
            out[:, h] = softmax(q[:, h] @ k[:, h].T / np.sqrt(q.shape[-1])) @ v[:, h]
        f = out.reshape(len(x), -1) @ weights[at + "attn.proj.weight"].T + weights[at + "attn.proj.bias"]
        x = x + f if variant == "skip" else f
        measured = actual[f"{variant}.measured"][i][0].item()
        assert measured == pytest.approx(np.log(hc(x) / start), abs=1e-6)


def test_the_bound_of_one_head_from_its_formula() -> None:
    model = host("deit").double()
    actual = bound("smoothing_bound", model)
    block = model.blocks[0]
    captured: dict[str, torch.Tensor] = {}
    block.norm1.register_forward_hook(lambda m, args, out: captured.update(x=args[0], y=out))
    with torch.no_grad():
        model(images()[:1].double())
    x, y = (captured[key][0].numpy() for key in ("x", "y"))
    qkv = y @ block.attn.qkv.weight.detach().numpy().T + block.attn.qkv.bias.detach().numpy()
    d, heads = y.shape[1], block.attn.num_heads
    q, k = (qkv[:, j * d : j * d + d // heads] for j in (0, 1))
    n, alpha = len(x), np.abs(q @ k.T / np.sqrt(d // heads)).max()
    rate = np.sqrt(n * np.exp(2 * alpha) / (np.exp(2 * alpha) + n - 1))
    value = np.linalg.norm(block.attn.qkv.weight.detach().numpy()[2 * d : 2 * d + d // heads], 2)
    output = np.linalg.norm(block.attn.proj.weight.detach().numpy()[:, : d // heads], 2)
    assert actual["attention"][0][0].item() == pytest.approx(np.log(hc(y) / hc(x) * rate * value * output), rel=1e-6)


def test_bounds_are_for_plain_blocks() -> None:
    model = host("deit")
    unsmooth.apply(model, "feat_scale")
    with pytest.raises(UnsmoothError, match="feat_scale"):
        bound("smoothing_bound", model)
    parallel = "vit_base_patch16_18x2_224(img_size=32, patch_size=8, embed_dim=48, depth=2)"
    with pytest.raises(UnsmoothError, match="need blocks of attention and MLP"):
        bound("smoothing_bound", look_trained(unsmooth.create_model(parallel)))
    for name in ("swin", "pvt_v2"):
        with pytest.raises(UnsmoothError, match="need attention over all tokens"):
            bound("smoothing_bound", host(name))


def test_augmented_shortcuts_are_in_the_diversity_bound() -> None:
    model = host("deit")
    plain = bound("diversity_bound", model)
    unsmooth.apply(model, "augmented_shortcut")
    generator = torch.Generator().manual_seed(1)
    for _, part in unsmooth.parts(model):
        for parameter in part.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    augmented = bound("diversity_bound", model)
    assert (augmented["step"][0] > plain["step"][0]).all()  # later blocks get other tokens
    for part in ("step", "stack"):
        for above, below in zip(augmented[part], augmented[f"{part}.measured"], strict=True):
            assert (below <= above + 1e-6).all()


def test_condition_bounds_in_numpy() -> None:
    model = host("deit").double()
    actual = bound("condition_bound", model)
    block = model.blocks[1]
    captured: dict[str, torch.Tensor] = {}
    block.norm1.register_forward_hook(lambda m, args, out: captured.update(x=args[0], y=out))
    block.attn.register_forward_hook(lambda m, args, out: captured.update(f=out))
    with torch.no_grad():
        model(images()[:1].double())
    x, y, f = (captured[key][0].numpy() for key in ("x", "y", "f"))
    query, key, value = np.split(block.attn.qkv.weight.detach().numpy(), 3)

    def log_kappa(matrix: np.ndarray) -> float:
        s = np.linalg.svd(matrix, compute_uv=False)
        return float(np.log(s[0] / s[-1]))

    linear = y @ query.T @ key @ y.T @ y @ value.T
    assert actual["linear.measured"][1][0].item() == pytest.approx(log_kappa(linear), rel=1e-3)
    right = sum(map(log_kappa, (query, key, value))) + 3 * log_kappa(y)
    assert actual["linear"][1][0].item() == pytest.approx(right, rel=1e-6)
    assert actual["skip"][1][0].item() == pytest.approx(log_kappa(f), rel=1e-6)
    assert actual["skip.measured"][1][0].item() == pytest.approx(log_kappa(x + f), rel=1e-6)


def test_mixing_rate_against_eigenvalues() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = (3 * torch.randn(4, 2, 12, 12, generator=generator)).softmax(dim=-1)
    actual = mixing_rate(maps)
    for a, rate, tau in zip(maps.flatten(0, 1), actual[""].flatten(), actual["coefficient"].flatten(), strict=True):
        sizes = np.sort(np.abs(np.linalg.eigvals(a.double().numpy())))[::-1]
        assert rate.item() == pytest.approx(sizes[1], rel=1e-2)
        rows = a.double().numpy()
        assert tau.item() == pytest.approx(max(np.abs(p - q).sum() / 2 for p in rows for q in rows), rel=1e-6)
        assert rate <= tau + 1e-2


def test_mixing_rate_of_uniform_and_identity_maps() -> None:
    maps = torch.stack([torch.full((7, 7), 1 / 7), torch.eye(7)]).unsqueeze(0)
    assert mixing_rate(maps)[""][0, 0] < 1e-6
    assert mixing_rate(maps)[""][0, 1] == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("name", ["deit", "dinov2", "hf_vit", "torchvision_vit"])
def test_jacobian_of_an_attention_branch(name: str) -> None:
    model = host(name)
    anatomy = examine(model)
    branch, x = branch_function(model, anatomy, anatomy.blocks[1], images()[:1])
    x = x[:, :5].clone()  # five tokens make a matrix that autograd can write out
    jacobian = dense_jacobian(branch, x)
    reference = torch.autograd.functional.jacobian(branch, x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(jacobian, reference, rtol=1e-8, atol=1e-10)
    v = torch.randn(x.shape, dtype=x.dtype)
    torch.testing.assert_close(push(branch, x, v).flatten(), jacobian @ v.flatten(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(pull(branch, x, v).flatten(), jacobian.mT @ v.flatten(), rtol=1e-8, atol=1e-10)


def test_both_ends_by_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    model = host("deit")
    anatomy = examine(model)
    branch, x = branch_function(model, anatomy, anatomy.blocks[0], images()[:1])
    _, dense = singular_spectra(branch, x)
    monkeypatch.setattr("unsmooth.diagnosis.bounds.jacobian_spectrum.DENSE", 0)
    plain, ends = singular_spectra(branch, x)
    assert ends[0].item() == pytest.approx(dense[0].item(), rel=1e-6)
    assert dense[-1].item() - 1e-9 <= ends[-1].item() <= dense[-1].item() + 0.3  # from above
    assert len(plain) == 96


def test_jacobian_is_for_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    model = copy.deepcopy(host("deit"))
    diagnosis = unsmooth.diagnose(model, images(1), vitals="jacobian_spectrum", reference=False)
    assert "one block at a time" in diagnosis.vitals["jacobian_spectrum"].skipped[0]
    diagnosis = unsmooth.diagnose(model, images(1), vitals="jacobian_spectrum", blocks="1", reference=False)
    reading = diagnosis["jacobian_spectrum"]
    assert reading[0] is None and reading[1] > 0
    assert reading.part("skip")[1] < reading[1]
