"""Vitals of attention maps against their equations in plain NumPy and SciPy, closed forms, ranges and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from unsmooth.diagnosis import registry as vitals
from unsmooth.hosts.token_layout import distances, grid_of
from unsmooth.vitals.base import Undefined

Array = np.ndarray[Any, Any]
Parts = dict[str, Any]
FEEDS = ("map", "scores", "map_singular", "map_grid")
KEYS = [key for key in vitals.list_vitals() if vitals.get(key).of in FEEDS]
SQUARE = ("attention_spectrum", "attention_asymmetry", "attention_distance", "mixing_rate")
OF_SINGULAR = ("equivalent_rank", "spectral_gap")
ROUGH = {"mixing_rate": 1e-2}  # found by squaring, to one part in a hundred
SIZE = (40, 60)  # of the image whose patches a map compares, in pixels
TOLERANCE = {"float64": (1e-8, 1e-9), "float32": (2e-5, 2e-6), "bfloat16": (2e-5, 2e-6), "float16": (2e-5, 2e-6)}


# The equations, for one head of one image


def as_distributions(a: Array) -> Array:
    a = np.abs(a)
    return np.stack([row / row.sum() for row in a])


def attention_cosine(a: Array) -> Parts:
    total, pairs = 0.0, 0
    for i in range(a.shape[1]):
        for j in range(i + 1, a.shape[1]):
            size = np.linalg.norm(a[:, i]) * np.linalg.norm(a[:, j])
            total += abs(a[:, i] @ a[:, j]) / size if size else 0.0
            pairs += 1
    return {"": total / pairs}


def attention_entropy(a: Array) -> Parts:
    rows = as_distributions(a)
    entropy = np.mean([-sum(p * math.log(p) for p in row if p > 0) for row in rows])
    parts = {"": entropy, "share": entropy / math.log(a.shape[1])}
    if a.shape[0] == a.shape[1]:
        others = [np.delete(row, i) for i, row in enumerate(rows)]
        parts["others"] = np.mean([scipy.stats.entropy(row) if row.sum() > 1e-12 else 0.0 for row in others])
    return parts


def attention_spectrum(a: Array) -> Parts:
    n = len(a)
    fourier = scipy.linalg.dft(n, scale="sqrtn")
    norms = np.linalg.norm(fourier @ a @ np.linalg.inv(fourier), axis=1)
    return {"": math.sqrt(sum(norms[1:] ** 2)) / np.linalg.norm(norms), "curve": norms[: n // 2 + 1]}


def attention_asymmetry(a: Array) -> Parts:
    values = scipy.linalg.eigvalsh((a + a.T) / 2)
    negative = sum(-v for v in values if v < 0) / sum(abs(values))
    skew, rest = np.linalg.norm(a - a.T) / 2, math.sqrt(sum(a[i, j] ** 2 for i, j in np.ndindex(a.shape) if i != j))
    return {"": skew / np.linalg.norm(a), "off_diagonal": skew / rest, "negative": negative}


def query_sensitivity(a: Array) -> Parts:
    rows = as_distributions(a)
    return {"": np.mean([jensenshannon(row, rows.mean(0)) ** 2 for row in rows])}  # SciPy gives the root


def equivalent_rank(s: Array) -> Parts:
    curve = [sum(s[: r + 1]) / sum(s) for r in range(len(s))]
    rank = next(r + 1 for r, share in enumerate(curve) if share >= 0.9 - 1e-9)
    return {"": rank, "share": rank / len(s), "cumulative": np.array(curve)}


def pixels_between(patches: int, size: tuple[int, int]) -> Array:
    """Distances between patch centres, by hand: rows and columns as near to the image's shape as they divide."""
    rows = next(r for r in range(patches, 0, -1) if patches % r == 0 and r * r * size[1] <= patches * size[0])
    columns = patches // rows
    centres = [((r + 0.5) * size[0] / rows, (c + 0.5) * size[1] / columns) for r in range(rows) for c in range(columns)]
    return np.array([[math.dist(a, b) for b in centres] for a in centres])


def attention_distance(a: Array) -> Parts:
    far = pixels_between(len(a), SIZE)
    rows = as_distributions(a)
    return {"": np.mean([sum(rows[i, j] * far[i, j] for j in range(len(a))) for i in range(len(a))])}


def received_and_sinks(a: Array) -> tuple[list[float], list[int]]:
    """The attention that each key receives, and the keys with ten times the uniform share or 0.3 of all."""
    n, m = a.shape
    rows = as_distributions(a)
    received = [sum(rows[i, j] for i in range(n)) / n for j in range(m)]
    bound = max(2 / m, min(0.3, 10 / m))
    return received, [j for j in range(m) if received[j] >= bound - 1e-9]


