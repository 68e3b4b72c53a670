"""The registry of vitals, and the vitals that compare blocks or images."""

from __future__ import annotations

import ast
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

import unsmooth.diagnosis.bounds
import unsmooth.vitals
from tests.vitals import test_maps as of_maps
from tests.vitals import test_tokens as of_tokens
from tests.vitals import test_values as of_values
from unsmooth.diagnosis import registry as vitals
from unsmooth.errors import UnsmoothError
from unsmooth.vitals.base import FAMILIES, Collector, Undefined
from unsmooth.vitals.layer_cka import unbiased_hsic

Array = np.ndarray[Any, Any]
OF_BLOCKS = ("depth_probe", "layer_cka", "similar_blocks")
EVERY = vitals.list_vitals()
OF_MODELS = [key for key in EVERY if vitals.get(key).of == "model"]  # bounds of theory, which need a whole model
DTYPES = ("float64", "float32", "bfloat16", "float16")
quick = settings(max_examples=15, derandomize=True)


# The registry


def test_every_vital_has_its_equation_and_its_closed_forms() -> None:
    """Whoever adds a vital adds a reference and cases of known value to one of the four files."""
    for table in ("REFERENCES", "CASES"):
        covered = [
            *getattr(of_tokens, table),
            *getattr(of_maps, table),
            *getattr(of_values, table),
            *OF_BLOCKS,
            *OF_MODELS,
        ]
        assert sorted(covered) == EVERY, table


@pytest.mark.parametrize("key", OF_MODELS)
def test_every_vital_of_models_has_a_test_that_names_it(key: str) -> None:
    assert any(key in path.read_text() for path in (Path(__file__).parents[1] / "diagnosis").glob("test_*.py"))


@pytest.mark.parametrize("key", EVERY)
def test_a_vital_says_what_it_is(key: str) -> None:
    vital = vitals.get(key)
    file = Path(str(sys.modules[vital.measure.__module__].__file__))
    assert vital.key == key == file.stem
    assert all(text.strip() for text in (vital.title, vital.formula, vital.reading, vital.help))
    assert vital.help == (ast.get_docstring(ast.parse(file.read_text())) or "").strip()
    assert vital.family in FAMILIES
    assert vital.low is None or vital.high is None or vital.low < vital.high
    assert vital.main in {"", *(name for name, _ in vital.parts)}
    assert all(name and meaning for name, meaning in vital.parts)
    assert vital.sample is None or vital.sample > 0


def test_a_file_is_a_vital() -> None:
    folders = (unsmooth.vitals.__path__[0], unsmooth.diagnosis.bounds.__path__[0])
    files = {path.stem for folder in folders for path in Path(folder).glob("*.py")} - {"__init__", "base", "ablation"}
    assert sorted(files) == EVERY
    assert len({vitals.get(key).title for key in EVERY}) == len(EVERY), "two vitals of one title"


@pytest.mark.parametrize("key", [key for key in EVERY if key not in (*OF_BLOCKS, *OF_MODELS)])
def test_the_parts_of_a_vital_are_declared(key: str) -> None:
    if key in of_tokens.KEYS:
        x = of_tokens.tokens(2, 6, 5, 0)
        values = of_tokens.measured(key, *of_tokens.arguments(key, x, x + 1))
    elif key in of_values.KEYS:
        values = of_values.measured(key, *of_values.arguments(1, 2, 6, 6, 0))
    else:
        values = of_maps.measured(key, of_maps.arguments(key, (1, 2, 6, 6), 0, 0.0))
    assert values.keys() - {""} <= {name for name, _ in vitals.get(key).parts}
    assert "" in values


def test_vitals_are_chosen_by_name() -> None:
    assert [v.key for v in vitals.select("token_cosine, diversity")] == ["token_cosine", "diversity"]
    assert [v.key for v in vitals.select(["diversity", "token_cosine", "diversity"])] == ["diversity", "token_cosine"]
    assert {v.key for v in vitals.select("all")} == set(EVERY)
    assert {v.key for v in vitals.select(None)} == {key for key in EVERY if vitals.get(key).default}
    with pytest.raises(UnsmoothError, match="token_cosine"):
        vitals.select("token_cosin")


# Similarity of blocks


def run(key: str, batches: list[dict[int, Any]], labels: list[Any] | None = None, class_token: bool = True) -> Any:
    """A collector over batches of blocks: what it noted for each batch, and the collector."""
    collector: Collector = vitals.get(key).measure()
    noted = []
    for number, batch in enumerate(batches):
        for block, x in batch.items():
            if key == "similar_blocks":
                collector.map(block, torch.as_tensor(x))
            else:
                collector.tokens(block, torch.as_tensor(x), class_token)
        noted.append(collector.end_of_batch(None if labels is None else torch.as_tensor(labels[number])))
    return noted, collector


