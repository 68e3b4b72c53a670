"""Context broadcasting: entropy of attention, the two bands, where it may be placed, its gradients and its FLOPs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unsmooth
from unsmooth.evaluation.operations import count_operations
from unsmooth.theory import context_broadcasting as theory

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 10**6)
quick = settings(max_examples=30, deadline=None)


def t(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x))


def cb(x: np.ndarray) -> np.ndarray:
    return np.stack([(token + sum(x) / len(x)) / 2 for token in x])


@quick
@given(SIZES, SEEDS, st.floats(0.0, 30.0))
def test_entropy_is_at_most_log_n(n: int, seed: int, scale: float) -> None:
    a = scipy.special.softmax(scale * np.random.default_rng(seed).normal(size=(2, n, n)), axis=-1)
    entropy = theory.attention_entropy(t(a)).numpy()
    assert np.allclose(entropy, scipy.stats.entropy(a, axis=-1), atol=1e-12)
    assert (entropy >= -1e-12).all()
    assert (entropy <= theory.entropy_bound(n) + 1e-12).all()
    denser = theory.attention_entropy(t((a + 1 / n) / 2)).numpy()
    assert (denser >= theory.broadcast_entropy_bound(t(entropy), n).numpy() - 1e-12).all()


def test_entropy_of_uniform_and_hard_rows() -> None:
    assert theory.attention_entropy(torch.full((5, 5), 0.2, dtype=torch.float64)).numpy() == pytest.approx(np.log(5))
    assert theory.attention_entropy(torch.eye(5)).tolist() == [0] * 5
    almost = torch.tensor([[0.2 + 1e-3, 0.2 - 1e-3, 0.2, 0.2, 0.2]], dtype=torch.float64)
    assert theory.attention_entropy(almost).item() < theory.entropy_bound(5)


def test_log_n_is_no_bound_for_rows_that_do_not_sum_to_one() -> None:
    """Adder attention adds I. And AttnScale may leave the range where entropy means anything."""
    n = 16
    a = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert (theory.attention_entropy(2 * a) > theory.entropy_bound(n)).all()
    mean = torch.full((n, n), 1 / n)
    scaled = mean + 1.5 * (torch.eye(n) - mean)
    assert torch.isneginf(theory.attention_entropy(scaled)).all()


@quick
@given(SIZES, SIZES, SEEDS)
def test_broadcasting_halves_the_high_band_and_keeps_the_mean(n: int, d: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, d)) + 1
    y = theory.broadcast(t(x)).numpy()
    assert np.allclose(y, cb(x), atol=1e-12)
    assert np.allclose(y.mean(0), x.mean(0), atol=1e-12)
    assert np.allclose(y - y.mean(0), (x - x.mean(0)) / 2, atol=1e-12)
    twice = theory.broadcast(t(y)).numpy()
    assert np.allclose(twice - twice.mean(0), (x - x.mean(0)) / 4, atol=1e-12)


def test_batches_of_any_depth_and_any_precision() -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = theory.broadcast(x)
    assert y.dtype == torch.float64
    assert np.allclose(y[1, 2].numpy(), cb(x[1, 2].double().numpy()))


@quick
@given(SIZES, SIZES, SIZES, SEEDS)
def test_mid_and_end_are_one_function(n: int, hidden: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    h, w, b = rng.normal(size=(2, n, hidden)), rng.normal(size=(d, hidden)), rng.normal(size=d)
    assert theory.broadcast_affine_gap(t(h), t(w), t(b)).max().item() < 1e-12
    for tokens in h:
        assert np.allclose(cb(tokens) @ w.T + b, cb(tokens @ w.T + b))


def test_front_is_another_function_and_dropout_parts_mid_from_end() -> None:
    """An activation does not commute with the mean, and neither does a mask that differs from token to token."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4))
    assert not np.allclose(np.maximum(cb(x), 0), cb(np.maximum(x, 0)), atol=1e-2)
    keep = rng.random((6, 4)) < 0.5
    assert not np.allclose(cb(x) * keep, cb(x * keep), atol=1e-2)


# Section 2.6: which gradients reach the weights of the MLP. The references are finite differences.

POSITIONS = ("none", "front", "mid", "end")
Weights = dict[str, np.ndarray]


def mlp(x: np.ndarray, w: Weights, position: str) -> np.ndarray:
    """< Front > – fc layer – GELU – < Mid > – fc layer – < End >."""
    x = cb(x) if position == "front" else x
    z = x @ w["weight1"].T + w["bias1"]
    h = z * scipy.stats.norm.cdf(z)
    h = cb(h) if position == "mid" else h
    y = h @ w["weight2"].T + w["bias2"]
    return cb(y) if position == "end" else y