def attention_sink(a: Array) -> Parts:
    received, sinks = received_and_sinks(a)
    return {"": sum(received[j] for j in sinks), "count": len(sinks), "largest": max(received)}


def mixing_rate(a: Array) -> Parts:
    n = len(a)
    rate = max(abs(np.linalg.eigvals((np.eye(n) - np.ones((n, n)) / n) @ a)))  # on tokens without their mean
    tau = max(abs(a[i] - a[j]).sum() / 2 for i in range(n) for j in range(n))
    return {"": rate, "coefficient": tau, "coefficient.measured": rate}


REFERENCES: dict[str, Callable[[Array], Parts]] = {
    "attention_cosine": attention_cosine,
    "attention_distance": attention_distance,
    "attention_entropy": attention_entropy,
    "attention_sink": attention_sink,
    "attention_spectrum": attention_spectrum,
    "attention_asymmetry": attention_asymmetry,
    "equivalent_rank": equivalent_rank,
    "max_logit": lambda p: {"": max(abs(v) for v in p.flatten() if not math.isinf(v))},
    "mixing_rate": mixing_rate,
    "query_sensitivity": query_sensitivity,
    "spectral_gap": lambda s: {"": (s[0] - s[1]) / s[0], "ratio": s[0] / s[1]},
}


