"""Scenes in the layout of ADE20K: names, labels, and views that change picture and labels alike."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.scenes import COLOURS, colours_of, write_scenes
from unsmooth import UnsmoothError
from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.tasks.segmentation.items import SceneItems
from unsmooth.tasks.segmentation.layout import IGNORE, open_scenes, read_labels
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.tasks.segmentation.views import (
    EvaluationTransform,
    Normalise,
    TrainingTransform,
    crop_box,
    is_mixed,
    resized_size,
)
from unsmooth.utils.options import read_options, read_texts

AS_IT_IS = Normalise((0.0,) * 3, (1.0,) * 3)
SMALL = SegmentationOptions(crop=32, short=32)


@pytest.fixture
def root(tmp_path):
    return write_scenes(tmp_path / "ade", train=5, val=3)


def items(root, split="train", options=SMALL, **how):
    training = split == "train"
    view = TrainingTransform(options, AS_IT_IS, 0.5, 0.3) if training else EvaluationTransform(options, AS_IT_IS)
    return SceneItems(open_scenes(root, split), view, 3, options, training=training, **how)


def test_the_benchmarks_folders_are_found(root, tmp_path):
    scenes = open_scenes(root, "train")
    assert scenes.count == 5
    assert scenes.images[0] == "images/training/ADE_train_00000001.jpg"
    assert scenes.annotations[0] == "annotations/training/ADE_train_00000001.png"
    root.rename(tmp_path / "ADEChallengeData2016")
    assert open_scenes(tmp_path, "val").count == 3  # the folder that the archive was unpacked in
    assert scenes.limit(2).images == (scenes.images[0], scenes.images[4])
    assert scenes.limit(0) is scenes.limit(9) is scenes


def test_annotations_become_labels(tmp_path):
    values = np.array([[0, 1, 2], [150, 255, 7]], dtype=np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(values).save(path)
    actual = np.asarray(read_labels(path, "a.png", SegmentationOptions()))
    assert actual.tolist() == [[IGNORE, 0, 1], [149, IGNORE, 6]]
    kept = np.asarray(read_labels(path, "a.png", SegmentationOptions(reduce_zero_label=False, classes=256, ignore=7)))
    assert kept.tolist() == [[0, 1, 2], [150, 255, IGNORE]]
    Image.fromarray(values.astype(np.uint16) * 100).save(path)  # more classes than a byte holds
    assert np.asarray(read_labels(path, "a.png", SegmentationOptions(classes=30_000)))[1, 0] == 14_999
    palette = Image.fromarray(values)
    palette.putpalette(list(range(256)) * 3)
    palette.save(path)
    assert np.asarray(read_labels(path, "a.png", SegmentationOptions()))[1, 0] == 149


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda root: (root / "annotations/training/ADE_train_00000002.png").unlink(),
         r"ADE_train_00000002.jpg has no annotation in annotations/training"),
        (lambda root: (root / "images/validation/ADE_val_00000001.jpg").unlink(),
         r"annotations/validation/ADE_val_00000001.png has no image"),
        (lambda root: (root / "images/training").rename(root / "images/train"), "has no folder images/training"),
        (lambda root: (root / "annotations").rename(root / "masks"), "does not have the layout of ADE20K"),
        (lambda root: (root / "images/training/ADE_train_00000001.png").touch(), "two files for ADE_train_00000001"),
        (lambda root: [p.unlink() for p in root.glob("*/training/*")], "holds no images"),
    ],
)  # fmt: skip
def test_mistakes_in_the_layout_are_named(root, mistake, message):
    mistake(root)
    with pytest.raises(UnsmoothError, match=message):
        assert [open_scenes(root, split) for split in ("train", "val")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((9, 9), 3, np.uint8), r"ADE_val_00000001.png has 9 × 9 pixels, but .*00000001.jpg has 48 × 40"),
        (
            np.full((40, 48), 151, np.uint8),
            r"ADE_val_00000001.png has the value 151, but 150 classes have values 1 to 150",
        ),
        (np.zeros((40, 48, 3), np.uint8), "ADE_val_00000001.png has mode RGB"),
    ],
)
def test_mistakes_in_an_annotation_stop_the_run(root, values, message):
    Image.fromarray(values).save(root / "annotations/validation/ADE_val_00000001.png")
    with pytest.raises(UnsmoothError, match=message):
        list(evaluation_batches(items(root, "val"), 1))


def test_broken_pictures_are_skipped_by_name(root):
    (root / "images/training/ADE_train_00000002.jpg").write_bytes(b"no picture")
    (root / "annotations/training/ADE_train_00000003.png").write_bytes(b"no picture")
    (root / "images/validation/ADE_val_00000001.jpg").write_bytes(b"")
    whole = items(root)[(3, 7)]
    stood_in = items(root)[(1, 7)]  # by the fourth, for the second and the third
    assert torch.equal(stood_in.image, whole.image)
    assert list(stood_in.skipped) == [f"images/training/ADE_train_0000000{i}.jpg" for i in (2, 3)]
    assert "00000003.png: cannot identify image file" in stood_in.skipped["images/training/ADE_train_00000003.jpg"]
    batches = list(evaluation_batches(items(root, "val"), 2))
    assert [len(batch) for batch in batches] == [1, 1]
    assert batches[0].skipped == {"images/validation/ADE_val_00000001.jpg": "the file is empty"}
    with pytest.raises(
        UnsmoothError,
        match=r"00000001.jpg of .* is broken: the file is empty\. Leave out strict_data \(--strict-data\)",
    ):
        list(evaluation_batches(items(root, "val", strict=True), 1))
    for path in root.glob("images/training/*"):
        path.write_bytes(b"")
    with pytest.raises(UnsmoothError, match="has no valid image: all 5"):
        next(TrainingBatches(items(root), 2, seed=0).from_step(0, 0))


def blocks(rng, height=60, width=90, cell=15):
    """A picture whose colour says its label, in cells."""
    labels = rng.integers(0, 5, (height // cell, width // cell)).repeat(cell, 0).repeat(cell, 1).astype(np.int32)
    return Image.fromarray(COLOURS[labels]), Image.fromarray(labels)


def agree(picture: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
    """The share of inner pixels (whose neighbours have the same label) whose colour says their label."""
    near = np.lib.stride_tricks.sliding_window_view(np.pad(labels.numpy(), 2, constant_values=-2), (5, 5))
    inner = (near == labels.numpy()[..., None, None]).all((2, 3)) & (labels.numpy() != IGNORE)
    said = colours_of(picture.permute(1, 2, 0).numpy() * 255)
    return float((said == labels.numpy())[inner].mean()), int(inner.sum())


@pytest.mark.parametrize("seed", range(12))
def test_training_views_keep_picture_and_labels_together(seed):
    picture, labels = blocks(np.random.default_rng(seed))
    random.seed(seed)
    image, wanted = TrainingTransform(SegmentationOptions(crop=64, short=60), AS_IT_IS, hflip=0.5)(picture, labels)
    assert image.shape == (3, 64, 64) and wanted.shape == (64, 64)
    share, pixels = agree(image, wanted)
    assert share == 1.0 and pixels > 50
    outside = wanted == IGNORE  # every pixel of these has a label, so those without lie outside of the picture
    assert (image[:, outside] == 0).all()


def test_a_view_is_decided_by_its_seed(root):
    one, again, other = items(root)[(0, 5)], items(root)[(0, 5)], items(root)[(0, 6)]
    assert torch.equal(one.image, again.image) and torch.equal(one.labels, again.labels)
    assert not torch.equal(one.image, other.image)


def test_mirrors_and_colours():
    picture, labels = blocks(np.random.default_rng(1))
    still = {
        "options": SegmentationOptions(crop=90, short=60, smallest=1, largest=1, cat_max_ratio=1),
        "normalise": AS_IT_IS,
    }
    plain, wanted = TrainingTransform(**still, hflip=0.0)(picture, labels)
    mirrored, turned = TrainingTransform(**still, hflip=1.0)(picture, labels)
    assert torch.equal(mirrored[:, :60], plain[:, :60].flip(2)) and torch.equal(turned[:60], wanted[:60].flip(1))
    torch.manual_seed(0)
    coloured, same = TrainingTransform(**still, hflip=0.0, color_jitter=0.5)(picture, labels)
    assert torch.equal(same, wanted) and not torch.allclose(coloured, plain, atol=0.01)


def test_no_class_fills_a_crop():
    assert is_mixed(np.array([0, 0, 0, 1]), 0.75)
    assert not is_mixed(np.array([0, 0, 0, 0, 1]), 0.75)
    assert is_mixed(np.array([IGNORE] * 9 + [0, 1]), 0.75)  # only labelled pixels count
    assert not is_mixed(np.array([IGNORE, 0, 0]), 0.75) and not is_mixed(np.array([IGNORE]), 0.75)
    labels = np.zeros((64, 64), np.int32)
    labels[:, 48:] = 1  # half of all crops of 16 pixels see class 0 alone
    random.seed(0)
    mixed = [is_mixed(np.asarray(Image.fromarray(labels).crop(crop_box(Image.fromarray(labels), 16, 0.75))), 0.75)
             for _ in range(50)]  # fmt: skip
    free = [is_mixed(np.asarray(Image.fromarray(labels).crop(crop_box(Image.fromarray(labels), 16, 1.0))), 0.75)
            for _ in range(50)]  # fmt: skip
    assert sum(mixed) > 35 > 20 > sum(free) > 0  # ten tries: 1 − 0.84^10 of them


@pytest.mark.parametrize(
    ("size", "short", "wanted"),
    [((683, 512), 512, (683, 512)), ((300, 200), 100, (150, 100)), ((200, 300), 100, (100, 150)),
     ((1000, 100), 100, (400, 40)), ((3, 1), 0.2, (1, 1))],
)  # fmt: skip
def test_sizes_keep_their_aspect(size, short, wanted):
    assert resized_size(size, short) == wanted


def test_evaluation_views_are_whole(root):
    picture, labels = blocks(np.random.default_rng(0))
    image, truth = EvaluationTransform(SegmentationOptions(crop=32, short=30), Normalise((0.5,) * 3, (0.25,) * 3))(
        picture, labels
    )
    assert image.shape == (3, 30, 45) and truth.shape == (60, 90)
    pixels = np.asarray(picture.resize((45, 30), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(image.numpy(), (pixels.transpose(2, 0, 1) - 0.5) / 0.25, atol=1e-5)
    batch = next(iter(evaluation_batches(items(root, "val"), 3)))
    assert [tuple(x.shape) for x in batch.full_images] == [(3, 32, 38)] * 3
    assert batch.images.shape == (3, 3, 32, 32) and torch.equal(batch.images[0], batch.full_images[0][:, :, 3:35])
    assert [len(part) for part in batch.microbatches(2)] == [2, 1]
    assert batch.to(torch.device("cpu")).labels[0].shape == (40, 48)


def test_training_batches_are_cut_into_parts(root):
    batch = next(TrainingBatches(items(root), 4, seed=0).from_step(0, 0))
    assert batch.images.shape == (4, 3, 32, 32) and batch.labels.shape == (4, 32, 32) and len(batch) == 4
    parts = batch.to(torch.device("cpu")).microbatches(2)
    assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clases": "3"}, "segmentation has no option 'clases'. Did you mean 'classes'"),
        ({"classes": "many"}, "classes must be a whole number .got 'many'"),
        ({"classes": "1"}, "classes must be at least 2"),
        ({"auxiliary": "x"}, "auxiliary must be a number"),
        ({"reduce_zero_label": "maybe"}, "must be true or false"),
        ({"mode": "slid"}, "segmentation: mode must be one of .*Did you mean 'slide'"),
        ({"head": "fcn"}, "segmentation: head must be one of"),
        ({"cat_max_ratio": "1.5"}, "at most 1"),
        ({"smallest": "3"}, "smallest must be at most largest"),
    ],
)
def test_invalid_options_are_reported(given, message):
    with pytest.raises(UnsmoothError, match=message):
        read_texts(SegmentationOptions, given, "segmentation")


def test_options_go_to_json_and_back():
    options = read_texts(
        SegmentationOptions,
        {"classes": "7", "mode": "whole", "reduce_zero_label": "false", "auxiliary": "0"},
        "segmentation",
    )
    assert (options.classes, options.mode, options.reduce_zero_label, options.auxiliary) == (7, "whole", False, 0.0)
    assert read_options(SegmentationOptions, options.to_json(), "segmentation") == options
