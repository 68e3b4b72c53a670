"""Vitals of tokens against their equations in plain NumPy and SciPy, closed forms, ranges and invariances."""

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
from scipy.spatial.distance import cosine as cosine_distance
from scipy.stats import ortho_group

from unsmooth.diagnosis import registry as vitals
from unsmooth.vitals.base import Undefined

Array = np.ndarray[Any, Any]
Parts = dict[str, Any]
# A vital of tokens sees x, and some of them what was there before it.
FEEDS = ("tokens", "growth", "change", "branches", "singular", "grid")
KEYS = [key for key in vitals.list_vitals() if vitals.get(key).of in FEEDS]
OF_CHANNELS = ("massive_activations", "outlier_channels")  # where the basis matters
TOLERANCE = {"float64": (1e-9, 1e-9), "float32": (2e-5, 2e-6), "bfloat16": (2e-5, 2e-6), "float16": (2e-5, 2e-6)}


# The equations, for one image


def cosine(a: Array, b: Array) -> float:
    size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / size if size else 0.0


def high(x: Array) -> Array:
    n = len(x)
    return (np.eye(n) - np.ones((n, n)) / n) @ x


def token_cosine(x: Array) -> Parts:
    pairs = [(i, j) for i in range(len(x)) for j in range(i + 1, len(x))]
    return {"": sum(abs(cosine(x[i], x[j])) for i, j in pairs) / len(pairs)}


def diversity(x: Array) -> Parts:
    rest = high(x)
    composite = math.sqrt(np.linalg.norm(rest, 1) * np.linalg.norm(rest, np.inf))
    return {"": np.linalg.norm(rest), "composite": composite}


def token_norm_outliers(x: Array) -> Parts:
    norms = np.array([np.linalg.norm(token) for token in x])
    median = np.median(norms)
    deviation = np.median(np.abs(norms - median))
    count = sum(float(norm > median + 10 * deviation) for norm in norms)
    return {"": count, "largest": norms.max(), "ratio": norms.max() / median}


def massive_activations(x: Array) -> Parts:
    entries = sorted(abs(v) for v in x.flatten())
    median = np.median(entries)
    massive = [(i, k) for i in range(len(x)) for k in range(x.shape[1]) if abs(x[i, k]) > max(100, 1000 * median)]
    channels = len({k for _, k in massive})
    return {"": entries[-1] / median, "largest": entries[-1], "count": len(massive), "channels": channels}


def int8(x: Array, scale: Any) -> Array:
    """Codes from −127 to 127 times the scale, entry by entry."""
    scales = np.broadcast_to(scale / 127, x.shape)
    rows = [[s * round(v / s) if s else 0.0 for v, s in zip(*pair, strict=True)]
            for pair in zip(x, scales, strict=True)]  # fmt: skip
    return np.array(rows)


def outlier_channels(x: Array) -> Parts:
    channels = np.array([max(abs(v) for v in column) for column in x.T])
    rest = [k for k, c in enumerate(channels) if c <= 10 * np.median(channels)]
    tokens = np.abs(x).max(axis=1, keepdims=True)

    def error(rounded: Array, kept: Any = slice(None)) -> float:
        return float(np.linalg.norm((x - rounded)[:, kept]) / np.linalg.norm(x[:, kept]))

    whole = int8(x, np.abs(x).max())
    return {
        "": channels.max() / np.median(channels), "count": len(channels) - len(rest), "int8": error(whole),
        "int8.token": error(int8(x, tokens)), "int8.channel": error(int8(x, channels)), "int8.rest": error(whole, rest),
    }  # fmt: skip


def grid_rayleigh(x: Array) -> Parts:
    rows, columns, channels = x.shape
    laplacian = np.zeros((rows * columns, rows * columns))
    for r in range(rows):
        for c in range(columns):
            for other_r, other_c in ((r + 1, c), (r, c + 1)):
                if other_r < rows and other_c < columns:
                    edge = np.zeros(rows * columns)
                    edge[r * columns + c], edge[other_r * columns + other_c] = 1, -1
                    laplacian += np.outer(edge, edge)
    flat = x.reshape(-1, channels)
    centred = flat - flat.mean(0)
    top = np.trace(flat.T @ laplacian @ flat)
    return {"": top / np.trace(flat.T @ flat), "centred": top / np.trace(centred.T @ centred)}