def slopes(x: np.ndarray, w: Weights, g: np.ndarray, position: str) -> Weights:
    """The gradients of ⟨g, mlp(x)⟩, one entry at a time."""
    everything = {**w, "inputs": x}
    found = {}
    for name, value in everything.items():
        slope = np.empty_like(value)
        for at in np.ndindex(value.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {**everything, name: value.copy()}
                moved[name][at] += step
                ends.append((g * mlp(moved["inputs"], moved, position)).sum())
            slope[at] = (ends[0] - ends[1]) / 2e-5
        found[name] = slope
    return found


def an_mlp(seed: int, n: int = 5, d: int = 3, hidden: int = 4) -> tuple[np.ndarray, Weights, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"weight1": (hidden, d), "bias1": (hidden,), "weight2": (d, hidden), "bias2": (d,)}
    return rng.normal(size=(n, d)), {k: rng.normal(size=s) for k, s in shapes.items()}, rng.normal(size=(n, d))


def gradients(x: np.ndarray, w: Weights, g: np.ndarray, position: str) -> Weights:
    found = theory.mlp_gradients(t(x), t(w["weight1"]), t(w["bias1"]), t(w["weight2"]), t(g), position)
    return {name: value.numpy() for name, value in found._asdict().items()}


def same(a: Weights, b: Weights, *names: str) -> bool:
    return all(np.allclose(a[name], b[name], atol=1e-10) for name in names or a)


WEIGHTS = ("weight1", "bias1", "weight2", "bias2")


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_the_slopes_of_the_loss(position: str, seed: int) -> None:
    x, w, g = an_mlp(seed)
    found, expected = gradients(x, w, g, position), slopes(x, w, g, position)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, atol=1e-7), name


@quick
@given(SEEDS)
def test_front_trains_the_weights_with_averaged_inputs(seed: int) -> None:
    """Case 1 as printed is wrong: the weights after CB receive gradients. None of them passes through the average."""
    x, w, g = an_mlp(seed)
    front = gradients(x, w, g, "front")
    assert all(np.abs(front[name]).max() > 1e-3 for name in WEIGHTS)
    assert same(front, gradients(cb(x), w, g, "none"), *WEIGHTS)
    assert np.allclose(front["inputs"], cb(gradients(cb(x), w, g, "none")["inputs"]))  # earlier layers: through it


@quick
@given(SEEDS)
def test_end_trains_the_weights_with_averaged_gradients(seed: int) -> None:
    """Case 2: the gradient of the output passes through uniform attention before it reaches the weights."""
    x, w, g = an_mlp(seed)
    end = gradients(x, w, g, "end")
    assert same(end, gradients(x, w, cb(g), "none"))
    assert not same(end, gradients(x, w, g, "none"), "weight1")


@quick
@given(SEEDS)
def test_mid_and_end_have_the_same_gradients(seed: int) -> None:
    """So gradients cannot explain why End has a higher top-5 than Mid in Table S6 (95.3 and 95.2 %)."""
    x, w, g = an_mlp(seed)
    assert same(gradients(x, w, g, "mid"), gradients(x, w, g, "end"))
    assert not same(gradients(x, w, g, "front"), gradients(x, w, g, "end"), "weight1")


def test_front_and_end_are_one_function_without_an_activation() -> None:
    """Of a single linear layer, the position before it gives the same outputs and gradients as the one after it."""
    x, w, _ = an_mlp(0)
    before, after = cb(x) @ w["weight1"].T, cb(x @ w["weight1"].T)
    assert np.allclose(before, after)
    upstream = np.random.default_rng(1).normal(size=before.shape)
    assert np.allclose(upstream.T @ cb(x), cb(upstream).T @ x)


# FLOPs: ViT-S, 12 blocks of 384 channels, 196 patches and the class token. Lines 140–149 and 155–164 of the text, in M.

S5 = {  # MLP, MSA, both
    "plain": ("0.9", "0.9", "1.8"),
    "gate": ("0.9", "0.9", "1.8"),
    "hybrid": ("1.8", "1.8", "3.6"),
}
S6 = {  # front, mid, end
    "plain": ("0.9", "3.6", "0.9"),
    "gate": ("0.9", "3.6", "0.9"),
    "hybrid": ("1.8", "7.3", "1.8"),
}


def millions(flops: int) -> str:
    return f"{flops / 1e6:.1f}"


@pytest.mark.parametrize("kind", S5)
def test_the_printed_flops(kind: str) -> None:
    vit_s = (kind, 197, 384, 12)
    assert S5[kind] == tuple(millions(theory.printed_flops(*vit_s, branches=k)) for k in (1, 1, 2))
    assert S6[kind] == tuple(millions(theory.printed_flops(*vit_s, ratio=k)) for k in (1, 4, 1))


def test_the_printed_flops_include_the_class_token() -> None:
    assert millions(theory.printed_flops("hybrid", 196, 384, 12, ratio=4)) == "7.2"  # printed: 7.3


def test_our_flops_are_a_multiple_of_the_printed_ones() -> None:
    """We count each addition and multiplication. The tables count one per token and channel, and two for the hybrid."""
    host = timm.create_model("deit_small_patch16_224", depth=2)
    for kind, ours in {"plain": 3, "gate": 2, "hybrid": 5}.items():
        for options, branches, ratio in (
            ("", 1, 1),
            ("branch=attn", 1, 1),
            ("branch=both", 2, 1),
            ("position=mid", 1, 4),
        ):
            plan = unsmooth.plan(host, f"context_broadcast(kind={kind}{', ' if options else ''}{options})")
            printed = theory.printed_flops(kind, 197, 384, 2, branches, ratio)
            assert plan.flops * theory.PRINTED_OPERATIONS[kind] == ours * printed


def test_the_printed_base_is_that_of_vit_ti() -> None:
    """S5 and S6 print 1260 M for ViT-S, S1 prints 4.6 G. The second one is right; the first one is near ViT-Ti's."""
    tiny, small = (
        count_operations(timm.create_model(f"deit_{size}_patch16_224")).parts["products"].multiply / 1e6
        for size in ("tiny", "small")
    )
    assert tiny == pytest.approx(1260, rel=0.01)
    assert small == pytest.approx(4600, rel=0.01)
