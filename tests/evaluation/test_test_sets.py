"""Which image has which label: tiny folders in the shapes that ImageNet's test sets come in.

The model of these tests reads its answer from the picture, so that every accuracy is known beforehand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from unsmooth.data.images import Images
from unsmooth.data.sources import open_images
from unsmooth.data.splits import open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.evaluate import evaluate
from unsmooth.evaluation.label_sets import index_of_synset, real_labels, subset_indices, synsets
from unsmooth.evaluation.test_sets import validation

SIDE = 8


class Reader(nn.Module):
    """Answers with the number that a picture's colour stands for, and its neighbours next."""

    pretrained_cfg = {"input_size": (3, SIDE, SIDE), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.classes = classes
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(self.pretrained_cfg[name]) for name in ("mean", "std"))
        red, green, _ = ((x.mean((2, 3)) * std + mean) * 255).round().unbind(1)
        return -(torch.arange(self.classes) - (red + 256 * green)[:, None]).abs() * self.one


def draw(path: Path, number: int) -> None:
    """A picture that stands for a number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), (number % 256, number // 256, 0)).save(path)


def test_the_class_lists_are_imagenets() -> None:
    assert len(synsets()) == 1000 and synsets()[0] == "n01440764" and list(synsets()) == sorted(synsets())
    for subset in ("imagenet_a", "imagenet_r"):
        assert len(set(subset_indices(subset))) == 200
        text = (Path(__import__("timm").__file__).parent / "data" / "_info" / f"{subset}_indices.txt").read_text()
        assert sorted(map(int, text.split())) == list(subset_indices(subset))
    assert len(real_labels()) == 50_000


@pytest.mark.parametrize("by", ["number", "synset"])
def test_imagenet_v2_folders_count_as_numbers(tmp_path: Path, by: str) -> None:
    for number in (0, 2, 10, 100, 999):
        draw(tmp_path / (str(number) if by == "number" else synsets()[number]) / "a.png", number)
    draw(tmp_path / ("2" if by == "number" else synsets()[2]) / "wrong.png", 500)
    evaluation = evaluate(Reader(), imagenet_v2=tmp_path)
    assert evaluation["imagenet-v2"].images == 6
    assert evaluation.scores["imagenet-v2"].labels.tolist() == (
        [0, 10, 100, 2, 2, 999] if by == "number" else [0, 2, 2, 10, 100, 999]
    )
    assert evaluation["imagenet-v2"].top1 == pytest.approx(5 / 6)
    assert evaluation["imagenet-v2"].classes == 1000


@pytest.mark.parametrize("test", ["imagenet_a", "imagenet_r"])
def test_answers_on_imagenet_a_and_r_come_from_their_classes(tmp_path: Path, test: str) -> None:
    own = subset_indices(test)
    first, second = own[3], own[77]
    outside = next(i for i in range(1000) if i not in own and min(abs(i - j) for j in own) == 1)
    nearest = min(own, key=lambda i: abs(i - outside))
    draw(tmp_path / synsets()[first] / "a.png", first)
    draw(tmp_path / synsets()[second] / "b.png", first)
    # The answer is a class that is not in the list: the best one that is counts.
    draw(tmp_path / synsets()[nearest] / "c.png", outside)
    evaluation = evaluate(Reader(), **{test: tmp_path})  # type: ignore[arg-type]
    name = test.replace("_", "-")
    scores = evaluation.scores[name]
    truth = dict(zip(scores.labels.tolist(), scores.predicted.tolist(), strict=True))
    assert truth == {first: first, second: first, nearest: nearest}
    assert evaluation[name].top1 == pytest.approx(2 / 3) and evaluation[name].classes == 200
    logits = -np.abs(np.array(own) - first).astype(float)  # cross-entropy over 200 classes
    loss = scores.loss
    assert loss is not None
    np.testing.assert_allclose(loss[scores.labels == first], np.log(np.exp(logits).sum()), rtol=1e-5)


def test_a_class_of_another_list_is_refused(tmp_path: Path) -> None:
    other = next(i for i in range(1000) if i not in subset_indices("imagenet_a"))
    for number in (other, subset_indices("imagenet_a")[0]):
        draw(tmp_path / synsets()[number] / "a.png", number)
    with pytest.raises(UnsmoothError, match=f"'{synsets()[other]}' is not a class of imagenet_a"):
        evaluate(Reader(), imagenet_a=tmp_path)
    draw(tmp_path / "cats" / "a.png", 0)
    with pytest.raises(UnsmoothError, match="'cats' is not a synset of ImageNet-1k"):
        evaluate(Reader(), imagenet_v2=tmp_path)


@pytest.mark.parametrize("layout", ["flat", "class folders"])
def test_real_accepts_every_label_and_leaves_out_images_without(tmp_path: Path, layout: str) -> None:
    by_number = list(real_labels().values())
    none = next(i for i, labels in enumerate(by_number) if not labels)
    several = next(i for i, labels in enumerate(by_number) if len(labels) > 1)
    one = next(i for i, labels in enumerate(by_number) if len(labels) == 1 and i > several)
    another = next(i for i, labels in enumerate(by_number) if len(labels) == 1 and i > one and labels != by_number[one])
    far = (by_number[one][0] + 500) % 1000
    answers = {none: 0, several: max(by_number[several]), one: far, another: by_number[another][0]}
    for i, (number, answer) in enumerate(answers.items()):
        folder = tmp_path if layout == "flat" else tmp_path / synsets()[i]
        draw(folder / f"ILSVRC2012_val_{number + 1:08d}.png", answer)
    evaluation = evaluate(Reader(), real=tmp_path)
    assert evaluation["real"].images == 3 and evaluation["real"].top1 == pytest.approx(2 / 3)
    assert evaluation["real"].top5 == pytest.approx(2 / 3) and evaluation["real"].loss is None
    assert evaluation.keys() == ["real"]
    few = evaluate(Reader(), real=tmp_path, limit=2)  # the ends, which are right
    assert few.scores["real"].correct.tolist() == [True, True]


def test_real_needs_the_file_names(tmp_path: Path) -> None:
    draw(tmp_path / "cat.png", 1)
    with pytest.raises(UnsmoothError, match=r"'cat\.png' is not named as ImageNet's"):
        evaluate(Reader(), real=tmp_path)


@pytest.mark.parametrize("levels", [(), ("fog", "snow"), ("fog/1", "fog/5", "blur/1", "blur/5")])
def test_corrupted_copies_in_every_layout(tmp_path: Path, levels: tuple[str, ...]) -> None:
    clean, worse = tmp_path / "clean", tmp_path / "worse"
    for i, name in enumerate(("ant", "bee", "cat")):
        draw(clean / name / "a.png", i)
        for j, level in enumerate(levels or ("",)):
            draw(worse / level / name / "a.png", i if i <= j else 0)  # one more is right at each level
    evaluation = evaluate(Reader(3), clean, corrupted=worse)
    tests = [f"corrupted/{level}" for level in levels] or ["corrupted"]
    right = dict(zip(tests, (1 / 3, 2 / 3, 1.0, 1.0), strict=False))
    mean = ["corrupted, mean"] if levels else []
    assert evaluation.keys() == ["validation", *sorted(tests), *mean]
    assert evaluation["validation"].top1 == 1.0
    for test, share in right.items():
        assert evaluation[test].top1 == pytest.approx(share)
    if levels:
        row = evaluation["corrupted, mean"]
        assert row.top1 == pytest.approx(sum(right.values()) / len(right)) and row.top1_interval is None
        assert row.images == 3 * len(levels)


def test_corrupted_classes_go_by_name_not_by_order(tmp_path: Path) -> None:
    for i, name in enumerate(("ant", "bee", "cat")):
        draw(tmp_path / "clean" / name / "a.png", i)
    for i, name in ((1, "bee"), (2, "cat")):  # no ant was corrupted
        draw(tmp_path / "worse" / name / "a.png", i)
    assert evaluate(Reader(3), tmp_path / "clean", corrupted=tmp_path / "worse")["corrupted"].top1 == 1.0
    draw(tmp_path / "worse" / "dog" / "a.png", 2)
    with pytest.raises(UnsmoothError, match="'dog' is none of the model's 3 classes"):
        evaluate(Reader(3), tmp_path / "clean", corrupted=tmp_path / "worse")


def test_corrupted_classes_by_number_and_by_synset(tmp_path: Path) -> None:
    for number in (2, 10):
        draw(tmp_path / "numbers" / str(number) / "a.png", number)
        draw(tmp_path / "synsets" / "fog" / "3" / synsets()[number] / "a.png", number)
    assert evaluate(Reader(11), corrupted=tmp_path / "numbers")["corrupted"].top1 == 1.0
    assert evaluate(Reader(), corrupted=tmp_path / "synsets")["corrupted/fog/3"].top1 == 1.0
    with pytest.raises(UnsmoothError, match="'10' is none of the model's 10 classes"):
        evaluate(Reader(10), corrupted=tmp_path / "numbers")
    draw(tmp_path / "flat" / "a.png", 0)
    with pytest.raises(UnsmoothError, match="no class folders"):
        evaluate(Reader(10), corrupted=tmp_path / "flat")


def test_validation_is_the_split_or_all_of_it(tmp_path: Path) -> None:
    for i, name in enumerate(("ant", "bee")):
        draw(tmp_path / "plain" / name / "a.png", i)
        draw(tmp_path / "split" / "train" / name / "a.png", i)
        draw(tmp_path / "split" / "val" / name / "a.png", i)
        draw(tmp_path / "split" / "val" / name / "b.png", 1)
        draw(tmp_path / "held" / "validation" / name / "a.png", i)
    pictures = np.stack([np.asarray(Image.new("RGB", (SIDE, SIDE), (i, 0, 0))) for i in (0, 1, 1)])
    np.savez(tmp_path / "all.npz", images=pictures, labels=np.array([0, 1, 0]))
    np.savez(
        tmp_path / "both.npz",
        x_train=pictures,
        y_train=np.array([0, 1, 0]),
        x_test=pictures[:2],
        y_test=np.array([1, 1]),
    )
    for name, images, top1 in (
        ("plain", 2, 1.0),
        ("split", 4, 0.75),
        ("held", 2, 1.0),
        ("all.npz", 3, 2 / 3),
        ("both.npz", 2, 0.5),
    ):
        row = evaluate(Reader(2), tmp_path / name)["validation"]
        assert (row.images, row.top1) == (images, pytest.approx(top1)), name
    assert validation("digits", 10).images.count == open_splits("digits").val.count < 400


def test_synset_folders_of_a_part_of_imagenet_are_chosen_among(tmp_path: Path) -> None:
    names = [synsets()[i] for i in (10, 500, 900)]
    for name in names:
        draw(tmp_path / name / "a.png", index_of_synset()[name] + 3)
    evaluation = evaluate(Reader(), tmp_path)
    assert evaluation["validation"].top1 == 1.0 and evaluation["validation"].classes == 3
    assert evaluation.scores["validation"].labels.tolist() == [10, 500, 900]
    assert evaluation["validation"].top5 is None


def test_labels_that_are_no_classes_are_refused_before_work(tmp_path: Path) -> None:
    for name in ("ant", "bee", "cat"):
        draw(tmp_path / name / "a.png", 0)
    for classes in (2, 7, 1000):
        with pytest.raises(UnsmoothError, match=f"3 class folders and the model {classes} classes"):
            evaluate(Reader(classes), tmp_path)
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.array([0, 7]))
    with pytest.raises(UnsmoothError, match=r"label 7, and the model has 3 classes \(0 to 2\)"):
        evaluate(Reader(3), tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(UnsmoothError, match="no labels"):
        evaluate(Reader(3), tmp_path / "x.npz")
    with pytest.raises(UnsmoothError, match="no labels"):
        evaluate(Reader(3), "photographs")


@pytest.mark.parametrize("test", ["imagenet_v2", "imagenet_a", "imagenet_r", "real"])
def test_imagenets_tests_need_its_classes_and_a_folder(tmp_path: Path, test: str) -> None:
    with pytest.raises(UnsmoothError, match="needs a model with ImageNet's 1000 classes \\(got 10\\)"):
        evaluate(Reader(10), **{test: tmp_path})  # type: ignore[arg-type]
    with pytest.raises(UnsmoothError, match="there is no folder"):
        evaluate(Reader(), **{test: tmp_path / "missing"})  # type: ignore[arg-type]


def test_images_given_as_such_keep_their_labels(tmp_path: Path) -> None:
    for i, name in enumerate(("ant", "bee")):
        draw(tmp_path / name / "a.png", i)
    images = open_images(tmp_path)
    assert evaluate(Reader(1000), images)["validation"].top1 == 1.0
    bare = Images(images.name, images.count, images.load, images.item_name)
    with pytest.raises(UnsmoothError, match="no labels"):
        evaluate(Reader(1000), bare)


def test_a_limit_spreads_over_every_test(tmp_path: Path) -> None:
    for number in range(10):
        draw(tmp_path / str(number) / "a.png", number)
    evaluation = evaluate(Reader(), imagenet_v2=tmp_path, limit=4)
    assert evaluation.scores["imagenet-v2"].labels.tolist() == [0, 3, 6, 9] and evaluation["imagenet-v2"].top1 == 1.0