def block_influence(before: Array, after: Array) -> Parts:
    return {"": np.mean([cosine_distance(a, b) for a, b in zip(before, after, strict=True)])}


def effective_rank(s: Array) -> Parts:
    rank = math.exp(scipy.stats.entropy(s))  # which makes s sum to one
    return {"": rank, "share": rank / len(s)}


def log_condition(s: Array) -> Parts:
    k = math.ceil(0.9 * len(s) - 1e-12)
    floor = 1e-7 * s[0]
    return {"": math.log(s[0] / max(s[-1], floor)), "robust": math.log(s[0] / max(s[k - 1], floor))}


REFERENCES: dict[str, Callable[..., Parts]] = {
    "token_cosine": token_cosine,
    "diversity": diversity,
    "token_norm_outliers": token_norm_outliers,
    "high_frequency_ratio": lambda x: {"": np.linalg.norm(high(x)) / np.linalg.norm(x)},
    "high_frequency_gain": lambda x, first: {"": math.log(np.linalg.norm(high(x)) / np.linalg.norm(high(first)))},
    "block_influence": block_influence,
    "branch_ratio": lambda x, f: {"": math.sqrt(np.square(f).sum() / np.square(x).sum())},
    "effective_rank": effective_rank,
    "stable_rank": lambda s: {"": np.square(s).sum() / s.max() ** 2},
    "log_condition": log_condition,
    "grid_rayleigh": grid_rayleigh,
    "massive_activations": massive_activations,
    "outlier_channels": outlier_channels,
}


# What goes in


def tokens(images: int, n: int, d: int, seed: int) -> Array:
    """A common mean, a few strong directions, noise, and tokens of unequal size, one of them huge."""
    rng = np.random.default_rng(seed)
    strong = rng.normal(size=(images, n, 2)) @ rng.normal(size=(images, 2, d))
    x = rng.normal(size=(images, 1, d)) + strong + 0.3 * rng.normal(size=(images, n, d))
    x = x * rng.uniform(0.5, 2, size=(images, n, 1))
    x[:, n // 2] *= 40
    return x


def arguments(key: str, x: Array, before: Array) -> tuple[Array, ...]:
    """What the pass would give to a vital for tokens (B, n, d) that come from `before`."""
    of = vitals.get(key).of
    if of == "singular":
        return (np.stack([scipy.linalg.svdvals(one) for one in x]),)
    if of == "grid":
        rows = next(r for r in range(math.isqrt(x.shape[1]), 0, -1) if x.shape[1] % r == 0)
        return (x.reshape(len(x), rows, -1, x.shape[2]),)
    return {"tokens": (x,), "growth": (x, before), "change": (before, x), "branches": (before, x)}[of]


def measured(key: str, *given: Any) -> Parts:
    actual = vitals.get(key).measure(*(torch.as_tensor(a) for a in given))
    actual = actual if isinstance(actual, dict) else {"": actual}
    assert all(v.shape[0] == len(given[0]) and v.dtype in (torch.float32, torch.float64) for v in actual.values())
    return {part: value.double().numpy() for part, value in actual.items()}


def compare(key: str, actual: Parts, given: tuple[Array, ...], rtol: float, atol: float) -> None:
    wanted = [REFERENCES[key](*one) for one in zip(*given, strict=True)]
    assert actual.keys() == wanted[0].keys()
    for part, values in actual.items():
        expected = np.array([image[part] for image in wanted])
        np.testing.assert_allclose(values, expected, rtol=rtol, atol=atol, err_msg=f"{key} {part}")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 17, 48), (2, 16, 8), (4, 6, 30), (1, 2, 5), (2, 9, 1)], ids=str)
@pytest.mark.parametrize("key", KEYS)
def test_each_vital_is_its_equation(key: str, shape: tuple[int, int, int], dtype: str) -> None:
    """Also for half precision: what comes in is rounded, what is made of it is not."""
    x, before = tokens(*shape, seed=1), tokens(*shape, seed=2)
    given = tuple(torch.as_tensor(a).to(getattr(torch, dtype)) for a in arguments(key, x, before))
    compare(key, measured(key, *given), tuple(a.double().numpy() for a in given), *TOLERANCE[dtype])