def hsic(x: Array, y: Array) -> float:
    """The unbiased estimator as a mean over all ordered quadruples of images."""
    k, l = x @ x.T, y @ y.T  # noqa: E741
    quadruples = list(itertools.permutations(range(len(x)), 4))
    return sum(k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]) for i, j, q, r in quadruples) / len(quadruples)


def cka(batches: list[tuple[Array, Array]]) -> float:
    pairs = [(x.reshape(len(x), -1), y.reshape(len(y), -1)) for x, y in batches]
    own = [sum(hsic(pair[side], pair[side]) for pair in pairs) for side in (0, 1)]
    return sum(hsic(x, y) for x, y in pairs) / math.sqrt(own[0] * own[1])


def blocks_of(images: int, seed: int, sizes: tuple[tuple[int, int], ...] = ((6, 4), (6, 4), (3, 8))) -> dict[int, Any]:
    """Tokens of three blocks that look at the same images, the later ones larger."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(images, 10))
    made = {}
    for block, (n, d) in enumerate(sizes):
        mixed = np.tanh(seen @ rng.normal(size=(10, n * d))) + 0.3 * rng.normal(size=(images, n * d))
        made[block] = (3.0**block * (mixed + rng.normal(size=n * d))).reshape(images, n, d)
    return made


@pytest.mark.parametrize("n", [4, 5, 7])
def test_unbiased_hsic_is_the_mean_over_quadruples(n: int) -> None:
    x, y = (blocks_of(n, 3)[block].reshape(n, -1) for block in (0, 2))
    actual = unbiased_hsic(*(torch.as_tensor(a @ a.T) for a in (x, y)))
    np.testing.assert_allclose(float(actual), hsic(x, y), rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(6,), (5, 4), (4, 6, 5)], ids=["one batch", "two batches", "three batches"])
def test_cka_is_its_equation(sizes: tuple[int, ...], dtype: str) -> None:
    """The sums run over batches before the quotient is taken: a batch of larger tokens weighs more."""
    batches = [blocks_of(size, seed) for seed, size in enumerate(sizes)]
    rounded = [{b: torch.as_tensor((1 + i) * x).to(getattr(torch, dtype)) for b, x in batch.items()}
               for i, batch in enumerate(batches)]  # fmt: skip
    noted, collector = run("layer_cka", rounded)
    assert noted == [{}] * len(sizes)
    actual = collector.final()
    exact = [{b: x.double().numpy() for b, x in batch.items()} for batch in rounded]
    wanted = [[cka([(batch[i], batch[j]) for batch in exact]) for j in range(3)] for i in range(3)]
    tolerance = 1e-9 if dtype == "float64" else 2e-5
    for i in range(3):
        np.testing.assert_allclose(actual[i]["matrix"], wanted[i], rtol=tolerance, atol=tolerance)
        assert actual[i].keys() == ({"matrix", ""} if i else {"matrix"})
    assert [actual[i][""] for i in (1, 2)] == pytest.approx([wanted[1][0], wanted[2][1]], rel=tolerance)


def test_cka_of_the_same_up_to_rotation_and_scale_is_one() -> None:
    x = blocks_of(6, 0)[0]
    turned = (x.reshape(6, -1) @ ortho_group.rvs(24, random_state=0)).reshape(x.shape)
    final = run("layer_cka", [{0: x, 1: 100 * turned, 2: x + 7}])[1].final()
    np.testing.assert_allclose([final[i]["matrix"] for i in range(3)], np.ones((3, 3)), rtol=1e-9)


@quick
@given(seed=st.integers(0, 10**6), images=st.integers(4, 9), batches=st.integers(1, 3))
def test_cka_lies_between_minus_one_and_one(seed: int, images: int, batches: int) -> None:
    """The unbiased estimator is an inner product of centred matrices, so Cauchy and Schwarz hold for it too."""
    rng = np.random.default_rng(seed)
    final = run("layer_cka", [{b: rng.normal(size=(images, 3, 2)) for b in range(2)} for _ in range(batches)])[
        1
    ].final()
    assert np.abs([final[i]["matrix"] for i in (0, 1)]).max() <= 1 + 1e-9
    assert final[0]["matrix"][0] == pytest.approx(1)


def test_cka_needs_four_images_in_a_batch() -> None:
    small, collector = run("layer_cka", [blocks_of(3, 0), blocks_of(1, 1)])
    assert small == [{}, {}]
    with pytest.raises(Undefined, match="at least 4 images"):
        collector.final()
    with_rest = run("layer_cka", [blocks_of(5, 0), blocks_of(3, 1)])[1].final()
    assert with_rest == run("layer_cka", [blocks_of(5, 0)])[1].final(), "the small batch is left out"


def test_cka_of_equal_images_is_no_number() -> None:
    """Nothing varies, so there is nothing to compare: rounding must not be taken for a representation."""
    one = torch.as_tensor(blocks_of(1, 0)[0]).float()
    other = torch.as_tensor(blocks_of(1, 1)[1]).float()
    collector = run("layer_cka", [{0: one.repeat(5, 1, 1), 1: other.repeat(5, 1, 1)}])[1]
    try:
        values = [value for parts in collector.final().values() for value in parts.get("matrix", [])]
    except Undefined:
        return
    assert all(math.isnan(value) for value in values)


# Similar blocks


def row_cosine(a: Array, b: Array) -> float:
    """Mean over heads and over 16 queries, spread evenly, of the cosine between rows of two maps."""
    n = a.shape[1]
    chosen = [round(i * (n - 1) / 15) for i in range(16)] if n > 16 else range(n)
    cosines = [a[h, t] @ b[h, t] / (np.linalg.norm(a[h, t]) * np.linalg.norm(b[h, t]))
               for h in range(len(a)) for t in chosen]  # fmt: skip
    return float(np.mean(cosines))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 16, 24])
def test_similar_blocks_is_its_equation(n: int, dtype: str) -> None:
    base = of_maps.logits(3, 2, n, 7, 0)
    nudged = [of_maps.softmax(base + nudge * of_maps.logits(3, 2, n, 7, s)) for s, nudge in enumerate((0, 0.1, 0.5, 3))]
    rounded = {block: torch.as_tensor(a).to(getattr(torch, dtype)) for block, a in enumerate(nudged)}
    actual = run("similar_blocks", [rounded])[0][0]
    exact = [a.double().numpy() for a in rounded.values()]
    for image in range(3):
        alike = [[row_cosine(a[image], b[image]) for b in exact] for a in exact]
        for i in range(4):
            assert actual[i][""][image] == sum(alike[i][j] >= 0.9 for j in range(4) if j != i)
            assert ("previous" in actual[i]) == (i > 0)
            if i:
                assert float(actual[i]["previous"][image]) == pytest.approx(alike[i][i - 1], rel=2e-5)
    assert len({float(v) for part in actual.values() for v in part[""]}) > 1, "some are alike and some are not"


def test_equal_maps_are_similar_and_maps_of_other_sizes_are_not_compared() -> None:
    uniform, identity = np.full((2, 3, 6, 6), 1 / 6), np.tile(np.eye(6), (2, 3, 1, 1))
    actual = run("similar_blocks", [{0: uniform, 1: uniform, 2: identity, 3: uniform[..., :4], 5: uniform}])[0][0]
    assert [actual[i][""].tolist() for i in (0, 1, 2, 5)] == [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    assert 3 not in actual
    assert actual[1]["previous"].tolist() == pytest.approx([1.0, 1.0])
    assert actual[2]["previous"].tolist() == pytest.approx([1 / math.sqrt(6)] * 2)
    assert "previous" not in actual[5], "block 4 was not looked at"
    assert run("similar_blocks", [{0: uniform}])[0] == [{}], "one block has no other"


def test_a_collector_keeps_no_whole_map() -> None:
    collector = vitals.get("similar_blocks").measure()
    collector.map(0, torch.rand(2, 3, 100, 100))
    assert sum(rows.untyped_storage().nbytes() for rows in collector.rows.values()) == 2 * 3 * 16 * 100 * 4


# The depth probe


def neighbours(features: Array, labels: list[int]) -> float:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    right = 0
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        right += labels[max(others, key=lambda j: unit[i] @ unit[j])] == labels[i]
    return right / len(unit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("class_token", [True, False])
def test_the_depth_probe_is_its_equation(class_token: bool, dtype: str) -> None:
    sizes, rng = (5, 1, 7), np.random.default_rng(0)
    labels = [rng.integers(0, 3, size) for size in sizes]
    batches = [{b: torch.as_tensor(x + 0.7 * y[:, None, None]).to(getattr(torch, dtype))
                for b, x in blocks_of(size, seed).items()}
               for seed, (size, y) in enumerate(zip(sizes, labels, strict=True))]  # fmt: skip
    actual = run("depth_probe", batches, labels, class_token)[1].final()
    y = np.concatenate(labels).tolist()
    for block in range(3):
        x = np.concatenate([batch[block].double().numpy() for batch in batches])
        assert actual[block]["mean"] == pytest.approx(neighbours(x.mean(1), y))
        assert actual[block][""] == pytest.approx(neighbours(x[:, 0] if class_token else x.mean(1), y))
        accuracy = actual[block][""]
        for end in (actual[block]["low"], actual[block]["high"]):  # both solve the equation of the score test
            assert (accuracy - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / len(y), abs=1e-6)
        for other in range(3):  # accuracies differ by what only one of the two gets right
            gained = actual[other]["lost.matrix"][block] - actual[block]["lost.matrix"][other]
            assert gained == pytest.approx(accuracy - actual[other][""])
        assert actual[block]["lost.matrix"][block] == 0


def test_the_depth_probe_names_the_images_that_a_block_loses() -> None:
    labels = [0, 0, 1, 1]
    right = np.array([[[1.0, 0.0]], [[0.9, 0.1]], [[0.0, 1.0]], [[0.1, 0.9]]])
    half = np.array([[[1.0, 0.0]], [[0.9, 0.1]], [[0.05, 1.0]], [[0.95, 0.05]]])  # the last image goes to the others
    final = run("depth_probe", [{0: right, 2: half}], [labels])[1].final()
    assert final[0][""] == 1.0 and final[2][""] < 1.0
    assert final[2]["lost.matrix"][0] == 1 - final[2][""] and final[0]["lost.matrix"][2] == 0
    assert np.isnan(final[0]["lost.matrix"][1])  # a block that was not measured


def test_the_depth_probe_takes_means_of_half_precision_tokens_in_full() -> None:
    """The mean of many tokens is finer than one bfloat16, and here the classes differ by less than that."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    raised = torch.tensor([2, 3, 4, 28, 29, 30])  # how many of 64 tokens lie one step of bfloat16 above 1
    higher = 1 + 2**-7 * (torch.arange(64) < raised[:, None]).double()
    tokens = torch.stack([torch.ones_like(higher), higher], dim=-1).bfloat16()
    wanted = neighbours(tokens.double().mean(1).numpy(), labels.tolist())
    actual = run("depth_probe", [{0: tokens}], [labels])[1].final()[0]["mean"]
    assert actual == wanted == 1.0


