"""Batches for a host from any source of images, and words for what cannot be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.test_sources import IMAGES, batches, deit, picture, pixels
from tests.support.small_hosts import host
from unsmooth.data.image_batches import ImageBatches, image_batches
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import batch_inputs, run


def test_pictures_are_resized_and_normalised_as_the_host_says() -> None:
    white, black = np.full((1, 50, 70, 3), 255, np.uint8), np.zeros((1, 50, 70, 3), np.uint8)
    given = image_batches(deit(), np.concatenate([white, black]), 2)
    (batch,) = given
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (given.mean, given.std))
    torch.testing.assert_close(batch.images, torch.stack([(1 - mean) / std, -mean / std]).expand(2, 3, 32, 32))
    assert given.size == (3, 32, 32) and deit().pretrained_cfg["mean"] == given.mean
    assert (given.to_pixels(batch.images[0]) == 255).all() and (given.to_pixels(batch.images[1]) == 0).all()
    assert given.to_pixels(batch.images[0]).shape == (32, 32, 3)


def test_uint8_tensors_are_pictures_too() -> None:
    given = torch.as_tensor(IMAGES)
    wanted = batches(IMAGES)
    for actual in (batches(given.permute(0, 3, 1, 2)), batches(given.permute(0, 3, 1, 2).contiguous())):
        assert all(torch.equal(a.images, b.images) for a, b in zip(actual, wanted, strict=True))
    grey = batches(given[..., 0])  # (N, H, W), as of an array
    assert all(torch.equal(a.images, b.images) for a, b in zip(grey, batches(IMAGES[..., 0]), strict=True))


def test_the_limit_spreads_over_the_data(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        for i in range(5):
            picture(i, height=8, width=8).save(tmp_path / name / f"{i}.png")
    given = image_batches(deit(), tmp_path, 3, limit=8)
    labels = torch.cat([batch.labels for batch in given])
    assert given.count == len(labels) == 8 and labels.bincount().tolist() == [2, 2, 2, 2]
    assert (
        image_batches(deit(), tmp_path, 3, limit=None).count
        == image_batches(deit(), tmp_path, 3, limit=100).count
        == 20
    )
    names = [name for batch in batches(tmp_path, 3, limit=2) for name in batch.names]
    assert names == ["a/0.png", "d/4.png"], "the ends are taken"
    assert len({n for batch in batches(tmp_path, 3, limit=19) for n in batch.names}) == 19, "none is taken twice"


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("kind", ["tensor", "array", "loader", "folder"])
def test_batches_cover_the_data_once(tmp_path: Path, kind: str, count: int) -> None:
    floats = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for i in range(count):
        picture(i).save(tmp_path / f"{i}.png")
    array = np.stack([pixels(i) for i in range(count)])
    source = {"tensor": floats, "array": array, "loader": [floats], "folder": tmp_path}[kind]
    for size in (1, 3, 100):
        actual = batches(source, size)
        assert [len(b.images) for b in actual] == [size] * (count // size) + [count % size] * (count % size > 0)
        assert len({name for batch in actual for name in batch.names}) == count
        if kind in ("tensor", "loader"):
            assert torch.equal(torch.cat([b.images for b in actual]), floats), "taken as they are"


X = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6)
LOADERS: dict[str, tuple[Any, bool]] = {
    "tensors": ([X[:4], X[4:]], False),
    "pairs": ([(X[:4], Y[:4]), (X[4:], Y[4:])], True),
    "lists": ([[X[:4], Y[:4]], [X[4:], Y[4:]]], True),
    "singles": ([(X[:4],), (X[4:],)], False),
    "triples": ([(X[:4], Y[:4], "more"), (X[4:], Y[4:], "more")], True),
    "pixel_values": ([{"pixel_values": X[:4], "labels": Y[:4]}, {"pixel_values": X[4:], "labels": Y[4:]}], True),
    "image": ([{"image": X}], False),
    "data loader": (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4), True),
}


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_of_all_kinds(kind: str, limit: int | None) -> None:
    loader, labelled = LOADERS[kind]
    for _ in range(2):
        actual = batches(loader, 2, limit)
        assert torch.equal(torch.cat([batch.images for batch in actual]), X[:limit])
        assert all(len(batch.images) <= 2 and len(batch.names) == len(batch.images) for batch in actual)
        assert {name for batch in actual for name in batch.names} == {f"image {i}" for i in range(limit or 6)}
        if labelled:
            assert torch.cat([batch.labels for batch in actual]).tolist() == Y[:limit].tolist()
        else:
            assert all(batch.labels is None for batch in actual)


WRONG_SOURCES: dict[str, tuple[Any, str]] = {
    "a number": (7, "got int"),
    "channels of a tensor": (torch.zeros(2, 4, 32, 32), "takes 3 channels, but the images have 4"),
    "channels of a loader": ([torch.zeros(2, 1, 32, 32)], "takes 3 channels, but the images have 1"),
    "channels of an array": (np.zeros((2, 8, 8, 5), np.uint8), r"1, 3 or 4 channels.*\(2, 8, 8, 5\)"),
    "channels of a uint8 tensor": (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), "1, 3 or 4 channels"),
    "one image without a batch": (torch.zeros(3, 32, 32), r"\(N, C, H, W\).*\(3, 32, 32\)"),
    "a vector": (torch.zeros(8), r"\(N, C, H, W\)"),
    "a vector of uint8": (torch.zeros(8, dtype=torch.uint8), "uint8 of shape"),
    "whole numbers": (torch.zeros(2, 3, 32, 32, dtype=torch.int64), "int64"),
    "an array of floats": (np.zeros((2, 8, 8, 3)), "must be uint8.*float64"),
    "an empty tensor": (torch.zeros(0, 3, 32, 32), "no images"),
    "an empty array": (np.zeros((0, 8, 8, 3), np.uint8), "holds no images"),
    "an empty loader": ([], "has no valid image"),
    "strings": (["a.jpg", "b.jpg"], "got str"),
    "arrays in a loader": ([np.zeros((2, 3, 32, 32))], "got ndarray"),
    "dicts without images": ([{"labels": torch.zeros(2)}], "pixel_values"),
    "empty pairs": ([()], "must yield"),
    "uint8 in a loader": ([torch.zeros(2, 3, 32, 32, dtype=torch.uint8)], "must be floats"),
    "too few labels": ([(X, Y[:2])], "label"),
}


@pytest.mark.parametrize("kind", WRONG_SOURCES)
def test_sources_that_are_wrong(kind: str) -> None:
    source, words = WRONG_SOURCES[kind]
    with pytest.raises(UnsmoothError, match=words) as error:
        batches(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", [X, IMAGES, [X]], ids=["tensor", "array", "loader"])
@pytest.mark.parametrize(("batch_size", "limit"), [(0, None), (-1, None), (2, -1), (2, 0)])
def test_sizes_that_make_no_sense(source: Any, batch_size: int, limit: int | None) -> None:
    with pytest.raises(UnsmoothError):
        batches(source, batch_size, limit)


def test_a_host_of_other_channels_says_what_it_takes(tmp_path: Path) -> None:
    import timm

    picture().save(tmp_path / "a.png")
    build = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 1, "num_classes": 5}
    grey, many = (timm.create_model("deit_tiny_patch16_224", in_chans=channels, **build) for channels in (1, 5))
    (batch,) = batches(tmp_path, model=grey)
    assert batch.images.shape == (1, 1, 32, 32)
    assert image_batches(grey, tmp_path, 2).to_pixels(batch.images[0]).shape == (32, 32, 3)
    with pytest.raises(UnsmoothError, match=r"takes 5 channels.*tensor"):
        batches(tmp_path, model=many)
    assert len(batches(torch.zeros(2, 5, 32, 32), model=many)) == 1


@pytest.mark.parametrize("name", ["digits", "photographs"])
def test_embedded_images(name: str) -> None:
    given = image_batches(deit(), name, 4, limit=6)
    actual = list(given)
    assert given.count == 6 and not given.skipped and [len(batch.images) for batch in actual] == [4, 2]
    assert (actual[0].labels is not None) == (name == "digits")
    assert len({item for batch in actual for item in batch.names}) == 6
    for batch in actual:
        assert batch.images.std() > 0.1 and batch.images.isfinite().all()


@pytest.mark.parametrize("name", ["deit", "hf_vit", "torchvision_vit", "hf_vilt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_runs_through_its_host(name: str, dtype: torch.dtype) -> None:
    model = host(name).to(dtype)
    given: ImageBatches = image_batches(model, None, 2, limit=3)  # no source: what a fresh install has
    assert given.name.startswith("photographs")
    with torch.no_grad():
        for batch in given:
            inputs = batch_inputs(model, batch.images)
            assert all(len(v) == len(batch.images) for v in inputs.values() if isinstance(v, Tensor))
            run(model, inputs)