# Closed forms

E = np.eye(4)[None]  # four orthogonal tokens
EQUAL = np.tile([1.0, -2.0, 3.0], (2, 5, 1))
CHESS = np.where(np.indices((6, 6)).sum(0) % 2, -1.0, 1.0)[None, :, :, None]
STRIPES = np.where(np.arange(6) % 2, -1.0, 1.0)[None, :, None, None] * np.ones((1, 6, 6, 1))
ZERO = np.zeros((1, 3, 4))
MASSIVE = np.ones((1, 5, 7))  # two tokens with a huge entry in one channel
MASSIVE[0, 1:3, 4] = (3000.0, -2000.0)
NAN = float("nan")
# For each vital: what goes in, and what comes out of the first image.
CASES: dict[str, list[tuple[str, tuple[Array, ...], Parts]]] = {
    "token_cosine": [
        ("equal", (EQUAL,), {"": 1.0}),
        ("opposite", (np.array([[[1.0, 1], [-2, -2]]]),), {"": 1.0}),
        ("orthogonal", (E,), {"": 0.0}),
        ("45 degrees", (np.array([[[1.0, 0], [1, 1]]]),), {"": math.sqrt(0.5)}),
        ("a zero token is orthogonal", (np.array([[[1.0, 0], [0, 0], [1, 0]]]),), {"": 1 / 3}),
        ("all zero", (ZERO,), {"": 0.0}),
    ],
    "diversity": [
        ("equal", (EQUAL,), {"": 0.0, "composite": 0.0}),
        ("orthogonal", (E,), {"": math.sqrt(3), "composite": 1.5}),
        ("all zero", (ZERO,), {"": 0.0, "composite": 0.0}),
    ],
    "high_frequency_ratio": [
        ("equal", (EQUAL,), {"": 0.0}),
        ("mean zero", (np.array([[[1.0, 2], [-1, -2]]]),), {"": 1.0}),
        ("orthogonal", (E,), {"": math.sqrt(3 / 4)}),
        ("all zero", (ZERO,), {"": NAN}),
    ],
    "high_frequency_gain": [
        ("as before", (E, E), {"": 0.0}),
        ("half of it, on another mean", (E / 2 + 7, E), {"": -math.log(2)}),
        ("equal before", (E[:, :, :3], np.ones((1, 4, 3))), {"": math.inf}),
    ],
    "block_influence": [
        ("other sizes", (E, 3 * E), {"": 0.0}),
        ("right angle", (E, np.roll(E, 1, axis=1)), {"": 1.0}),
        ("turned about", (E, -E), {"": 2.0}),
        ("a zero token", (E, E * np.array([0, 1, 1, 1.0])[:, None]), {"": 0.25}),
    ],
    "branch_ratio": [
        ("nothing", (E, 0 * E), {"": 0.0}),
        ("three times", (E, -3 * E), {"": 3.0}),
        ("no stream", (0 * E, E), {"": math.inf}),
    ],
    "effective_rank": [
        ("one direction", (np.array([[5.0, 0, 0]]),), {"": 1.0, "share": 1 / 3}),
        ("all alike", (np.full((1, 7), 2.0),), {"": 7.0, "share": 1.0}),
        ("all zero", (np.zeros((1, 3)),), {"": NAN, "share": NAN}),
    ],
    "stable_rank": [
        ("one direction", (np.array([[5.0, 0, 0]]),), {"": 1.0}),
        ("all alike", (np.full((1, 7), 2.0),), {"": 7.0}),
        ("two", (np.array([[2.0, 1, 0]]),), {"": 1.25}),
        ("all zero", (np.zeros((1, 3)),), {"": NAN}),
    ],
    "log_condition": [
        ("all alike", (np.full((1, 7), 2.0),), {"": 0.0, "robust": 0.0}),
        ("one unused direction", (np.array([[math.e, *[1.0] * 8, 0]]),), {"": 7 * math.log(10), "robust": 1.0}),
        ("one value", (np.array([[3.0]]),), {"": 0.0, "robust": 0.0}),
        ("all zero", (np.zeros((1, 3)),), {"": NAN, "robust": NAN}),
    ],
    "grid_rayleigh": [
        ("equal", (np.ones((1, 3, 4, 2)),), {"": 0.0}),
        ("chessboard: 60 edges of 4, 36 patches", (CHESS,), {"": 60 * 4 / 36, "centred": 60 * 4 / 36}),
        ("stripes: half of the edges", (STRIPES,), {"": 30 * 4 / 36, "centred": 30 * 4 / 36}),
        ("chessboard on a mean", (CHESS + 3,), {"": 60 * 4 / 360, "centred": 60 * 4 / 36}),
        ("two patches", (np.array([[[[1.0], [-1.0]]]]),), {"": 2.0, "centred": 2.0}),
        ("all zero", (np.zeros((1, 2, 2, 1)),), {"": NAN, "centred": NAN}),
    ],
    "massive_activations": [
        ("equal size", (CHESS[:, 0],), {"": 1.0, "largest": 1.0, "count": 0.0, "channels": 0.0}),
        ("two in one channel", (MASSIVE,), {"": 3000.0, "largest": 3000.0, "count": 2.0, "channels": 1.0}),
        ("large, but not above 100", (MASSIVE / 100,), {"": 3000.0, "largest": 30.0, "count": 0.0}),
        ("large, but so are the others", (100 * EQUAL,), {"count": 0.0}),
        ("all zero", (ZERO,), {"": NAN, "count": 0.0}),
    ],
    "outlier_channels": [
        ("equal size", (CHESS[:, 0],), {"": 1.0, "count": 0.0, "int8": 0.0, "int8.rest": 0.0}),
        ("one channel", (MASSIVE,), {"": 3000.0, "count": 1.0, "int8.rest": 1.0}),
        ("all zero", (ZERO,), {"": NAN, "int8": NAN}),
    ],
    "token_norm_outliers": [
        ("equal", (EQUAL,), {"": 0.0, "largest": math.sqrt(14), "ratio": 1.0}),
        ("orthogonal", (E,), {"": 0.0, "largest": 1.0, "ratio": 1.0}),
        ("one huge", (np.array([[[1.0], [-1], [1.1], [0.9], [50]]]),), {"": 1.0, "largest": 50.0, "ratio": 50.0}),
        ("wide spread", (np.array([[[1.0], [2], [3], [4], [13]]]),), {"": 0.0, "largest": 13.0, "ratio": 13 / 3}),
        ("two tokens", (np.array([[[1.0], [9]]]),), {"": 0.0, "largest": 9.0, "ratio": 9 / 5}),
        ("one token", (np.array([[[3.0, 4]]]),), {"": 0.0, "largest": 5.0, "ratio": 1.0}),
    ],
}


