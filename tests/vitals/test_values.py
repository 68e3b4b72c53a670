"""Vitals of values and outputs of attention against their equations in plain NumPy, closed forms and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.vitals.test_maps import TOLERANCE, maps, received_and_sinks
from unsmooth.diagnosis import registry as vitals
from unsmooth.vitals.base import Undefined

Array = np.ndarray[Any, Any]
Parts = dict[str, Any]
KEYS = [key for key in vitals.list_vitals() if vitals.get(key).of in ("map_values", "values")]
NAN = math.nan


# The equations, for one head of one image


def cosine(a: Array, b: Array) -> float:
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def sink_value_norm(a: Array, v: Array) -> Parts:
    received, sinks = received_and_sinks(a)
    others = [j for j in range(len(v)) if j not in sinks]
    if not sinks or not others:
        return {"": NAN}
    own = sum(received[j] * np.linalg.norm(v[j]) for j in sinks) / sum(received[j] for j in sinks)
    return {"": own / np.mean([np.linalg.norm(v[j]) for j in others])}


def sink_output(a: Array, v: Array) -> Parts:
    _, sinks = received_and_sinks(a)
    if not sinks:
        return {"": NAN, "rank": NAN}
    own, rest = np.zeros((len(a), v.shape[1])), np.zeros((len(a), v.shape[1]))
    for i in range(len(a)):
        for j in range(len(v)):
            (own if j in sinks else rest)[i] += a[i, j] * v[j]
    written, kept = np.linalg.norm(own) ** 2, np.linalg.norm(rest) ** 2
    rank = np.linalg.norm(own + rest) ** 2 / np.linalg.norm(own + rest, 2) ** 2
    return {"": written / (written + kept), "rank": rank}


def output_value_cosine(a: Array, v: Array) -> Parts:
    return {"": np.mean([cosine(sum(a[i, j] * v[j] for j in range(len(v))), v[i]) for i in range(len(a))])}


def value_cosine(a: Array, v: Array) -> Parts:
    return {"": np.mean([cosine(v[i], v[j]) for i in range(len(v)) for j in range(i)])}


REFERENCES: dict[str, Callable[[Array, Array], Parts]] = {
    "sink_value_norm": sink_value_norm,
    "sink_output": sink_output,
    "output_value_cosine": output_value_cosine,
    "value_cosine": value_cosine,
}


def measured(key: str, a: Any, v: Any) -> Parts:
    given = (torch.as_tensor(a), torch.as_tensor(v))
    actual = vitals.get(key).measure(*(given if vitals.get(key).of == "map_values" else given[1:]))
    actual = actual if isinstance(actual, dict) else {"": actual}
    assert all(value.shape == given[1].shape[:2] for value in actual.values())
    return {part: value.double().numpy() for part, value in actual.items()}


def arguments(images: int, heads: int, n: int, m: int, seed: int) -> tuple[Array, Array]:
    """Maps whose sharper heads have a sink in the middle, and values of unequal norm and a common direction."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(images, heads, m, 5)) + 0.7
    v[:, :, m // 2] *= np.linspace(0.05, 4, heads)[:, None]
    return maps(images, heads, n, m, seed), v


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 4, 24, 24), (3, 2, 40, 40), (1, 3, 9, 12), (2, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("key", KEYS)
def test_each_vital_is_its_equation(key: str, shape: tuple[int, int, int, int], dtype: str) -> None:
    if key == "output_value_cosine" and shape[2] != shape[3]:
        shape = (*shape[:3], shape[2])
    given = [torch.as_tensor(x).to(getattr(torch, dtype)) for x in arguments(*shape, seed=1)]
    actual, exact = measured(key, *given), [x.double().numpy() for x in given]
    for image in range(shape[0]):
        for head in range(shape[1]):
            wanted = REFERENCES[key](*(x[image, head] for x in exact))
            assert actual.keys() == wanted.keys()
            for part, value in wanted.items():
                np.testing.assert_allclose(actual[part][image, head], value, *TOLERANCE[dtype], err_msg=part)


def test_the_heads_of_the_equations_have_sinks_and_some_have_none() -> None:
    values = measured("sink_value_norm", *arguments(2, 4, 24, 24, 1))[""]
    assert 0 < np.isnan(values).sum() < values.size


# Closed forms

UNIFORM, IDENTITY = np.full((6, 6), 1 / 6), np.eye(6)
FIRST = np.eye(6)[[0] * 6]
MOSTLY = 0.5 * FIRST + 0.5 * np.eye(6)
ONES, NONE_OF_FIRST = np.ones((6, 3)), np.ones((6, 3)) * (np.arange(6) > 0)[:, None]
CASES: dict[str, list[tuple[str, Array, Array, Parts]]] = {
    "sink_value_norm": [
        ("no sink", UNIFORM, ONES, {"": NAN}),
        ("equal values", FIRST, ONES, {"": 1.0}),
        ("a value of zero", FIRST, NONE_OF_FIRST, {"": 0.0}),
        ("a large value", FIRST, ONES + 3 * (np.arange(6) == 0)[:, None], {"": 4.0}),
    ],
    "sink_output": [
        ("no sink", IDENTITY, ONES, {"": NAN, "rank": NAN}),
        ("all is the sink's", FIRST, ONES, {"": 1.0, "rank": 1.0}),
        ("the sink adds nothing", MOSTLY, NONE_OF_FIRST, {"": 0.0}),
        ("orthogonal values", MOSTLY, np.eye(6), {"": (1 + 5 / 4) / (1 + 5 / 4 + 5 / 4)}),
        ("nothing is written", FIRST, NONE_OF_FIRST, {"": NAN, "rank": NAN}),
    ],
    "output_value_cosine": [
        ("identity", IDENTITY, np.eye(6), {"": 1.0}),
        ("equal values", UNIFORM, ONES, {"": 1.0}),
        ("a neighbour", np.roll(IDENTITY, 1, axis=1), np.eye(6), {"": 0.0}),
        ("uniform, orthogonal", UNIFORM, np.eye(6), {"": 1 / math.sqrt(6)}),
        ("the opposite", -IDENTITY, ONES, {"": -1.0}),
    ],
    "value_cosine": [
        ("equal", UNIFORM, ONES, {"": 1.0}),
        ("orthogonal", UNIFORM, np.eye(6), {"": 0.0}),
        ("opposite", np.ones((2, 2)) / 2, np.array([[1.0, 2], [-2, -4]]), {"": -1.0}),
        ("a zero value", UNIFORM, NONE_OF_FIRST, {"": 10 / 15}),
    ],
}


def closed_forms() -> Iterator[Any]:
    for key, cases in CASES.items():
        for name, a, v, wanted in cases:
            yield pytest.param(key, a, v, wanted, id=f"{key}: {name}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("key", "a", "v", "wanted"), closed_forms())
def test_closed_forms(key: str, a: Array, v: Array, wanted: Parts, dtype: type) -> None:
    values = measured(key, *(x[None, None].astype(dtype) for x in (a, v)))
    for part, value in wanted.items():
        np.testing.assert_allclose(values[part][0, 0], value, rtol=1e-6, atol=1e-6, err_msg=part)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "output_value_cosine"])
def test_one_key_is_undefined_with_a_reason(key: str) -> None:
    with pytest.raises(Undefined, match="at least two keys"):
        measured(key, np.ones((2, 3, 5, 1)), np.ones((2, 3, 1, 4)))


@pytest.mark.parametrize("key", KEYS)
def test_neither_the_order_of_keys_nor_the_basis_and_size_of_values_matter(key: str) -> None:
    a, v = arguments(2, 3, 24, 24, 3)
    order = np.random.default_rng(0).permutation(24)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    actual = measured(key, a[..., order, :][..., order], 7 * v[..., order, :] @ turn)
    for part, value in measured(key, a, v).items():
        np.testing.assert_allclose(actual[part], value, rtol=1e-7, err_msg=part)


def test_an_input_is_not_written_on() -> None:
    for key in KEYS:
        given = [torch.as_tensor(x) for x in arguments(2, 3, 12, 12, 1)]
        copies = [x.clone() for x in given]
        measured(key, *given)
        assert all(torch.equal(x, y) for x, y in zip(given, copies, strict=True)), key
