"""Scores image by image: against NumPy and SciPy, for hosts of three libraries, and nothing left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import norm
from torch import Tensor, nn

from tests.support.small_hosts import host, outputs
from unsmooth.data.datasets import ImageBatch
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast
from unsmooth.hosts.outputs import classes_of, forward, logits_of
from unsmooth.results.scores import NONE, accuracy_interval
from unsmooth.tasks.classification.scores import merge_scores, score, score_each


class Said(nn.Module):
    """Gives the logits that are written into the images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.classes] * self.one


def said(logits: Any, labels: Any, size: int = 4, indices: Any = None) -> list[ImageBatch]:
    """Batches whose images hold these logits."""
    x = torch.as_tensor(np.asarray(logits), dtype=torch.float32)[:, None, None]
    y = torch.as_tensor(np.asarray(labels))
    at = torch.arange(len(x)) if indices is None else torch.as_tensor(indices)
    return [ImageBatch(x[i : i + size], y[i : i + size], at[i : i + size]) for i in range(0, len(x), size)]


# Wilson


@pytest.mark.parametrize(("successes", "total"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 10), (613, 1000), (1, 50_000)])
def test_the_accuracy_interval_solves_its_quadratic(successes: int, total: int) -> None:
    interval = accuracy_interval(np.arange(total) < successes)
    # (share − p)² = z² p (1 − p) / n, as a polynomial in p
    share, z2 = successes / total, norm.ppf(0.975) ** 2 / total
    roots = sorted(np.roots([1 + z2, -2 * share - z2, share**2]).real)
    np.testing.assert_allclose(interval, roots, atol=1e-7)
    assert 0 <= interval[0] <= share <= interval[1] <= 1


# Scores