# What goes in


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def logits(images: int, heads: int, n: int, m: int, seed: int) -> Array:
    """Some heads flat, some sharp; one key that every query likes."""
    rng = np.random.default_rng(seed)
    sharp = np.linspace(0.3, 6, heads).reshape(1, -1, 1, 1)
    return sharp * (rng.normal(size=(images, heads, n, m)) + 2 * (np.arange(m) == m // 2))


def maps(images: int, heads: int, n: int, m: int, seed: int, omega: float = 0.0) -> Array:
    """Maps of softmax; with ω the effective ones of AttnScale, which have entries below zero."""
    a = softmax(logits(images, heads, n, m, seed))
    return 1 / m + (1 + omega) * (a - 1 / m)


def arguments(key: str, shape: tuple[int, int, int, int], seed: int, omega: float) -> Array:
    images, heads, n, m = shape
    if key in SQUARE:
        m = n
    if key == "max_logit":
        return logits(images, heads, n, m, seed)
    a = maps(images, heads, n, m, seed, omega)
    return scipy.linalg.svdvals(a) if key in OF_SINGULAR else a


def measured(key: str, given: Any) -> Parts:
    given = torch.as_tensor(given)
    grid = grid_of(given.shape[-1], SIZE)
    extra = (distances(grid, SIZE),) if key == "attention_distance" and grid else ()
    actual = vitals.get(key).measure(given, *extra)
    actual = actual if isinstance(actual, dict) else {"": actual}
    for value in actual.values():
        assert value.shape[:2] == given.shape[:2]
        assert value.dtype in (torch.float32, torch.float64)
    return {part: value.double().numpy() for part, value in actual.items()}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("omega", [0.0, 1.5, -0.4], ids=["softmax", "below zero", "smoothed"])
@pytest.mark.parametrize("shape", [(2, 3, 24, 24), (3, 2, 6, 15), (1, 4, 24, 6), (2, 1, 6, 2)], ids=str)
@pytest.mark.parametrize("key", KEYS)
def test_each_vital_is_its_equation(key: str, shape: tuple[int, int, int, int], omega: float, dtype: str) -> None:
    """Also for half precision, where rows no longer sum to one: what comes in is rounded, what is made of it not."""
    given = torch.as_tensor(arguments(key, shape, 1, omega)).to(getattr(torch, dtype))
    actual, exact = measured(key, given), given.double().numpy()
    for image in range(shape[0]):
        for head in range(shape[1]):
            wanted = REFERENCES[key](exact[image, head])
            assert actual.keys() == wanted.keys()
            for part, value in wanted.items():
                rtol, atol = TOLERANCE[dtype]
                rtol = ROUGH.get(key, rtol)
                np.testing.assert_allclose(actual[part][image, head], value, rtol, atol, err_msg=f"{key} {part}")


# Closed forms


def one(a: Any) -> Array:
    return np.asarray(a, dtype=float)[None, None]


UNIFORM, IDENTITY = one(np.full((6, 6), 1 / 6)), one(np.eye(6))
SHIFT = one(np.roll(np.eye(6), 1, axis=1))  # each query looks at its neighbour
FIRST = one(np.eye(6)[[0] * 6])  # each query looks at the first key
FAR = pixels_between(6, SIZE)
ROOT = math.sqrt(5 / 6)
# For each vital: what goes in, and what comes out.
CASES: dict[str, list[tuple[str, Array, Parts]]] = {
    "attention_cosine": [
        ("uniform", UNIFORM, {"": 1.0}),
        ("identity", IDENTITY, {"": 0.0}),
        ("all look at one key: the other columns are zero", FIRST, {"": 0.0}),
        ("equal rows", one(np.tile([0.7, 0.2, 0.1], (4, 1))), {"": 1.0}),
        ("opposite columns", one([[1.0, -1], [2, -2]]), {"": 1.0}),
        ("one query", one([[0.5, 0.5]]), {"": 1.0}),
        ("a zero column", one([[0.5, 0.5, 0], [0.5, 0.5, 0]]), {"": 1 / 3}),
        ("what a sharp softmax leaves", one([[1.0, 1e-30], [1.0, 1e-30]]), {"": 1.0}),
    ],
    "attention_distance": [
        ("identity", IDENTITY, {"": 0.0}),
        ("uniform", UNIFORM, {"": FAR.mean()}),
        ("all look at the first patch", FIRST, {"": FAR[0].mean()}),
        ("rows that sum to two", 2 * UNIFORM, {"": FAR.mean()}),
    ],
    "attention_entropy": [
        ("uniform", UNIFORM, {"": math.log(6), "share": 1.0, "others": math.log(5)}),
        ("identity", IDENTITY, {"": 0.0, "share": 0.0, "others": 0.0}),
        ("uniform with the identity", (UNIFORM + IDENTITY) / 2, {"others": math.log(5)}),
        ("shift", SHIFT, {"": 0.0, "others": 0.0}),
        ("rows that sum to two", 2 * UNIFORM, {"": math.log(6), "share": 1.0}),
        ("entries below zero", one([[1.5, -0.5], [-0.5, 1.5]]), {"": 2 * math.log(2) - 0.75 * math.log(3)}),
    ],
    "attention_sink": [
        ("uniform", UNIFORM, {"": 0.0, "count": 0.0, "largest": 1 / 6}),
        ("identity", IDENTITY, {"": 0.0, "count": 0.0}),
        ("all look at one key", FIRST, {"": 1.0, "count": 1.0, "largest": 1.0}),
        ("half of the attention", (FIRST + UNIFORM) / 2, {"": 7 / 12, "count": 1.0, "largest": 7 / 12}),
        ("two sinks", one(np.tile([0.4, 0.4, 0.1, 0.05, 0.05], (3, 1))), {"": 0.8, "count": 2.0}),
        ("ten times the uniform share", one(np.tile([0.11, *[0.89 / 99] * 99], (2, 1))), {"": 0.11, "count": 1.0}),
    ],
    "attention_spectrum": [
        ("uniform", UNIFORM, {"": 0.0, "curve": [1.0, 0, 0, 0]}),
        ("identity", IDENTITY, {"": ROOT, "curve": [1.0] * 4}),
        ("shift", SHIFT, {"": ROOT, "curve": [1.0] * 4}),
        ("one token", one([[1.0]]), {"": 0.0, "curve": [1.0]}),
        ("rows of mean zero", one([[1.0, -1], [-1, 1]]), {"": 1.0, "curve": [0.0, 2.0]}),
    ],
    "attention_asymmetry": [
        ("uniform", UNIFORM, {"": 0.0, "off_diagonal": 0.0, "negative": 0.0}),
        ("identity", IDENTITY, {"": 0.0, "off_diagonal": 0.0, "negative": 0.0}),
        ("shift with the identity", SHIFT + IDENTITY, {"": 0.5, "off_diagonal": math.sqrt(0.5), "negative": 0.0}),
        ("a swap has one eigenvalue of each sign", one([[0.0, 1], [1, 0]]), {"": 0.0, "negative": 0.5}),
        ("skew", one([[0.0, 1], [-1, 0]]), {"": 1.0}),
        ("shift", SHIFT, {"": math.sqrt(0.5), "off_diagonal": math.sqrt(0.5), "negative": 0.5}),
    ],
    "equivalent_rank": [
        ("uniform", one([1.0, 0, 0, 0, 0, 0]), {"": 1.0, "share": 1 / 6, "cumulative": [1.0] * 6}),
        ("identity", one([1.0] * 6), {"": 6.0, "cumulative": np.arange(1, 7) / 6}),
        ("identity of ten", one([1.0] * 10), {"": 9.0, "share": 0.9}),
        ("identity of twenty", one([1.0] * 20), {"": 18.0, "share": 0.9}),
    ],
    "max_logit": [
        ("nothing", one([[0.0, 0]]), {"": 0.0}),
        ("negative", one([[1.0, -7], [2, 3]]), {"": 7.0}),
        ("masked", one([[1.0, -math.inf], [-2, -math.inf]]), {"": 2.0}),
        ("all masked", one([[-math.inf, -math.inf]]), {"": 0.0}),
    ],
    "mixing_rate": [
        ("uniform", UNIFORM, {"": 0.0, "coefficient": 0.0}),
        ("identity", IDENTITY, {"": 1.0, "coefficient": 1.0}),
        ("shift: the roots of one", SHIFT, {"": 1.0, "coefficient": 1.0}),
        ("all look at one key", FIRST, {"": 0.0, "coefficient": 0.0}),
        ("two states", one([[0.9, 0.1], [0.4, 0.6]]), {"": 0.5, "coefficient": 0.5, "coefficient.measured": 0.5}),
        ("a swap", one([[0.0, 1], [1, 0]]), {"": 1.0, "coefficient": 1.0}),
    ],
    "query_sensitivity": [
        ("uniform", UNIFORM, {"": 0.0}),
        ("equal rows", FIRST, {"": 0.0}),
        ("two queries that have no key in common", one(np.eye(2)), {"": 1.5 * math.log(2) - 0.75 * math.log(3)}),
        ("one query", one([[0.3, 0.7]]), {"": 0.0}),
    ],
    "spectral_gap": [
        ("uniform", one([1.0, 0, 0]), {"": 1.0, "ratio": math.inf}),
        ("identity", one([1.0] * 6), {"": 0.0, "ratio": 1.0}),
        ("half", one([2.0, 1, 0.5]), {"": 0.5, "ratio": 2.0}),
    ],
}


def closed_forms() -> Iterator[Any]:
    for key, cases in CASES.items():
        for name, a, wanted in cases:
            yield pytest.param(key, a, wanted, id=f"{key}: {name}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("key", "a", "wanted"), closed_forms())
def test_closed_forms(key: str, a: Array, wanted: Parts, dtype: type) -> None:
    values = measured(key, a.astype(dtype))
    for part, value in wanted.items():
        np.testing.assert_allclose(values[part][0, 0], value, rtol=ROUGH.get(key, 1e-6), atol=1e-6, err_msg=part)


@pytest.mark.parametrize(("key", "part"), [("attention_entropy", "others"), ("attention_asymmetry", "off_diagonal")])
def test_parts_that_an_added_identity_does_not_change(key: str, part: str) -> None:
    """Effective maps of adder attention are H + I. Figures of H are read from these parts."""
    a = maps(2, 3, 24, 24, seed=3)
    plain, treated = measured(key, a), measured(key, a + np.eye(24))
    np.testing.assert_allclose(treated[part], plain[part], rtol=1e-9)
    assert (abs(treated[""] - plain[""]) > 0.05).all()


@pytest.mark.parametrize("key", ["attention_cosine", "attention_entropy", "attention_sink"])
def test_one_key_is_undefined_with_a_reason(key: str) -> None:
    with pytest.raises(Undefined, match="at least two keys"):
        measured(key, np.ones((2, 3, 5, 1)))


@pytest.mark.parametrize("patches", [6, 24, 54])
def test_pixels_between_patches(patches: int) -> None:
    grid = grid_of(patches, SIZE)
    assert grid is not None
    np.testing.assert_allclose(distances(grid, SIZE), pixels_between(patches, SIZE), atol=1e-5)


def test_tokens_that_fill_no_grid_are_on_none() -> None:
    assert grid_of(17, (32, 32)) is None
    assert grid_of(16, (32, 32)) == (4, 4)
    assert grid_of(8, (32, 64)) == (2, 4)
    assert grid_of(8, (64, 32)) == (4, 2)


def test_an_input_is_not_written_on() -> None:
    for key in KEYS:
        a = torch.as_tensor(arguments(key, (2, 2, 6, 6), 1, 1.5))
        before = a.clone()
        measured(key, a)
        assert torch.equal(a, before), key


# Ranges and invariances, for whatever maps come

SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from([2, 6, 24]), st.integers(2, 16))
quick = settings(max_examples=15, derandomize=True)
seeds, omegas = st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 5.0, -0.9])


