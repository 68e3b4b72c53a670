"""The bounds of theory on whole models: what is measured stays below them, and both are what they say."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import host, look_trained
from unsmooth.diagnosis.bounds.jacobian_spectrum import (
    branch_function,
    dense_jacobian,
    pull,
    push,
    robust_log_condition,
    singular_spectra,
)
from unsmooth.diagnosis.registry import get
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.examine import examine
from unsmooth.report.values import bound_pairs
from unsmooth.vitals.mixing_rate import mixing_rate

PLAIN = ("deit", "deit_distilled", "deit3", "dinov2", "hf_vit", "hf_dinov2", "torchvision_vit")


def images(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def bound(key: str, model: nn.Module) -> dict[str, list[torch.Tensor]]:
    anatomy = examine(model)
    with torch.no_grad():
        return get(key).measure(model, anatomy, images(), list(range(len(anatomy.blocks))))


def assert_bounded(values: dict[str, list[torch.Tensor]]) -> None:
    for bound_part, measured in bound_pairs(values):
        if bound_part is None:
            assert measured.startswith("excess.")
            continue
        for above, below in zip(values[bound_part], values[measured], strict=True):
            assert (below <= above + 1e-6).all(), bound_part


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("key", ["smoothing_bound", "diversity_bound"])
def test_what_is_measured_stays_below_the_bound(name: str, key: str) -> None:
    assert_bounded(bound(key, host(name)))


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
    heads, start = model.blocks[0].attn.num_heads, np.linalg.norm(x)
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


def test_the_bound_of_one_head_is_one_step_from_its_formula() -> None:
    """F.1: ln(γ_l‖HC[X_{l−1}]‖_F/‖X_0‖_F). In the second block X_{l−1} is what the first head of the first one made."""
    model = host("deit").double()
    actual = bound("smoothing_bound", model)
    block = model.blocks[1]
    with torch.no_grad():
        first = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images()[:1].double()))))
        attn = model.blocks[0].attn
        qkv = attn.qkv(model.blocks[0].norm1(first)).unflatten(-1, (3, attn.num_heads, -1))
        q, k, v = (qkv[0, :, j, 0] for j in range(3))
        head = torch.zeros_like(first[0])
        head[:, : v.shape[-1]] = (q @ k.T / v.shape[-1] ** 0.5).softmax(-1) @ v
        x_1 = attn.proj(head)
        x, y = x_1.numpy(), block.norm1(x_1).numpy()
    qkv = y @ block.attn.qkv.weight.detach().numpy().T + block.attn.qkv.bias.detach().numpy()
    d, heads = y.shape[1], block.attn.num_heads
    q, k = (qkv[:, j * d : j * d + d // heads] for j in (0, 1))
    n, alpha = len(x), np.abs(q @ k.T / np.sqrt(d // heads)).max()
    rate = np.sqrt(n * np.exp(2 * alpha) / (np.exp(2 * alpha) + n - 1))
    value = np.linalg.norm(block.attn.qkv.weight.detach().numpy()[2 * d : 2 * d + d // heads], 2)
    output = np.linalg.norm(block.attn.proj.weight.detach().numpy()[:, : d // heads], 2)
    gamma = hc(y) / hc(x) * rate * value * output
    start = np.linalg.norm(first[0].numpy())
    assert actual["attention"][1][0].item() == pytest.approx(np.log(gamma * hc(x) / start), rel=1e-6)
    assert actual["attention.measured"][0][0].item() == pytest.approx(np.log(hc(x) / start), rel=1e-6)
    for above, below, excess in zip(*(actual[p] for p in ("skip", "skip.measured", "excess.skip")), strict=True):
        assert torch.allclose(excess, below - above)
        assert (excess <= 0).all()


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


def augmented_deit() -> nn.Module:
    model = host("deit").double()
    unsmooth.apply(model, "augmented_shortcut")
    generator = torch.Generator().manual_seed(1)
    for _, part in unsmooth.parts(model):
        for parameter in part.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
    return model


def test_augmented_shortcuts_are_in_the_diversity_bound() -> None:
    plain, augmented = bound("diversity_bound", host("deit")), bound("diversity_bound", augmented_deit())
    assert_bounded(augmented)
    for part in ("step.linear", "stack.linear", "mlp"):
        assert (augmented[part][0] > plain[part][0]).all()  # later blocks get other tokens
    for part in ("msa", "stack"):
        for largest, recursion in zip(augmented[f"{part}.largest"], augmented[f"{part}.recursion"], strict=True):
            assert (largest >= recursion - 1e-9).all()


def test_printed_diversity_bounds_of_a_block_in_numpy() -> None:
    """Eq. S.4, S.6 and S.8 of the first block, from its weights and from hooks."""
    model = augmented_deit()
    values = bound("diversity_bound", model)
    block, captured = model.blocks[0], {}
    block.register_forward_hook(lambda m, args, out: captured.update(z=args[0], after=out))
    block.norm1.register_forward_hook(lambda m, args, out: captured.update(y=out))
    block.norm2.register_forward_hook(lambda m, args, out: captured.update(between=args[0], w=out))
    with torch.no_grad():
        model(images()[:1].double())
    z, y, between, w, after = (captured[key][0].numpy() for key in ("z", "y", "between", "w", "after"))
    heads, d = block.attn.num_heads, y.shape[1]
    dim = d // heads
    qkv, out = (layer.weight.detach().numpy() for layer in (block.attn.qkv, block.attn.proj))
    gamma = 0.0
    for h in range(heads):
        query, key, value = (qkv[j * d + h * dim : j * d + (h + 1) * dim].T for j in range(3))
        output = out[:, h * dim : (h + 1) * dim].T
        gamma = max(gamma, np.linalg.norm(query @ key.T, 2) * np.linalg.norm(value @ output, 2))
    slope = 1.1289043
    thetas = {name: [] for name in ("attn", "mlp")}
    for name, part in unsmooth.parts(model):
        if ".0." in name and hasattr(part, "vectors"):
            for grid in part.vectors.detach().numpy():
                dense = np.block([[scipy.linalg.circulant(vector) for vector in row] for row in grid])
                thetas["attn" if ".attn" in name else "mlp"].append(np.linalg.norm(dense, 2))
    assert [len(norms) for norms in thetas.values()] == [2, 2]
    norm1, norm2 = hc(y) / hc(z), hc(w) / hc(between)
    r = hc(z)
    alpha = 1 + norm1 * slope * sum(thetas["attn"])
    beta = 1 + norm2 * slope * sum(thetas["mlp"])
    layers = (block.mlp.fc1.weight, block.mlp.fc2.weight)
    delta = norm2 * slope * np.prod([np.linalg.norm(layer.detach().numpy(), 2) for layer in layers])
    step = max(heads * gamma * norm1**3 / np.sqrt(dim) * r**3, 2 * heads * alpha * r)
    for part, expected in (
        ("step", np.log(step / r)),
        ("step.measured", np.log(hc(between) / r)),
        ("mlp", np.log(delta + beta)),
        ("mlp.measured", np.log(hc(after) / hc(between))),
        ("stack", np.log((delta + beta) * step / r)),
        ("stack.recursion", np.log((delta + beta) * step / r)),
        ("msa", np.log(step / r)),
    ):
        assert values[part][0][0].item() == pytest.approx(expected, rel=1e-5), part


def test_printed_diversity_bounds_need_plain_scores() -> None:
    """With a position bias the rows of a map differ even if all tokens are equal, so no power of r bounds it."""
    values = bound("diversity_bound", host("beit"))
    assert not {"step", "msa", "stack"} & set(values)
    assert {"step.linear", "msa.linear", "stack.linear", "stack.measured"} <= set(values)


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
    c = sum(map(log_kappa, (query, key, value)))
    assert actual["linear"][1][0].item() == pytest.approx(c + 3 * log_kappa(y), rel=1e-6)
    s = np.linalg.svd(y, compute_uv=False)
    printed = (np.exp(c) * s[0] ** 3 + s[0]) / (s[-1] ** 3 + s[-1])
    assert actual["with_skip"][1][0].item() == pytest.approx(np.log(printed), rel=1e-6)
    m = query.T @ key @ y.T @ y @ value.T
    product = log_kappa(y) + log_kappa(m + np.eye(len(m)))
    assert actual["with_skip.measured"][1][0].item() == pytest.approx(product, rel=1e-4)
    assert actual["premise"][1][0].item() == float(s[-1] < 1 < s[0])
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


@pytest.mark.parametrize("remedy", ["", "no_skip"])
def test_jacobian_of_an_mlp_branch(remedy: str) -> None:
    model = host("deit")
    anatomy = examine(model)
    if remedy:
        unsmooth.apply(model, remedy)
    branch, x = branch_function(model, anatomy, anatomy.blocks[1], images()[:1], "mlp")
    block = copy.deepcopy(model.blocks[1]).double()
    captured: dict[str, torch.Tensor] = {}
    model.blocks[1].norm2.register_forward_pre_hook(lambda m, args: captured.update(x=args[0]))
    with torch.no_grad():
        model(images()[:1])
    torch.testing.assert_close(x, captured["x"].double())
    x = x[:, :5].clone()
    reference = torch.autograd.functional.jacobian(lambda x: block.mlp(block.norm2(x)), x)
    torch.testing.assert_close(dense_jacobian(branch, x), reference.reshape(x.numel(), -1), rtol=1e-8, atol=1e-10)


def test_the_robust_condition_number_is_not_pinned_by_the_norm_layer() -> None:
    model = host("deit")
    anatomy = examine(model)
    branch, x = branch_function(model, anatomy, anatomy.blocks[1], images()[:1])
    jacobian = dense_jacobian(branch, x).numpy()
    s = np.linalg.svd(jacobian, compute_uv=False)
    rank = np.linalg.matrix_rank(jacobian, tol=1e-10 * s[0])
    assert rank < len(s)  # the mean of a token is lost, whatever the weights
    values = get("jacobian_spectrum").measure(model, anatomy, images()[:1], [1])
    assert values[""][1].item() == pytest.approx(np.log(1e15))
    assert values["robust"][1].item() == pytest.approx(np.log(s[0] / s[int(np.ceil(0.9 * rank)) - 1]), rel=1e-6)
    with_skip = np.linalg.svd(jacobian + np.eye(len(s)), compute_uv=False)
    assert values["skip.robust"][1].item() == pytest.approx(
        np.log(with_skip[0] / with_skip[int(np.ceil(0.9 * len(s))) - 1]), rel=1e-6
    )
    assert 0 < values["mlp.robust"][1].item() < 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([8.0, 4.0, 2.0, 1.0, 1e-13, 0.0], 8.0),  # rank 4: the fourth
        ([10.0 - i for i in range(10)] + [1e-12] * 5, 5.0),  # rank 10: the ninth
        ([3.0], 1.0),
    ],
)
def test_the_robust_condition_number_of_known_values(values: list[float], expected: float) -> None:
    found = robust_log_condition(torch.tensor(values, dtype=torch.float64))
    assert found.exp().item() == pytest.approx(expected)


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
    assert not [part for part in get("jacobian_spectrum").measure(model, anatomy, images(), [0]) if "robust" in part]


def test_jacobian_is_for_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    model = copy.deepcopy(host("deit"))
    diagnosis = unsmooth.diagnose(model, images(1), vitals="jacobian_spectrum", reference=False)
    assert "one block at a time" in diagnosis.vitals["jacobian_spectrum"].skipped[0]
    diagnosis = unsmooth.diagnose(model, images(1), vitals="jacobian_spectrum", blocks="1", reference=False)
    reading = diagnosis["jacobian_spectrum"]
    assert reading[0] is None and reading[1] > 0
    assert reading.part("skip")[1] < reading[1]
