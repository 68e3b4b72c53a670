"""Scores of the tokens of each block, from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import unsmooth
from tests.support.scenes import COLOURS, write_scenes
from tests.support.small_hosts import host, look_trained
from unsmooth.cli.main import main
from unsmooth.data.splits import open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.resampling import draw_weights, interval, resampled_accuracy, resampled_miou
from unsmooth.evaluation.token_scores import token_scores
from unsmooth.results.evaluation import Evaluation, TokenScores
from unsmooth.surgery.plan import anatomy_of

SMALL = "img_size=32, patch_size=8, embed_dim=48, num_heads=3, depth=3, num_classes=0"
SPEC = f"vit_small_patch14_reg4_dinov2({SMALL})"
DIGITS = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2, num_classes=0)"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("scenes"), train=12, val=8, size=(32, 32))


def model_of(spec: str = SPEC) -> nn.Module:
    return look_trained(unsmooth.create_model(spec)).eval()


def collapse(model: Any) -> None:
    """Replace every token after the last block by the mean token."""
    model.blocks[-1].register_forward_hook(lambda _, __, out: out.mean(1, keepdim=True).expand_as(out).contiguous())


def block_tokens(model: Any, images: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    """Outputs of the blocks by timm's own function, without prefix tokens, and the class tokens."""
    with torch.no_grad():
        pairs = model.forward_intermediates(
            images, intermediates_only=True, return_prefix_tokens=True, norm=False, output_fmt="NLC"
        )
    return [np.concatenate([prefix.numpy(), patches.numpy()], 1) for patches, prefix in pairs]


def test_miou_of_neighbours_is_as_by_hand(scenes: Path) -> None:
    model = model_of()
    actual = token_scores(model, scenes, mask_classes=5, memory_tokens=10_000, batch_size=5)
    config = timm_config(model)
    tokens, masks = {}, {}
    for split in ("training", "validation"):
        files = sorted((scenes / "images" / split).iterdir())
        pixels = np.stack([np.asarray(Image.open(file)) for file in files]) / 255.0
        x = torch.tensor((pixels - config["mean"]) / config["std"], dtype=torch.float32).permute(0, 3, 1, 2)
        tokens[split] = [block[:, 5:] for block in block_tokens(model, x)]  # a class token and four registers
        values = [np.asarray(Image.open(scenes / "annotations" / split / f"{file.stem}.png")) for file in files]
        masks[split] = np.stack(values).astype(int) - 1
    # A patch is one cell of one colour; only the first two rows of pixels are unlabelled.
    labels = masks["training"][:, 7::8, 7::8].reshape(-1)
    for block in range(3):
        knn = KNeighborsClassifier(
            20, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
        )
        knn.fit(tokens["training"][block].reshape(-1, 48).astype(float), labels)
        predicted = knn.predict(tokens["validation"][block].reshape(-1, 48).astype(float)).reshape(8, 4, 4)
        pixels = predicted.repeat(8, 1).repeat(8, 2)
        there = masks["validation"] >= 0
        matrix = confusion_matrix(masks["validation"][there], pixels[there], labels=range(5))
        iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
        assert actual["patch", "knn"][block].score == pytest.approx(iou.mean(), abs=0.02)
        unit = tokens["validation"][block] / np.linalg.norm(tokens["validation"][block], axis=-1, keepdims=True)
        cosines = [np.abs(u @ u.T)[np.triu_indices(16, 1)].mean() for u in unit]
        assert actual.similarity[block] == pytest.approx(np.mean(cosines), abs=1e-4)
    assert (actual.memory_images, actual.memory_tokens, actual.images, actual.classes) == (12, 12 * 16, 8, 5)
    assert actual.ceiling == dict.fromkeys(range(3), 1.0)


def timm_config(model: Any) -> dict[str, Any]:
    return {name: np.array(model.pretrained_cfg[name]) for name in ("mean", "std")}


