"""Pictures of tokens against NumPy and scikit-learn, from tokens and maps that hooks of the host itself read."""

from __future__ import annotations

import base64
import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import host
from unsmooth.diagnosis.pictures import SIDE, colours, principal
from unsmooth.results.sample import Sample

Array = np.ndarray[Any, Any]
NEEDS_ALL = "it needs the maps of all blocks before it"
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def sample_of(model: nn.Module, images: Tensor = IMAGES) -> Sample:
    return unsmooth.diagnose(model, images, "token_cosine", reference=False).samples[0]


def seen_by_hooks(model: nn.Module, images: Tensor = IMAGES[:1]) -> tuple[list[Array], list[Array]]:
    """Block outputs (n, d) and maps (heads, n, n) of a timm ViT, from its explicit attention, not the fused one."""
    model = copy.deepcopy(model).eval()
    tokens: list[Array] = []
    maps: list[Array] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: maps.append(out[0].double().numpy()))
        block.register_forward_hook(lambda _, __, out: tokens.append(out[0].double().numpy()))
    with torch.no_grad():
        model(images)
    return tokens, maps


def decoded(text: str | None, *shape: int) -> Array:
    assert text is not None
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape).astype(float)


def flipped(components: Array) -> Array:
    """Components whose largest entry is positive."""
    return np.stack([c if c[np.abs(c).argmax()] > 0 else -c for c in components])


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def grey(coordinates: Array, scale: Any) -> Array:
    return 127.5 * (1 + np.clip(coordinates / scale, -1, 1))


def test_pca_is_that_of_scikit_learn() -> None:
    model = host("deit")
    sample = sample_of(model)
    patches = [unit(x[1:]) for x in seen_by_hooks(model)[0]]
    centred = [x - x.mean(axis=0) for x in patches]
    pca = PCA(3, svd_solver="full").fit(np.concatenate(centred))
    common = [x @ flipped(pca.components_).T for x in centred]
    scale = np.quantile(np.abs(np.concatenate(common)), 0.99)
    for block, x in enumerate(centred):
        picture = sample.pictures[block]
        assert picture.grid == [4, 4]
        np.testing.assert_allclose(decoded(picture.pca, 16, 3), grey(common[block], scale), atol=1)
        assert picture.pca_share == pytest.approx((common[block] ** 2).sum() / (x**2).sum(), rel=1e-3)
        own = PCA(3, svd_solver="full").fit(x)
        points = x @ flipped(own.components_).T
        np.testing.assert_allclose(
            decoded(picture.pca_own, 16, 3), grey(points, np.quantile(np.abs(points), 0.99, axis=0)), atol=1
        )
        assert picture.pca_own_share == pytest.approx(own.explained_variance_ratio_.sum(), rel=1e-3)


def test_trajectories_are_tokens_on_two_components_of_all_blocks() -> None:
    model = host("deit")
    found = sample_of(model).trajectories
    assert found is not None and found.blocks == [0, 1]
    patches = np.stack([unit(x[1:]) for x in seen_by_hooks(model)[0]])
    pca = PCA(2, svd_solver="full").fit(patches.reshape(-1, 48))
    paths = ((patches - pca.mean_) @ flipped(pca.components_).T).swapaxes(0, 1)
    np.testing.assert_allclose(found.points, paths, atol=2e-4)
    assert found.shares == pytest.approx(pca.explained_variance_ratio_.tolist(), rel=1e-3)
    assert found.patches[:2] == [[0.125, 0.125], [0.125, 0.375]] and len(found.patches) == 16


def test_norms_are_those_of_the_patches() -> None:
    model = host("dinov2_registers")
    sample = sample_of(model)
    for block, x in enumerate(seen_by_hooks(model)[0]):
        norms, picture = np.linalg.norm(x[5:], axis=1), sample.pictures[block]
        assert picture.largest_norm == pytest.approx(norms.max(), rel=1e-4)
        assert picture.median_norm == pytest.approx(np.sort(norms)[7], rel=1e-4)  # the lower of the two in the middle
        np.testing.assert_allclose(decoded(picture.norms, 16), norms / norms.max() * 255, atol=1)


def saturated(reached: Array) -> Array:
    return (reached.clip(0) / np.quantile(reached, 0.95)).clip(0, 1) * 255


def rollout(maps: list[Array]) -> list[Array]:
    """Abnar and Zuidema: the product of ½A + ½I with normalised rows, from the last block to the first."""
    flows: list[Array] = []
    for a in maps:
        step = (a.mean(axis=0) + np.eye(a.shape[-1])) / 2
        step /= step.sum(axis=1, keepdims=True)
        flows.append(step @ flows[-1] if flows else step)
    return flows


@pytest.mark.parametrize("name", ["deit", "deit_distilled", "dinov2_registers"])
def test_class_attention_and_rollout_of_fused_maps(name: str) -> None:
    model = host(name)
    assert all(block.attn.fused_attn for block in model.blocks)
    sample, (_, maps) = sample_of(model), seen_by_hooks(model)
    prefix = maps[0].shape[-1] - 16
    for block, (a, flow) in enumerate(zip(maps, rollout(maps), strict=True)):
        rows, picture = a[:, 0, prefix:], sample.pictures[block]
        assert picture.heads == 3
        expected = rows / rows.max(axis=1, keepdims=True) * 255
        np.testing.assert_allclose(decoded(picture.class_attention, 3, 16), expected, atol=1)
        reached = flow[0, prefix:]
        np.testing.assert_allclose(decoded(picture.rollout, 16), saturated(reached), atol=1)
        assert picture.rollout_peak == pytest.approx(reached.max() / reached.mean(), rel=1e-4)


