"""Token probes against scikit-learn and against loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from unsmooth.evaluation.resampling import draw_weights, interval, resampled_accuracy, resampled_miou
from unsmooth.evaluation.token_probes import (
    PENALTIES,
    NearestNeighbours,
    fit_linear,
    patch_counts,
    patch_labels,
    pixel_hits,
)
from unsmooth.tasks.segmentation.score import SegmentationScore
from unsmooth.vitals.depth_probe import nearest


def tokens(seed: int, count: int, width: int = 12, classes: int = 4, noise: float = 1.5) -> tuple[torch.Tensor, ...]:
    """Noisy tokens around one centre per class, with channels of very different sizes and a common offset."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    x = centres[labels] + noise * torch.randn(count, width, generator=generator)
    return (x * torch.logspace(-2, 1, width) + 0.3), labels


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_the_vote_of_neighbours_is_that_of_scikit_learn(k: int) -> None:
    memory, labels = tokens(0, 300)
    queries, _ = tokens(1, 700)
    actual = NearestNeighbours(memory, labels, 4, k).predict(queries)
    reference = KNeighborsClassifier(
        min(k, 300), metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
    )
    expected = reference.fit(memory.double().numpy(), labels.numpy()).predict(queries.double().numpy())
    assert (actual.numpy() == expected).mean() > 0.995  # near ties differ between fp32 and fp64


def test_weights_of_nearly_equal_tokens_do_not_overflow() -> None:
    memory = torch.ones(30, 8) + 1e-4 * torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0] * 10 + [1] * 20)
    assert NearestNeighbours(memory, labels, 2, 30).predict(memory[:5]).tolist() == [1] * 5


def test_neighbours_leave_out_the_query_itself() -> None:
    x, _ = tokens(2, 600)
    cosine, indices = nearest(x, x, 3, leave_one_out=True)
    u = x.double().numpy() / np.linalg.norm(x.double().numpy(), axis=1, keepdims=True)
    matrix = u @ u.T
    np.fill_diagonal(matrix, -np.inf)
    np.testing.assert_allclose(cosine.numpy(), -np.sort(-matrix, axis=1)[:, :3], atol=1e-5)
    np.testing.assert_array_equal(indices[:, 0].numpy(), matrix.argmax(1))


@pytest.mark.parametrize(("count", "noise"), [(30, 4.0), (200, 1.5), (2000, 0.5)])
def test_the_linear_probe_is_ridge_regression_with_its_penalty_from_folds_of_images(count: int, noise: float) -> None:
    x, labels = tokens(3, count, noise=noise)
    images = torch.arange(count) // 3
    fitted = fit_linear(x, labels, images, 5)  # class 4 does not occur
    scaler = StandardScaler().fit(x.double().numpy())
    z, y = scaler.transform(x.double().numpy()), np.eye(5)[labels.numpy()]
    y_mean = y.mean(0)
    errors = []
    for alpha in PENALTIES:
        error = 0.0
        for fold in range(5):
            held = images.numpy() % 5 == fold
            ridge = Ridge(alpha=alpha * (~held).sum(), fit_intercept=False).fit(z[~held], (y - y_mean)[~held])
            error += ((ridge.predict(z[held]) - (y - y_mean)[held]) ** 2).sum()
        errors.append(error)
    assert fitted.penalty == PENALTIES[int(np.argmin(errors))]
    ridge = Ridge(alpha=fitted.penalty * count, fit_intercept=False).fit(z, y - y_mean)
    np.testing.assert_allclose(fitted.weight.numpy(), ridge.coef_.T, atol=1e-4)
    queries, _ = tokens(4, 500, noise=noise)
    expected = (ridge.predict(scaler.transform(queries.double().numpy())) + y_mean).argmax(1)
    assert (fitted.predict(queries).numpy() == expected).mean() > 0.995


def test_the_linear_probe_ignores_scale_and_offset_of_channels() -> None:
    x, labels = tokens(5, 300)
    queries, _ = tokens(6, 100)
    images, scale, offset = torch.arange(300), torch.logspace(-2, 2, 12), torch.linspace(-3, 3, 12)
    plain = fit_linear(x.double(), labels, images, 4).predict(queries.double())
    moved = fit_linear(x.double() * scale + offset, labels, images, 4).predict(queries.double() * scale + offset)
    assert torch.equal(plain, moved)


