"""mIoU against NumPy and scikit-learn, and logits of whole pictures against plain loops."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, jaccard_score, recall_score
from torch import nn

from unsmooth import UnsmoothError
from unsmooth.tasks.segmentation.layout import IGNORE
from unsmooth.tasks.segmentation.predict import predict_whole, predict_windows, predicted_classes, windows
from unsmooth.tasks.segmentation.score import SegmentationScore, merge_scores

CLASSES = 6


def pictures(seed=0, classes=CLASSES):
    """Labels of pictures of several sizes, some pixels without; the last class is nowhere, one is only called."""
    rng = np.random.default_rng(seed)
    for height, width in ((7, 9), (5, 5), (11, 3)):
        truth = rng.integers(0, classes - 2, (height, width))
        said = np.where(rng.random(truth.shape) < 0.6, truth, rng.integers(0, classes - 1, truth.shape))
        truth[rng.random(truth.shape) < 0.2] = IGNORE
        yield truth, said


def scored(actual):
    score = SegmentationScore.empty(CLASSES)
    for truth, said in actual:
        score.add(torch.from_numpy(truth).int(), torch.from_numpy(said))
    return score


@pytest.mark.parametrize("seed", range(3))
def test_overlaps_are_those_of_numpy_and_scikit_learn(seed):
    score = scored(pictures(seed))
    truth, said = (np.concatenate([pair[i].ravel() for pair in pictures(seed)]) for i in (0, 1))
    truth, said = truth[truth != IGNORE], said[truth != IGNORE]
    iou = np.array([
        ((truth == c) & (said == c)).sum() / both if (both := ((truth == c) | (said == c)).sum()) else np.nan
        for c in range(CLASSES)
    ])  # fmt: skip
    np.testing.assert_allclose(score.class_iou, iou)
    assert np.isnan(iou[-1]) and iou[-2] == 0  # left out of the mean, and counted in it
    assert score.miou == score.primary_metric == pytest.approx(np.nanmean(iou))
    there = sorted({*truth, *said})
    assert score.miou == pytest.approx(jaccard_score(truth, said, labels=there, average="macro"))
    assert score.pixel_accuracy == pytest.approx(accuracy_score(truth, said))
    labels = sorted(set(truth))
    assert score.mean_accuracy == pytest.approx(recall_score(truth, said, labels=labels, average="macro"))


def test_processes_are_joined_and_memory_does_not_grow():
    one, *rest = pictures()
    parts = [pickle.loads(pickle.dumps(scored(some))) for some in ([one], rest)]
    parts[1].skipped = {"x.jpg": "the file is empty"}
    joined, whole = merge_scores(parts), scored(pictures())
    assert (joined.counts == whole.counts).all() and joined.images == 3 and joined.counts.dtype == np.int64
    assert joined.counts.shape == (CLASSES, CLASSES + 1)
    line, result = joined.epoch_metrics(), joined.metrics()
    assert line == {"val_miou": whole.miou, "val_pixel_accuracy": whole.pixel_accuracy,
                    "val_mean_accuracy": whole.mean_accuracy}  # fmt: skip
    assert result["class_iou"][-1] is None and joined.skipped == {"x.jpg": "the file is empty"}
    with pytest.raises(UnsmoothError, match=r"no labelled pixel to score: 1 images are broken. First: x.jpg: the file"):
        merge_scores(
            [
                SegmentationScore.empty(3),
                SegmentationScore(np.zeros((3, 4), np.int64), 0, {"x.jpg": "the file is empty"}),
            ]
        )


def test_pictures_without_finite_logits_are_never_right():
    logits = torch.randn(CLASSES, 4, 4)
    logits[2, 1, 1] = torch.nan
    score = SegmentationScore.empty(CLASSES)
    score.add(torch.zeros(8, 8, dtype=torch.int32), predicted_classes(logits, (8, 8)))
    assert score.pixel_accuracy == 0 and score.class_iou[0] == 0 and np.isnan(score.class_iou[1:]).all()


def test_classes_are_those_of_scaled_logits():
    logits = torch.randn(37, 6, 5, generator=torch.Generator().manual_seed(0))
    wanted = F.interpolate(logits[None], (20, 17), mode="bilinear", align_corners=False)[0].argmax(0)
    assert torch.equal(predicted_classes(logits, (20, 17)), wanted)


class Patterns(nn.Module):
    """Logits that depend on a pixel and on its place in the window."""

    def forward(self, images):
        assert images.shape[-2:] == (12, 12)
        ramp = torch.linspace(0, 1, 12)
        return torch.cat([images * ramp, images.flip(1) - ramp[:, None]], 1)


@pytest.mark.parametrize("size", [(12, 12), (12, 30), (29, 13), (7, 20), (5, 6)])
def test_windows_are_averaged(size):
    picture = torch.randn(2, *size, generator=torch.Generator().manual_seed(1))
    height, width = size
    total, seen = np.zeros((4, 40, 40)), np.zeros((40, 40))
    padded = np.zeros((2, max(height, 12), max(width, 12)), np.float32)
    padded[:, :height, :width] = picture
    for top in {*range(0, padded.shape[1] - 11, 8), padded.shape[1] - 12}:
        for left in {*range(0, padded.shape[2] - 11, 8), padded.shape[2] - 12}:
            view = torch.from_numpy(padded[None, :, top : top + 12, left : left + 12])
            total[:, top : top + 12, left : left + 12] += Patterns()(view)[0].numpy()
            seen[top : top + 12, left : left + 12] += 1
    wanted = (total[:, :height, :width] / seen[:height, :width]).astype(np.float32)
    np.testing.assert_allclose(predict_windows(Patterns(), picture, 12).numpy(), wanted, atol=1e-6)


def test_where_windows_begin():
    assert windows(512, 512) == [0]
    assert windows(683, 512) == [0, 171]  # mmsegmentation's for an ADE20K picture of 683 × 512
    assert windows(1200, 512) == [0, 341, 682, 688]


def test_whole_pictures_are_filled_up():
    picture = torch.randn(3, 10, 21)

    def model(images):
        assert images.shape == (1, 3, 16, 24) and (images[..., 10:, :] == 0).all()
        return images * 2

    assert torch.equal(predict_whole(model, picture, 8), picture * 2)