@pytest.mark.parametrize("key", KEYS)
@quick
@given(shape=SHAPES, seed=seeds, omega=omegas, half=st.booleans())
def test_values_stay_in_their_range(key: str, shape: Any, seed: int, omega: float, half: bool) -> None:
    given_ = torch.as_tensor(arguments(key, shape, seed, omega))
    actual, vital = measured(key, given_.bfloat16() if half else given_), vitals.get(key)
    assert vital.low is None or (actual[""] >= vital.low - 1e-6).all()
    assert vital.high is None or (actual[""] <= vital.high + 1e-6).all()
    for part in {"share", "negative"} & actual.keys():
        assert ((actual[part] >= 0) & (actual[part] <= 1 + 1e-6)).all()


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("attention_distance", *OF_SINGULAR)])
@quick
@given(shape=SHAPES, seed=seeds, omega=omegas)
def test_the_order_of_the_tokens_does_not_matter(key: str, shape: Any, seed: int, omega: float) -> None:
    """Queries and keys in one new order: of the spectrum, the value is a share that no order changes."""
    a = arguments(key, shape, seed, omega)
    rng = np.random.default_rng(seed)
    queries = rng.permutation(a.shape[-2])
    keys = queries if key in SQUARE else rng.permutation(a.shape[-1])
    actual, wanted = measured(key, a[..., queries, :][..., keys]), measured(key, a)
    for part in actual.keys() - {"curve", "others"}:
        np.testing.assert_allclose(actual[part], wanted[part], rtol=1e-7, atol=1e-8, err_msg=part)
    if "others" in wanted:  # of a square map: its diagonal stays one if queries and keys keep the same order
        actual = measured(key, a[..., queries, :][..., queries])
        np.testing.assert_allclose(actual["others"], wanted["others"], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "max_logit"])