def test_accuracy_of_pooled_and_class_tokens_is_as_by_hand() -> None:
    model = model_of(DIGITS)
    actual = token_scores(model, "digits", memory_images=300, limit=100)
    splits = open_splits("digits")
    features, labels = [], []
    for part, count in ((splits.train, 300), (splits.val, 100)):
        indices = np.linspace(0, part.count - 1, count).round().astype(int)
        pixels = np.stack([np.asarray(part.load(i)) for i in indices]) / 255.0  # type: ignore[union-attr]
        features.append(block_tokens(model, torch.tensor((pixels - 0.5) / 0.5, dtype=torch.float32)[:, None]))
        labels.append(np.array([part.labels(i) for i in indices]))  # type: ignore[union-attr, misc]
    for block in range(2):
        pooled = {"mean": [part[block][:, 1:].mean(1) for part in features]}
        pooled["class"] = [part[block][:, 0] for part in features]
        for kind, (memory, queries) in pooled.items():
            knn = KNeighborsClassifier(
                20, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
            )
            correct = knn.fit(memory.astype(float), labels[0]).predict(queries.astype(float)) == labels[1]
            row = actual[kind, "knn"][block]
            assert row.score == pytest.approx(correct.mean(), abs=0.011)
            z = 1.959964
            centre, half = row.score + z**2 / 200, z * np.sqrt(row.score * (1 - row.score) / 100 + z**2 / 40000)
            expected = ((centre - half) / (1 + z**2 / 100), (centre + half) / (1 + z**2 / 100))
            assert row.interval == pytest.approx(expected, abs=1e-4)
    assert actual.memory_tokens == 0 and actual.ceiling == {} and actual.classes == 10


@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_a_collapsed_block_costs_everything_and_the_block_before_it_gives_it_back(scenes: Path, probe: str) -> None:
    model = model_of()
    healthy = token_scores(model, scenes, mask_classes=5)
    collapse(model)
    ill = token_scores(model, scenes, mask_classes=5)
    assert healthy["patch", probe][0].score == ill["patch", probe][0].score > 0.6
    # Equal tokens of an image can at best have its most frequent class.
    assert ill["patch", probe][2].score < 0.3 < healthy["patch", probe][2].score
    assert ill.similarity[2] == pytest.approx(1, abs=1e-4)
    assert ill["patch", probe][1].gain_interval[0] > 0.2
    assert ill["patch", probe][2].gain == 0 and ill["patch", probe][2].gain_interval == (0, 0)


@pytest.mark.parametrize("masks", [False, True])
def test_scores_per_image_compare_two_models(scenes: Path, masks: bool) -> None:
    """As between blocks of one model: the parts of two scores, resampled with the same weights."""
    model = model_of(SPEC if masks else DIGITS)
    data: dict[str, Any] = {"data": scenes, "mask_classes": 5} if masks else {"data": "digits", "limit": 40}
    kind = "patch" if masks else "mean"
    first = token_scores(model, **data)
    second = token_scores(look_trained(model, seed=1), **data)
    assert set(first.per_image) == {(p.tokens, p.probe, row.block) for p in first.probes for row in p.blocks}
    resample = resampled_miou if masks else resampled_accuracy
    weights = draw_weights(first.images)
    values = [resample(weights, *scores.per_image[kind, "knn", 0]) for scores in (first, second)]
    assert [value[0] for value in values] == [scores[kind, "knn"][0].score for scores in (first, second)]
    low, high = interval(values[0] - values[1])
    assert low <= high


def test_labels_at_random_score_chance(tmp_path: Path) -> None:
    write_scenes(tmp_path, train=10, val=10, size=(32, 32))
    generator = np.random.default_rng(5)
    for file in (tmp_path / "annotations").rglob("*.png"):
        cells = generator.integers(1, len(COLOURS) + 1, (4, 4)).astype(np.uint8)
        Image.fromarray(cells.repeat(8, 0).repeat(8, 1)).save(file)
    scores = token_scores(model_of(), tmp_path, mask_classes=5)
    assert all(row.score < 0.25 for probe in scores.probes for row in probe.blocks)
    assert scores.chance < 0.1  # a fifth of the pixels of one class, none of the other four