@pytest.mark.parametrize("classes", [2, 4, 5, 12])
@pytest.mark.parametrize("among", [None, "some"])
def test_scores_are_numpys(classes: int, among: str | None) -> None:
    rng = np.random.default_rng(classes)
    chosen = np.arange(classes) if among is None else np.sort(rng.permutation(classes)[: max(2, classes // 2)])
    logits, labels = rng.normal(size=(23, classes)), rng.choice(chosen, 23)
    scores = score(Said(classes), said(logits, labels), None if among is None else chosen.tolist())
    logits = logits.astype(np.float32)
    order = chosen[np.argsort(-logits[:, chosen], 1)]
    np.testing.assert_array_equal(scores.predicted, order[:, 0])
    np.testing.assert_array_equal(scores.correct, order[:, 0] == labels)
    row = scores.row("x")
    if len(chosen) < 5:
        assert scores.correct5 is None and row["top5"] is None and row["top5_interval"] is None
    else:
        right = (order[:, :5] == labels[:, None]).any(1)
        assert scores.correct5 is not None
        np.testing.assert_array_equal(scores.correct5, right)
        assert row["top5"] == right.mean() and row["top5_interval"] == accuracy_interval(right)
    at = np.searchsorted(chosen, labels)
    loss = -log_softmax(logits[:, chosen], axis=1)[np.arange(23), at]
    assert scores.loss is not None
    np.testing.assert_allclose(scores.loss, loss, rtol=1e-5)
    assert row["loss"] == pytest.approx(loss.mean(), rel=1e-6)
    assert row["top1"] == scores.correct.mean() and row["top1_interval"] == accuracy_interval(scores.correct)
    assert (row["images"], row["classes"]) == (23, len(chosen))


def test_scores_come_in_order_of_place_and_parts_join() -> None:
    rng = np.random.default_rng(0)
    logits, labels, indices = rng.normal(size=(11, 6)), rng.integers(0, 6, 11), rng.permutation(11)
    mixed = score(Said(6), said(logits, labels, indices=indices))
    straight = score(Said(6), said(logits[np.argsort(indices)], labels[np.argsort(indices)], size=11))
    batches = said(logits, labels, size=3, indices=indices)
    joined = merge_scores([score(Said(6), batches[::2]), score(Said(6), batches[1::2])])
    for other in (straight, joined):
        for name in ("indices", "labels", "ranked", "loss"):
            np.testing.assert_array_equal(getattr(mixed, name), getattr(other, name))
    np.testing.assert_array_equal(mixed.indices, np.arange(11))


def test_logits_that_are_not_finite_are_wrong_and_counted() -> None:
    logits = np.eye(6)[[0, 1, 2]]
    logits[1, 4] = np.nan
    logits[2, 2] = np.inf
    scores = score(Said(6), said(logits, [0, 1, 2]))
    assert scores.correct.tolist() == [True, False, False] and scores.predicted.tolist() == [0, NONE, NONE]
    assert scores.correct5 is not None and scores.correct5.tolist() == [True, False, False]
    row = scores.row("x")
    assert row["not_finite"] == 2 and row["loss"] is None


def test_changes_see_each_batch_once() -> None:
    read = []

    def batches() -> Any:
        for batch in said(np.eye(3), [0, 1, 2], size=2):
            read.append(len(batch.labels))
            yield batch

    def shifted(images: Tensor, labels: Tensor) -> Tensor:
        return images.roll(1, -1)

    scores = score_each(Said(3), batches(), {"as it is": None, "shifted": shifted})
    assert scores["as it is"].predicted.tolist() == [0, 1, 2] and scores["shifted"].predicted.tolist() == [1, 2, 0]
    assert read == [2, 1]


def test_skipped_images_are_named_and_none_left_is_an_error() -> None:
    batches = said(np.eye(3), [0, 1, 2])
    empty = ImageBatch(torch.empty(0), torch.tensor([]), torch.tensor([]), {"a.png": "the file is empty"})
    reported: list[int] = []
    scores = score(Said(3), [empty, *batches], progress=reported.append)
    assert scores.skipped == {"a.png": "the file is empty"} and scores.images == 3 and reported == [1, 3]
    with pytest.raises(UnsmoothError, match=r"all 1 are broken. First: a\.png: the file is empty"):
        score(Said(3), [empty])


def test_labels_must_be_classes() -> None:
    with pytest.raises(UnsmoothError, match=r"label 3, but the model has 3 classes \(0 to 2"):
        score(Said(3), said(np.eye(3), [0, 1, 3]))
    with pytest.raises(UnsmoothError, match="label 1, which is not one of"):
        score(Said(3), said(np.eye(3), [0, 1, 2]), [0, 2])


def test_a_model_is_as_before() -> None:
    model = host("deit").train()
    model.blocks[0].eval()  # type: ignore[index, union-attr]
    flags = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batch = ImageBatch(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]), torch.arange(2))
    random = torch.random.get_rng_state()
    score(model, [batch])
    with pytest.raises(UnsmoothError):
        score(model, [ImageBatch(batch.images, torch.tensor([0, 9]), batch.indices)])
    assert flags == [module.training for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random, torch.random.get_rng_state())


# Outputs of hosts


@pytest.mark.parametrize("name", ["deit", "deit_distilled", "hf_vit", "hf_deit", "torchvision_vit"])
def test_logits_of_hosts_of_three_libraries(name: str) -> None:
    model = host(name)
    wanted = outputs(model, name)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(forward(model, images), wanted)
        assert classes_of(model) == wanted.shape[1]
        half = forward(model.bfloat16(), images)  # the model's precision is taken
    assert half.dtype == torch.bfloat16


def test_logits_of_two_heads_are_their_mean() -> None:
    model = host("deit_distilled")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        one = forward(model, images)
        model.train()
        model.set_distilled_training(True)  # type: ignore[operator]
        assert isinstance(model(images), tuple)
        torch.testing.assert_close(forward(model, images), one)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("hf_clip", "BaseModelOutputWithPooling, not logits"), ("hf_vilt", "BaseModelOutputWithPooling, not logits")],
)
def test_a_model_without_a_head_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UnsmoothError, match=reason):
        classes_of(host(name))


def test_outputs_that_are_no_logits_are_refused() -> None:
    for wrong in (torch.zeros(2, 3, 4), "text", (), {"loss": torch.zeros(())}):
        with pytest.raises(UnsmoothError, match="classification head"):
            logits_of(wrong)
    features = host("deit")
    features.reset_classifier(0)  # type: ignore[operator]
    with pytest.raises(UnsmoothError, match="num_classes=0"):
        classes_of(features)


def test_autocast_by_name() -> None:
    linear, x, cpu = nn.Linear(2, 2), torch.zeros(1, 2), torch.device("cpu")
    for name, dtype in {"none": torch.float32, "auto": torch.float32, "bfloat16": torch.bfloat16}.items():
        with autocast(name, cpu):
            assert linear(x).dtype == dtype
    with pytest.raises(UnsmoothError, match="bfloat16"):
        autocast("bf16", cpu)