@quick
@given(shape=SHAPES, seed=seeds, omega=omegas, scale=st.sampled_from([0.01, 2.0, 300.0]))
def test_the_size_of_a_map_does_not_matter(key: str, shape: Any, seed: int, omega: float, scale: float) -> None:
    a = arguments(key, shape, seed, omega)
    actual, wanted = measured(key, scale * a), measured(key, a)
    for part, value in actual.items():
        factor = scale if part == "curve" or key == "mixing_rate" else 1
        np.testing.assert_allclose(value, factor * wanted[part], rtol=1e-7, atol=1e-8, err_msg=part)


@quick
@given(shape=SHAPES, seed=seeds, hard=st.booleans())
def test_a_map_without_negative_entries_responds_most_to_frequency_zero(shape: Any, seed: int, hard: bool) -> None:
    """|Σ_q ω^q a_qk| ≤ Σ_q a_qk for every key k. With negative entries (AttnScale), other frequencies may win."""
    a = maps(shape[0], shape[1], shape[2], shape[2], seed)
    a = (a == a.max(-1, keepdims=True)).astype(float) if hard else a
    curve = measured("attention_spectrum", a)["curve"]
    assert (curve <= curve[..., :1] * (1 + 1e-9)).all()


def test_attn_scale_can_make_a_high_pass_filter() -> None:
    a = 0.9 / 6 + 0.1 * SHIFT
    curve = measured("attention_spectrum", 1 / 6 + 20 * (a - 1 / 6))["curve"][0, 0]
    assert curve[0] == pytest.approx(1)
    assert (curve[1:] > 1.5).all()


@quick
@given(shape=SHAPES, seed=seeds)
def test_the_mixing_rate_is_the_second_eigenvalue_and_below_its_bound(shape: Any, seed: int) -> None:
    """Of maps whose rows sum to one, whose first eigenvalue is one."""
    a = maps(shape[0], shape[1], shape[2], shape[2], seed)
    values = measured("mixing_rate", a)
    np.testing.assert_allclose(values[""], np.sort(np.abs(np.linalg.eigvals(a)))[..., -2], rtol=1e-2)
    assert (values[""] <= values["coefficient"] * 1.01).all()


@quick
@given(shape=SHAPES, seed=seeds)
def test_adding_the_identity_raises_the_equivalent_rank_of_a_psd_map(shape: Any, seed: int) -> None:
    """Proposition 1 of adder attention, where it holds: singular values of A + I are those of A, plus one."""
    root = maps(shape[0], shape[1], shape[2], shape[2], seed)
    plain = scipy.linalg.svdvals(root @ root.swapaxes(-1, -2))
    assert (measured("equivalent_rank", plain + 1)[""] >= measured("equivalent_rank", plain)[""]).all()