def closed_forms() -> Iterator[Any]:
    for key, cases in CASES.items():
        for name, inputs, wanted in cases:
            yield pytest.param(key, inputs, wanted, id=f"{key}: {name}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("key", "inputs", "wanted"), closed_forms())
def test_closed_forms(key: str, inputs: tuple[Array, ...], wanted: Parts, dtype: type) -> None:
    values = measured(key, *(a.astype(dtype) for a in inputs))
    for part, value in wanted.items():
        np.testing.assert_allclose(values[part][0], value, rtol=1e-6, atol=1e-6, err_msg=part)


@pytest.mark.parametrize(("key", "x"), [("token_cosine", np.ones((2, 1, 4))), ("grid_rayleigh", np.ones((2, 1, 1, 4)))])
def test_one_token_is_undefined_with_a_reason(key: str, x: Array) -> None:
    with pytest.raises(Undefined, match=r"at least two (tokens|patches)"):
        measured(key, x)


def test_an_input_is_not_written_on() -> None:
    for key in KEYS:
        given = [torch.as_tensor(a) for a in arguments(key, tokens(2, 6, 5, 1), tokens(2, 6, 5, 2))]
        copies = [a.clone() for a in given]
        vitals.get(key).measure(*given)
        assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True)), key


# Ranges and invariances, for whatever tokens come