def test_rollout_of_a_treated_model_is_of_the_effective_maps() -> None:
    model = host("deit")
    maps = seen_by_hooks(model)[1]
    unsmooth.apply(model, "attn_scale", blocks="0")
    omega = torch.tensor([0.5, -0.3, 0.8])
    for _, part in unsmooth.parts(model):
        part.omega.data = omega
    low = np.full_like(maps[0], 1 / 17)
    effective = low + (1 + omega.double().numpy()[:, None, None]) * (maps[0] - low)
    reached = rollout([effective])[0][0, 1:]
    np.testing.assert_allclose(decoded(sample_of(model).pictures[0].rollout, 16), saturated(reached), atol=1)


def test_without_a_class_token_the_rollout_is_that_of_the_mean_patch() -> None:
    torch.manual_seed(0)
    spec = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=2, class_token=false, global_pool=avg)"
    model = unsmooth.create_model(spec).eval()
    sample = sample_of(model)
    assert sample.left_out == {"class_attention": "blocks 0–1: it has no class token"}
    reached = rollout(seen_by_hooks(model)[1])[1].mean(axis=0)
    np.testing.assert_allclose(decoded(sample.pictures[1].rollout, 16), saturated(reached), atol=1)


def test_tokens_of_a_remedy_are_no_patches() -> None:
    """With 16 patches and 4 registers, 20 tokens would fill a grid of 4 × 5."""
    model = host("deit")
    unsmooth.apply(model, "registers")
    sample = sample_of(model)
    assert sample.blocks[0].grid == [4, 4] and sample.left_out == {}
    assert len(decoded(sample.blocks[0].maps, 3, 16, 4, 4)) == 3
    assert len(decoded(sample.pictures[1].rollout, 16)) == 16


@pytest.mark.parametrize(
    ("name", "side", "rollout", "paths"),
    [
        ("swin", 56, f"blocks 0–1: its attention is over windows; block 2: {NEEDS_ALL}",
         "block 2: it has another number of tokens or channels"),
        ("pvt_v2", 224, f"blocks 0–2: its attention has fewer keys than queries; block 3: {NEEDS_ALL}",
         "blocks 0–3: no other block has as many tokens and channels"),
        ("convmixer", 32, "blocks 0–1: it has no softmax attention", None),
    ],
)  # fmt: skip
def test_what_a_host_does_not_have_is_left_out_with_its_reason(
    name: str, side: int, rollout: str, paths: str | None
) -> None:
    sample = sample_of(host(name), torch.randn(1, 3, side, side))
    assert sample.left_out["rollout"] == rollout and sample.left_out.get("trajectories") == paths
    assert all(picture.pca and picture.norms and not picture.rollout for picture in sample.pictures.values())
    assert max(max(picture.grid) for picture in sample.pictures.values()) <= SIDE


def test_fine_grids_are_averaged_and_keep_their_largest_norm() -> None:
    model = host("pvt_v2")
    tokens: list[Tensor] = []
    images = torch.randn(1, 3, 224, 224)
    handle = model.stages[0].blocks[0].register_forward_hook(lambda _, __, out: tokens.append(out[0]))
    with torch.no_grad():
        model(images)
    handle.remove()
    norms = np.linalg.norm(tokens[0].numpy(), axis=1).reshape(28, 2, 28, 2).max(axis=(1, 3))
    picture = sample_of(model, images).pictures[0]
    assert picture.grid == [28, 28]
    np.testing.assert_allclose(decoded(picture.norms, 28, 28), norms / norms.max() * 255, atol=1)


def test_a_block_with_nan_has_no_picture() -> None:
    model = host("deit")
    model.blocks[1].mlp.fc2.weight.data[0, 0] = torch.nan
    sample = sample_of(model)
    assert list(sample.pictures) == [0]
    assert sample.left_out["pca"] == "block 1: its tokens contain NaN or infinity"
    assert sample.left_out["trajectories"] == (
        "block 0: no other block has as many tokens and channels; block 1: its tokens contain NaN or infinity"
    )


def test_equal_tokens_are_grey_and_have_no_component() -> None:
    components, shares = principal(np.zeros((9, 4)), 3)
    assert not components.any() and not shares.any()
    assert set(base64.b64decode(colours(np.zeros((9, 3)), 0.0))) == {128}


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (2, 2)])
def test_components_have_one_sign(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    x -= x.mean(axis=0)
    components, shares = principal(x, 3)
    np.testing.assert_array_equal(principal(-x, 3)[0].round(9), components.round(9))
    rank = min(3, *shape, shape[0] - 1)
    reference = PCA(rank, svd_solver="full").fit(x)
    np.testing.assert_allclose(components[:rank], flipped(reference.components_), atol=1e-9)
    np.testing.assert_allclose(shares[:rank], reference.explained_variance_ratio_, atol=1e-12)
    assert not components[rank:].any() or shape[1] > rank


def test_pictures_are_the_same_each_time_and_small() -> None:
    model = host("deit")
    one, two = sample_of(model), sample_of(model)
    assert one == two
    stored = [len(base64.b64decode(text)) for text in (
        one.pictures[0].pca, one.pictures[0].pca_own, one.pictures[0].norms, one.pictures[0].class_attention,
        one.pictures[0].rollout,
    )]  # fmt: skip
    assert stored == [16 * 3, 16 * 3, 16, 16 * 3, 16]