@pytest.mark.parametrize(("labels", "word"), [(None, "labels"), ([[1] * 5], "two classes"), ([[0, 1, 2, 3, 4]], "two")])
def test_the_depth_probe_says_what_it_lacks(labels: Any, word: str) -> None:
    collector = run("depth_probe", [blocks_of(5, 0)], labels)[1]
    with pytest.raises(Undefined, match=word):
        collector.final()


@pytest.mark.parametrize("labels", [[-1, -1, 0, 0, 1], [7, 7, 10**6, 3, 3]], ids=["below zero", "far apart"])
def test_the_depth_probe_takes_any_whole_numbers_for_labels(labels: list[int]) -> None:
    """timm marks an image without a label by -1."""
    batch = blocks_of(5, 0)
    actual = run("depth_probe", [batch], [labels])[1].final()
    assert actual[0]["mean"] == pytest.approx(neighbours(batch[0].mean(1), labels))


def test_separate_classes_and_mixed_ones() -> None:
    apart = np.array([[[1.0, 0.01 * i]] for i in range(3)] + [[[0.01 * i, 1.0]] for i in range(3)])
    right, wrong = [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]
    perfect = run("depth_probe", [{0: apart}], [right])[1].final()[0]
    assert perfect[""] == perfect["mean"] == perfect["high"] == 1.0 and perfect["low"] < 1
    assert run("depth_probe", [{0: apart}], [wrong])[1].final()[0][""] == neighbours(apart[:, 0], wrong)
    copies = np.repeat(apart, 2, axis=0)  # an image is not its own neighbour, but its copy is
    assert run("depth_probe", [{0: copies}], [np.repeat(wrong, 2)])[1].final()[0][""] == 1.0


def test_the_depth_probe_is_the_same_in_any_batches() -> None:
    x, labels = blocks_of(600, 0, ((2, 3),))[0], np.random.default_rng(1).integers(0, 4, 600)
    whole = run("depth_probe", [{0: x}], [labels])[1].final()
    parts = run("depth_probe", [{0: x[:250]}, {0: x[250:]}], [labels[:250], labels[250:]])[1].final()
    assert whole == parts
    assert whole[0]["mean"] == pytest.approx(neighbours(x.mean(1), labels.tolist()))