SHAPES = st.tuples(st.integers(1, 3), st.integers(2, 20), st.integers(2, 16), st.integers(0, 10**6))
quick = settings(max_examples=20, derandomize=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("key", KEYS)
@quick
@given(shape=SHAPES, alike=st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3]), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_values_stay_in_their_range(key: str, dtype: type, shape: Any, alike: float, scale: float) -> None:
    """From tokens that are all but equal (or equal, where that has a value) to ones without a mean."""
    x, before = (scale * (alike * tokens(*shape[:3], seed=shape[3] + i) + 1).astype(dtype) for i in (0, 1))
    vital = vitals.get(key)
    actual = measured(key, *arguments(key, x, before))
    values = actual[""][~np.isnan(actual[""])]
    room = 1e-5 * max(1.0, abs(vital.high or 0))
    assert vital.low is None or (values >= vital.low - room).all()
    assert vital.high is None or (values <= vital.high + room).all()
    assert "share" not in actual or ((actual["share"] > 0) & (actual["share"] <= 1 + room)).all()


def same(key: str, actual: Parts, wanted: Parts, *left_out: str) -> None:
    for part in actual.keys() - set(left_out):
        np.testing.assert_allclose(actual[part], wanted[part], rtol=1e-7, atol=1e-7, err_msg=f"{key} {part}")


@pytest.mark.parametrize("key", [key for key in KEYS if key not in OF_CHANNELS])
@quick
@given(shape=SHAPES)
def test_the_basis_of_the_channels_does_not_matter(key: str, shape: Any) -> None:
    x, before = tokens(*shape), tokens(*shape[:3], seed=shape[3] + 1)
    turn = ortho_group.rvs(shape[2], random_state=shape[3])
    turned = measured(key, *arguments(key, x @ turn, before @ turn))
    same(key, turned, measured(key, *arguments(key, x, before)), "composite")  # norms of rows and columns are not


@pytest.mark.parametrize("key", [key for key in KEYS if key != "grid_rayleigh"])
@quick
@given(shape=SHAPES)
def test_the_order_of_the_tokens_does_not_matter(key: str, shape: Any) -> None:
    x, before = tokens(*shape), tokens(*shape[:3], seed=shape[3] + 1)
    order = np.random.default_rng(shape[3]).permutation(shape[1])
    shuffled = measured(key, *arguments(key, x[:, order], before[:, order]))
    same(key, shuffled, measured(key, *arguments(key, x, before)))


def test_the_order_of_the_tokens_matters_on_a_grid() -> None:
    x = tokens(1, 12, 4, 0).reshape(1, 3, 4, 4)
    assert abs(measured("grid_rayleigh", x)[""] - measured("grid_rayleigh", x[:, [1, 0, 2]])[""]) > 1e-3


@pytest.mark.parametrize("key", KEYS)
@quick
@given(shape=SHAPES, scale=st.sampled_from([1e-3, 0.5, 7.0, 1e5]))
def test_the_size_of_the_tokens_matters_only_where_it_is_meant(key: str, shape: Any, scale: float) -> None:
    x, before = tokens(*shape), tokens(*shape[:3], seed=shape[3] + 1)
    wanted = measured(key, *arguments(key, x, before))
    if key in ("diversity", "branch_ratio"):
        wanted = {part: scale * value for part, value in wanted.items()}
    elif key == "high_frequency_gain":
        wanted = {"": wanted[""] + math.log(scale)}
    elif key in ("token_norm_outliers", "massive_activations"):
        wanted["largest"] = scale * wanted["largest"]
    same(key, measured(key, *arguments(key, scale * x, before)), wanted)


@quick
@given(shape=SHAPES)
def test_the_mean_token_is_the_nearest(shape: Any) -> None:
    """Diversity is a minimum over z: no other z comes nearer in the Frobenius norm."""
    x = tokens(*shape)
    least = measured("diversity", x)[""]
    other = x.mean(1, keepdims=True) + 0.1 * np.random.default_rng(shape[3]).normal(size=(1, 1, shape[2]))
    assert (np.linalg.norm(x - other, axis=(1, 2)) > least).all()