def test_observing_changes_nothing_and_batches_do_not_matter(scenes: Path) -> None:
    model = model_of().train()
    x = torch.randn(2, 3, 32, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = token_scores(model, scenes, mask_classes=5, memory_tokens=60, batch_size=3)
    assert model.training and not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    second = token_scores(model, scenes, mask_classes=5, memory_tokens=60, batch_size=8)
    assert first.memory_tokens == second.memory_tokens == 60
    for probe, same in zip(first.probes, second.probes, strict=True):
        for a, b in zip(probe.blocks, same.blocks, strict=True):
            assert a.score == pytest.approx(b.score, abs=0.02)
    assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize(
    "name",
    ["deit_distilled", "swin", "pvt_v2", "cait", "eva02", "hf_vit", "hf_swin", "torchvision_vit", "torchvision_swin"],
)
def test_any_host_with_tokens_on_a_grid_is_scored(name: str, scenes: Path) -> None:
    model = host(name)
    by_masks = token_scores(model, scenes, mask_classes=5, memory_images=6, limit=4, batch_size=4)
    by_labels = token_scores(model, "digits", memory_images=40, limit=20, batch_size=20)
    blocks = set(range(len(anatomy_of(model).blocks)))
    for scores in (by_masks, by_labels):
        for probe in scores.probes:
            scored = {row.block for row in probe.blocks}
            assert scored and scored <= blocks - scores.skipped.keys()
            # A perfect mIoU has an interval without width.
            assert all(0 <= row.interval[0] <= row.interval[1] <= 1 for row in probe.blocks)
        assert {row.block for row in scores.probes[0].blocks} | scores.skipped.keys() == blocks
    kinds = {probe.tokens for probe in by_labels.probes}
    assert ("class" in kinds) == (name in ("deit_distilled", "eva02", "hf_vit", "torchvision_vit"))


def test_blocks_with_nan_are_named(scenes: Path) -> None:
    model: Any = model_of()
    model.blocks[2].register_forward_hook(lambda _, __, out: out * torch.nan)
    scores = token_scores(model, scenes, mask_classes=5)
    assert scores.skipped == {2: "its tokens contain NaN or infinity"}
    assert [row.block for row in scores["patch", "knn"].blocks] == [0, 1]
    assert "block 2 skipped: its tokens contain NaN" in str(scores)
    model.blocks[0].register_forward_hook(lambda _, __, out: out * torch.nan)
    with pytest.raises(UnsmoothError, match="no block has tokens that can be scored: block 0: its tokens contain NaN"):
        token_scores(model, scenes, mask_classes=5)


def test_a_block_without_a_grid_is_named(scenes: Path) -> None:
    model: Any = model_of()
    model.blocks[2].register_forward_hook(lambda _, __, out: out[:, :-3])
    scores = token_scores(model, scenes, mask_classes=5)
    assert scores.skipped == {2: "its tokens are not on a grid"}
    assert scores["patch", "linear"].blocks[-1].block == 1 and scores["patch", "linear"][1].gain == 0


def test_values_of_masks_are_checked_and_zero_can_be_a_class(scenes: Path) -> None:
    with pytest.raises(UnsmoothError, match="has the value 5, but 3 classes"):
        token_scores(SPEC, scenes, mask_classes=3)
    assert token_scores(SPEC, scenes, mask_classes=6, reduce_zero_label=False).classes == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder, "no split train"),
        (lambda folder: folder / "none", "none"),
        (lambda folder: (folder / "images").mkdir() or (folder / "annotations").mkdir() or folder, "no folder"),
    ],
)
def test_data_without_a_training_part_is_an_error(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        token_scores(SPEC, make(tmp_path))


def test_one_class_is_an_error(tmp_path: Path) -> None:
    write_scenes(tmp_path, train=2, val=2, size=(32, 32))
    for file in (tmp_path / "annotations").rglob("*.png"):
        Image.fromarray(np.full((32, 32), 2, dtype=np.uint8)).save(file)
    with pytest.raises(UnsmoothError, match="fewer than two classes"):
        token_scores(SPEC, tmp_path, mask_classes=5)


def test_broken_images_are_skipped_and_listed(tmp_path: Path) -> None:
    write_scenes(tmp_path, train=4, val=4, size=(32, 32))
    broken = sorted((tmp_path / "images" / "validation").iterdir())[1]
    broken.write_bytes(b"")
    scores = token_scores(SPEC, tmp_path, mask_classes=5)
    assert scores.images == 3 and "the file is empty" in next(iter(scores.skipped_images.values()))
    with pytest.raises(UnsmoothError, match="is broken"):
        token_scores(SPEC, tmp_path, mask_classes=5, strict=True)


def test_the_command_prints_a_table_of_80_columns(scenes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", SPEC, "--tokens", str(scenes), "--mask-classes", "5"]) == 0
    assert "patch tokens" in capsys.readouterr().out
    scores = token_scores(DIGITS, "digits", memory_images=60, limit=30)
    lines = str(scores).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("class token" in line for line in lines) >= 2
    assert any(line.split()[:1] == ["1"] and "–" in line for line in lines)


def test_the_command_writes_json_that_reads_back(scenes: Path, tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    assert main(["evaluate", DIGITS, "--tokens", "digits", "--limit", "30", "--out", str(file)]) == 0
    evaluation = Evaluation.from_json(file)
    assert evaluation.rows == [] and evaluation.model.classes == 0 and evaluation.tokens is not None
    assert set(evaluation.tokens.keys()) == {(kind, p) for kind in ("mean", "class") for p in ("knn", "linear")}
    assert evaluation.to_dict() == json.loads(file.read_text())
    assert isinstance(evaluation.tokens, TokenScores) and 0 in evaluation.tokens.similarity
    with pytest.raises(UnsmoothError, match="probe"):
        evaluation.tokens["patch", "knn"]
    with pytest.raises(UnsmoothError, match="block"):
        evaluation.tokens["mean", "knn"][7]