@pytest.mark.parametrize("constant", [0.0, 7.3])
def test_the_linear_probe_accepts_constant_channels(constant: float) -> None:
    x, labels = tokens(7, 200)
    x[:, 3] = constant
    fitted = fit_linear(x, labels, torch.arange(200), 4)
    assert fitted.weight.isfinite().all() and fitted.predict(x).float().std() > 0


@pytest.mark.parametrize(("size", "grid"), [((12, 8), (3, 2)), ((13, 10), (4, 3)), ((5, 5), (5, 5)), ((4, 6), (8, 6))])
def test_patch_counts_are_loops_over_pixels(size: tuple[int, int], grid: tuple[int, int]) -> None:
    labels = torch.randint(-1, 4, size, generator=torch.Generator().manual_seed(0))
    expected = np.zeros((grid[0], grid[1], 4), dtype=int)
    for y in range(size[0]):
        for x in range(size[1]):
            if labels[y, x] >= 0:
                expected[int(y * grid[0] / size[0]), int(x * grid[1] / size[1]), labels[y, x]] += 1
    counts = patch_counts(labels, grid, 4)
    np.testing.assert_array_equal(counts.numpy(), expected.reshape(-1, 4))
    majority = patch_labels(counts).numpy()
    for patch, by_class in zip(majority, expected.reshape(-1, 4), strict=True):
        assert (patch == -1) == (by_class.sum() == 0)
        assert patch == -1 or by_class[patch] == by_class.max()


def masks_and_predictions(seed: int = 0, images: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(-1, 4, (images, 12, 8), generator=generator)  # class 4 is never labelled
    return masks, torch.randint(0, 5, (images, 6), generator=generator)


def test_miou_is_that_of_the_confusion_matrix_of_pixels() -> None:
    masks, predicted = masks_and_predictions()
    counts = [patch_counts(mask, (3, 2), 6) for mask in masks]
    hits, guesses = (torch.stack(c).numpy() for c in zip(*map(pixel_hits, counts, predicted), strict=True))
    labelled = np.stack([c.sum(0).numpy() for c in counts])
    actual = resampled_miou(np.ones((1, 6)), hits, guesses, labelled)[0]
    pixels = predicted.view(6, 3, 2).repeat_interleave(4, 1).repeat_interleave(4, 2)
    there = masks >= 0
    matrix = confusion_matrix(masks[there], pixels[there], labels=range(6))
    with np.errstate(invalid="ignore"):
        iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    assert np.isnan(iou[5]) and iou[4] == 0  # absent; predicted but never labelled
    assert actual == pytest.approx(np.nanmean(iou))
    ours = SegmentationScore.empty(6)
    for mask, image in zip(masks, pixels, strict=True):
        ours.add(mask, image)
    assert actual == pytest.approx(ours.miou)


def test_resampled_scores_are_those_of_repeated_images() -> None:
    weights = draw_weights(9, draws=20)
    assert (weights.sum(1) == 9).all() and (weights[0] == 1).all()
    generator = np.random.default_rng(0)
    correct = generator.random(9) < 0.5
    hits, labelled, guesses = generator.integers(0, 9, (3, 9, 4))
    labelled, guesses = labelled + hits, guesses + hits
    accuracy, miou = resampled_accuracy(weights, correct), resampled_miou(weights, hits, guesses, labelled)
    for row, accuracy_of, miou_of in zip(weights, accuracy, miou, strict=True):
        chosen = np.repeat(np.arange(9), row.astype(int))
        assert accuracy_of == pytest.approx(correct[chosen].mean())
        h, g, t = (x[chosen].sum(0) for x in (hits, guesses, labelled))
        assert miou_of == pytest.approx(np.nanmean(h / (t + g - h)))


def test_intervals_of_paired_differences_cover_the_true_one_as_often_as_they_say() -> None:
    """Two probes that agree on most images: the true difference is 0.1."""
    generator, covered, widths = np.random.default_rng(0), 0, []
    weights = draw_weights(150, draws=400)
    for _ in range(400):
        u = generator.random(150)
        first, second = u < 0.6, u < 0.5
        low, high = interval(resampled_accuracy(weights, first) - resampled_accuracy(weights, second))
        covered += low <= 0.1 <= high
        widths.append(high - low)
    assert 0.90 <= covered / 400 <= 0.98
    assert np.mean(widths) < 0.15  # unpaired: 0.22
