"""Data that is read from front to back: shards, streams and records. Packages that are not here are not tested."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from tests.support.streams import LENGTHS, noted_stream
from unsmooth.data import streams
from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.data.datasets import ImageDataset
from unsmooth.data.images import Example, ImageReadError, Images, Stream
from unsmooth.data.random_access import as_images
from unsmooth.data.sources import open_images, open_source
from unsmooth.data.splits import limit_splits, open_splits
from unsmooth.data.streams import shuffled
from unsmooth.errors import UnsmoothError

TRANSFORM = create_transform((3, 12, 12), is_training=False, crop_pct=1.0)
CLASSES = ("cat", "dog", "newt")


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def shard(path: Path, indices: range, **other: dict[int, bytes]) -> None:
    """A tar file of images and labels; `other` replaces the content of some of them, by suffix."""
    with tarfile.open(path, "w") as file:
        for i in indices:
            files = {"cls": str(i % 3).encode(), "png": png(i), "json": json.dumps({"fine": i % 5 - 1}).encode()}
            for suffix, content in files.items():
                content = other.get(suffix, {}).get(i, content)
                if content != b"none":
                    about = tarfile.TarInfo(f"sub/{i:04d}.{suffix}")
                    about.size = len(content)
                    file.addfile(about, io.BytesIO(content))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indices of shards are kept in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unsmooth" / "shards"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for k in range(3):
        shard(tmp_path / f"toy-train-{k}.tar", range(10 * k, 10 * k + 10))
    shard(tmp_path / "toy-validation-0.tar", range(100, 107))
    splits = {
        name: {"name": name, "num_samples": count, "filenames": files, "shard_lengths": []}
        for name, count, files in (
            ("train", 30, [f"toy-train-{k}.tar" for k in range(3)]),
            ("validation", 7, ["toy-validation-0.tar"]),
        )
    }
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    return tmp_path


def stream(source: Any) -> Stream:
    assert isinstance(source, Stream)
    return source


def names(source: Any, seed: int | None = None) -> list[str]:
    return [Path(example.name).name for example in stream(source).examples(seed)]


# Order


@pytest.mark.parametrize("count", [0, 3, 8, 50])
def test_a_buffer_gives_everything_once(count: int) -> None:
    actual = list(shuffled(range(count), 1, 8))
    assert sorted(actual) == list(range(count)) and actual == list(shuffled(range(count), 1, 8))
    assert list(shuffled(range(count), None)) == list(range(count))
    if count == 50:
        assert actual != list(shuffled(range(count), 2, 8)) and actual[0] < 8
        assert np.mean([a < b for a, b in pairwise(actual)]) < 0.8, "it shuffles"


def test_a_stream_by_place_goes_forward_and_starts_anew() -> None:
    begun = []

    def examples(seed: int | None) -> Iterator[Example]:
        begun.append(seed)
        return (Example(lambda: Image.new("RGB", (4, 4)), i % 2, f"image {i}") for i in range(6))

    images = as_images(Stream("six", 6, examples))
    assert [images.item_name(i) for i in (0, 3, 3, 5)] == ["image 0", "image 3", "image 3", "image 5"] and begun == [
        None
    ]
    assert images.item_name(2) == "image 2" and begun == [None, None]
    assert images.labels is not None and images.labels(3) == 1 and images.load(4).size == (4, 4)
    with pytest.raises(UnsmoothError, match="six has 6 images, fewer than the expected 9"):
        as_images(Stream("six", 9, examples)).item_name(8)
    with pytest.raises(UnsmoothError, match=r"does not specify its number of images.*six\|50000"):
        as_images(Stream("six", 0, examples))


# WebDataset


def test_shards_by_the_names_of_their_splits(shards: Path) -> None:
    splits = open_splits("wds/toy", root=shards)
    assert (splits.train.count, splits.val.count, splits.classes) == (30, 7, 3)
    assert names(splits.train) == [f"{i:04d}" for i in range(30)]
    orders = [names(splits.train, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2]) == names(splits.train)
    example = next(stream(splits.val).examples(None))
    assert example.label == 100 % 3 and np.array_equal(example.load(), np.asarray(Image.open(io.BytesIO(png(100)))))


def test_shards_themselves_are_shuffled(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer alone would never bring the last shard of many to the front."""
    monkeypatch.setattr("unsmooth.data.streams.shuffled", lambda examples, seed: examples)
    train = open_source("wds/toy@train", shards)
    first = {names(train, seed)[0] for seed in range(20)}
    assert first == {"0000", "0010", "0020"} and names(train)[0] == "0000"


def test_a_file_that_was_begun_here_is_begun_anew_in_workers(shards: Path) -> None:
    """Forked processes share the place in an open file, and would read across each other."""
    pictures = ImageDataset(open_splits("wds/toy", root=shards).train, TRANSFORM, 3)
    wanted = [pictures[(i, None)].image for i in range(30)]
    assert pictures[(0, None)].label == 0  # begun anew, and open
    batches = list(evaluation_batches(pictures, 3, workers=2))
    order = torch.cat([batch.indices for batch in batches]).argsort()
    actual = torch.cat([batch.images for batch in batches])[order]
    assert torch.equal(actual, torch.stack([image for image in wanted if image is not None]))


def test_shards_by_pattern_and_number(shards: Path) -> None:
    (shards / "_info.json").unlink()
    counted = open_splits("wds/toy@toy-train-{0..1}.tar", "wds/toy@toy-validation-0.tar", shards)
    assert (counted.train.count, counted.val.count, counted.classes) == (20, 7, 3), "found by reading the labels"
    said = open_splits("wds/toy@toy-train-{0..2}.tar|24", "wds/toy@toy-validation-0.tar|7", shards)
    assert (said.train.count, said.val.count) == (24, 7)


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_trained_on(shards: Path, workers: int) -> None:
    pictures = ImageDataset(open_splits("wds/toy", root=shards).train, TRANSFORM, 3)
    actual = list(TrainingBatches(pictures, 10, 3, workers=workers).from_step(1, 0))
    wanted = torch.stack([TRANSFORM(Image.open(io.BytesIO(png(i)))) for i in range(30)])
    seen = torch.cat([batch.images for batch in actual])
    match = (seen.flatten(1)[:, None] == wanted.flatten(1)[None]).all(-1)
    assert (match.sum(0) == 1).all() and match.int().argmax(1).tolist() != list(range(30))
    assert torch.equal(torch.cat([batch.labels for batch in actual]), match.int().argmax(1) % 3)


def test_shards_by_place(shards: Path) -> None:
    """Wherever images are wanted by place, a stream gives them."""
    given = open_images("wds/toy", shards)
    assert given.count == 7 and given.labels is not None and [given.labels(i) for i in (2, 5)] == [102 % 3, 105 % 3]
    assert given.item_name(6).endswith("toy-validation-0.tar/sub/0106")
    assert np.array_equal(given.load(6), np.asarray(Image.open(io.BytesIO(png(106)))))


def test_labels_that_the_information_file_names(shards: Path) -> None:
    about = json.loads((shards / "_info.json").read_text())
    about["splits"]["train"]["alt_label"] = "fine"
    about["splits"]["train"]["num_samples"] = 0
    (shards / "_info.json").write_text(json.dumps(about))
    train = stream(open_source("wds/toy@train", shards))
    assert train.count == 24 and train.read_labels is not None and train.read_labels() == {0, 1, 2, 3}
    assert names(train) == [f"{i:04d}" for i in range(30) if i % 5], "a negative one is no example"


def test_broken_images_in_shards(shards: Path) -> None:
    shard(shards / "toy-train-0.tar", range(10), png={2: b"", 3: png(3)[:60], 4: b"none"})
    actual = {Path(e.name).name: e for e in stream(open_source("wds/toy@train", shards)).examples(None)}
    for name, words in (
        ("0002", "empty"),
        ("0003", "truncated|broken|corrupt"),
        ("0004", "no jpg, jpeg, png, webp file"),
    ):
        with pytest.raises(ImageReadError, match=words):
            actual[name].load()
    pictures = ImageDataset(open_splits("wds/toy", root=shards).train, TRANSFORM, 3)
    batches = list(TrainingBatches(pictures, 10, 3).from_step(0, 0))
    assert [len(batch.labels) for batch in batches] == [10, 10, 10]
    assert {Path(name).name for batch in batches for name in batch.skipped} == {"0002", "0003", "0004"}


SHARD_MISTAKES: dict[str, tuple[str, str]] = {
    "no such split": ("wds/toy@part", "cannot open .*part not found"),
    "a shard is missing": ("wds/toy@toy-train-{0..5}.tar", "the shard .*toy-train-3.tar does not exist"),
    "a label is text": ("wds/toy@text.tar", "0001 has no integer label in its .cls file"),
    "a label is missing": ("wds/toy@none.tar", "0001 has no integer label in its .cls file"),
    "a shard is cut": ("wds/toy@cut.tar", "cannot read the shard .*cut.tar"),
}


@pytest.mark.parametrize("kind", SHARD_MISTAKES)
def test_shards_that_cannot_be_used(shards: Path, kind: str) -> None:
    name, words = SHARD_MISTAKES[kind]
    shard(shards / "text.tar", range(3), cls={1: b"dog"})
    shard(shards / "none.tar", range(3), cls={1: b"none"})
    (shards / "cut.tar").write_bytes((shards / "toy-train-0.tar").read_bytes()[:5000])
    with pytest.raises(UnsmoothError, match=words) as error:
        list(stream(open_source(f"{name}|3" if "@toy" not in name else name, shards)).examples(None))
    assert "\n" not in str(error.value)


def test_mistakes_about_streams(shards: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"needs data_dir \(--data-dir\): the folder or URL of the shards"):
        open_splits("wds/toy")
    (shards / "_info.json").unlink()
    with pytest.raises(UnsmoothError, match=r"wds/toy@toy-train-0\.tar has no split for validation.*--val-data"):
        open_splits("wds/toy@toy-train-0.tar", root=shards)
    splits = open_splits("wds/toy@toy-train-{0..2}.tar", "wds/toy@toy-validation-0.tar", shards)
    with pytest.raises(UnsmoothError, match="is a stream, which cannot be limited"):
        limit_splits(splits, 5)
    shard(shards / "far.tar", range(3), cls={1: b"7"})
    with pytest.raises(UnsmoothError, match="have label 7, but there are 3 classes"):
        open_splits("wds/toy@toy-train-0.tar", "wds/toy@far.tar", shards)


def test_classes_that_nobody_knows(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def far(name: str, root: Path) -> Stream:  # as behind an address
        return replace(stream(open_source(name, root)), read_labels=None)

    monkeypatch.setattr("unsmooth.data.splits.open_source", far)
    with pytest.raises(UnsmoothError, match=r"number of classes.*wds/toy@train\|\|1000$"):
        open_splits("wds/toy", root=shards)
    for splits in (open_splits("wds/toy", root=shards, classes=4), open_splits("wds/toy||4", root=shards)):
        assert splits.classes == 4 and stream(splits.train).num_classes == stream(splits.val).num_classes == 4


def test_shards_are_counted_by_one_process(
    shards: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """`_info.json` has no lengths here."""
    log, count = shards / "log", streams._shard_labels

    def noted(path: str, key: str) -> Iterator[int]:
        with log.open("a") as file:
            file.write(f"{Path(path).name}\n")
        time.sleep(0.05)  # the other process opens the shards meanwhile
        return count(path, key)

    def opened() -> list[str]:
        """The shards that are counted when two processes open them."""
        log.write_text("")
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=open_and_check) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        return log.read_text().split()

    def open_and_check() -> None:
        train = stream(open_source("wds/toy@train", shards))
        assert train.shards is not None and train.shards.lengths == (10, 10, 10)
        assert train.read_labels is not None and train.read_labels() == {0, 1, 2}

    monkeypatch.setattr("unsmooth.data.streams._shard_labels", noted)
    files = [f"toy-train-{k}.tar" for k in range(3)]
    assert opened() == files and opened() == []
    (index,) = own_cache.iterdir()
    index.write_text(index.read_text()[:20])  # its process was killed
    assert opened() == files and opened() == []
    os.utime(shards / files[0], (1, 1))
    assert opened() == files, "a shard was written again"
    shutil.rmtree(own_cache)
    own_cache.write_text("a folder that cannot be written")
    assert sorted(opened()) == sorted(2 * files)


# Hugging Face


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for split, indices in (("train", range(12)), ("test", range(50, 56))):
        for i in indices:
            place = tmp_path / "pictures" / split / CLASSES[i % 3]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i}.png").write_bytes(png(i))
    return tmp_path


def test_tables_by_place(tables: Path) -> None:
    splits = open_splits(f"hfds/{tables}/pictures", root=tables / "cache")
    assert (splits.train.count, splits.val.count, splits.classes) == (12, 6, 3)
    assert isinstance(splits.train, Images) and splits.train.labels is not None and splits.train.classes == CLASSES
    for i in range(12):
        name = splits.train.item_name(i).rpartition("(")[2]
        assert int(name.split(".")[0]) % 3 == splits.train.labels(i) and splits.train.load(i).size == (12, 12)


def test_tables_as_streams(tables: Path) -> None:
    name = f"hfids/{tables}/pictures"
    with pytest.raises(UnsmoothError, match="does not specify its number of images"):
        open_splits(f"{name}@train", f"{name}@test", tables / "cache")
    splits = open_splits(f"{name}@train|12", f"{name}@test|6", tables / "cache")
    assert splits.classes == 3 and splits.train.classes == CLASSES and len(names(splits.val)) == 6
    orders = [names(splits.train, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == sorted(names(splits.train))
    pictures = ImageDataset(splits.train, TRANSFORM, 3)
    alone, helped = (list(TrainingBatches(pictures, 4, 3, workers=workers).from_step(0, 0)) for workers in (0, 2))
    assert all(torch.equal(a.images, b.images) for a, b in zip(alone, helped, strict=True))


def test_tables_that_cannot_be_used(tables: Path) -> None:
    for prefix in ("hfds", "hfids"):
        with pytest.raises(UnsmoothError, match=r"cannot open .*(Unknown|Bad) split"):
            open_source(f"{prefix}/{tables}/pictures@part", tables / "cache")


# TensorFlow Datasets


@pytest.mark.slow
def test_records(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    tf = pytest.importorskip("tensorflow")
    features = {"image": tfds.features.Image(shape=(12, 12, 3)), "label": tfds.features.ClassLabel(names=CLASSES)}
    pixels = {i: np.asarray(Image.open(io.BytesIO(png(i)))) for i in range(26)}

    def rows(indices: range) -> Any:
        return tf.data.Dataset.from_tensor_slices(
            {"image": np.stack([pixels[i] for i in indices]), "label": [i % 3 for i in indices]}
        )

    tfds.dataset_builders.store_as_tfds_dataset(
        "toy", version="1.0.0", features=tfds.features.FeaturesDict(features), data_dir=tmp_path,
        split_datasets={"train": rows(range(20)), "validation": rows(range(20, 26))},
    )  # fmt: skip
    splits = open_splits("tfds/toy", root=tmp_path)
    assert (splits.train.count, splits.val.count, splits.classes) == (20, 6, 3) and splits.train.classes == CLASSES
    actual = list(stream(splits.train).examples(1))
    match = [next(i for i in range(20) if np.array_equal(e.load(), pixels[i])) for e in actual]
    assert sorted(match) == list(range(20)) and [e.label for e in actual] == [i % 3 for i in match]
    assert names(splits.train, 1) == [e.name for e in actual] != names(splits.train, 2)
    assert len(names(open_source("tfds/toy@train[3:10]", tmp_path))) == 7


# Which process and worker reads which shards


def counted(lengths: tuple[int, ...] = LENGTHS, known: bool = True) -> tuple[Stream, list[tuple[int, int]]]:
    """A stream, and a list of what was read of it."""
    read: list[tuple[int, int]] = []
    return noted_stream(lambda *image: read.append(image), lengths, known), read


def pixels_of(batches: Any) -> list[Any]:
    return [batch.images for batch in batches]


@pytest.mark.parametrize("known", [True, False], ids=["lengths", "no lengths"])
def test_processes_and_workers_read_their_own_shards(known: bool) -> None:
    """32 images per batch make 4 lanes of 8 positions: one process of two reads half of them, with mixup's pairs."""
    source, read = counted(known=known)
    alone = list(TrainingBatches(ImageDataset(source, TRANSFORM, 3), 32, 5).from_step(1, 0))
    assert len(alone) == 2 and len(set(read)) >= 64 - (0 if known else 16)
    whole, readers = torch.stack(pixels_of(alone)), []
    for rank in range(2):
        source, read = counted(known=known)
        batches = TrainingBatches(ImageDataset(source, TRANSFORM, 3), 32, 5, rank=rank, world=2)
        share = torch.stack(pixels_of(batches.from_step(1, 0)))
        assert torch.equal(share, whole[:, batches.sampler.share]), "the images of one process, bit for bit"
        readers.append(set(read))
        for workers in (2, 3, 5) if rank else ():
            helped = TrainingBatches(ImageDataset(source, TRANSFORM, 3), 32, 5, workers=workers, rank=rank, world=2)
            assert torch.equal(torch.stack(pixels_of(helped.from_step(1, 0))), share)
    both = {i for i, _ in readers[0]} & {i for i, _ in readers[1]}
    assert len(both) <= (1 if known else 0), "only the shard at the border is read by both"


def test_each_worker_opens_its_own_shards(tmp_path: Path) -> None:
    source, _ = counted()
    shards, log = source.shards, tmp_path / "log"
    assert shards is not None

    def noted(i: int) -> Iterator[Example]:
        with log.open("a") as file:
            file.write(f"{multiprocessing.current_process().pid} {i}\n")
        return shards.read(i)

    source = replace(source, shards=replace(shards, read=noted))
    list(TrainingBatches(ImageDataset(source, TRANSFORM, 3), 32, 5, workers=4).from_step(0, 0))
    opened: dict[str, set[str]] = {}
    for line in log.read_text().splitlines():
        process, shard = line.split()
        opened.setdefault(process, set()).add(shard)
    assert len(opened) == 4 and max(map(len, opened.values())) <= 4, "each of four lanes spans two to four shards"


def test_an_epoch_of_lanes_has_each_image_at_most_once() -> None:
    source, _ = counted()
    orders = []
    for epoch in range(2):
        rows = [(batch.images * 1000).round()[:, :, 0, 0] for batch in TrainingBatches(
            ImageDataset(source, TRANSFORM, 3), 32, 5).from_step(epoch, 0)]  # fmt: skip
        orders.append([tuple(row.tolist()) for row in torch.cat(rows)])
        assert len(set(orders[-1])) == len(orders[-1]) == 64
    assert orders[0] != orders[1]


@pytest.mark.parametrize("repeats", [0, 3])
@pytest.mark.parametrize("known", [True, False], ids=["lengths", "no lengths"])
def test_a_stream_resumes_at_a_step(known: bool, repeats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.data.lanes.BLOCK", 8)
    monkeypatch.setattr("unsmooth.data.lanes.LEAST_BLOCK", 4)
    lengths = (20,) * 16
    source, read = counted(lengths, known)
    batches = TrainingBatches(ImageDataset(source, TRANSFORM, 3), 16, 2, repeats)
    whole = pixels_of(batches.from_step(3, 0))
    assert len(whole) == 20 and len(read) >= 320 / max(1, repeats)
    for start in (1, 19):
        read.clear()
        rest = pixels_of(batches.from_step(3, start))
        assert len(rest) == 20 - start and all(map(torch.equal, rest, whole[start:]))
        if known:  # not what comes before, except in the block and in the shard
            assert len(read) <= (320 - 16 * start) / max(1, repeats) + 2 * (20 + 8)


def test_evaluation_reads_each_shard_in_one_process() -> None:
    opened = []
    for rank in range(2):
        source, read = counted()
        batches = evaluation_batches(ImageDataset(source, TRANSFORM, 3), 8, rank=rank, world=2)
        indices = [i for batch in batches for i in batch.indices.tolist()]
        assert indices == list(range(36))[:36] if rank == 0 else indices == list(range(36, 72))
        opened.append({i for i, _ in read})
    assert len(opened[0] & opened[1]) <= 1 and opened[0] | opened[1] == set(range(8))


@pytest.mark.parametrize(
    ("lengths", "options", "most"),
    [
        ((40, 40), {"workers": 2}, 42),
        ((10,) * 8, {"workers": 3}, 28 + 9),  # of a shard at the border, the images before the part are read too
        ((10,) * 8, {"workers": 2, "rank": 1, "world": 2}, 21 + 9),
    ],
    ids=["2 shards", "8 shards", "2 processes"],
)
def test_each_worker_reads_its_part_of_an_evaluation(
    tmp_path: Path, lengths: tuple[int, ...], options: dict[str, int], most: int
) -> None:
    """12 batches of 80 images, or 6 batches of half of them."""
    log = tmp_path / "log"

    def note(i: int, n: int) -> None:
        with log.open("a") as file:
            file.write(f"{multiprocessing.current_process().pid}\n")

    def batches(**options: Any) -> tuple[list[tuple[list[int], torch.Tensor]], list[int]]:
        """Batches, and how many images each process has read."""
        log.write_text("")
        pictures = ImageDataset(noted_stream(note, lengths), TRANSFORM, 3)
        rows = [(batch.indices.tolist(), batch.images) for batch in evaluation_batches(pictures, 7, **options)]
        return rows, list(Counter(log.read_text().split()).values())

    helped, parts = batches(**options)
    assert len(parts) == options["workers"] and max(parts) <= most
    alone, read = batches(**options | {"workers": 0})
    assert sorted(indices for indices, _ in helped) == [indices for indices, _ in alone]
    for (_, images), (_, expected) in zip(sorted(helped, key=lambda batch: batch[0]), alone, strict=True):
        assert torch.equal(images, expected), "the same batches, in another order"
    in_order, reads = batches(**options, in_order=True)
    assert [indices for indices, _ in in_order] == [indices for indices, _ in alone] and reads == read, "one worker"


def test_places_far_apart_open_their_shards_only() -> None:
    source, read = counted((50,) * 20)
    images = as_images(source)
    assert [images.item_name(i) for i in (3, 520, 999, 10)] == ["0/3", "10/20", "19/49", "0/10"]
    assert {i for i, _ in read} == {0, 10, 19} and len(read) < 120


def test_hugging_face_shards_are_lanes(tables: Path) -> None:
    """A table of 16 files is a stream of 16 shards: two lanes of 8 positions fill batches of 16."""
    datasets = pytest.importorskip("datasets")
    folder = tables / "rows"
    folder.mkdir()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for i in range(16):
        cells = [{"bytes": png(100 * i + n), "path": f"{i}-{n}.png"} for n in range(6)]
        rows = {"image": cells, "label": [n % 3 for n in range(6)]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"train-{i:02d}.parquet")
    source = stream(open_source(f"hfids/{folder}@train|96|3", tables / "cache"))
    assert source.shards is not None and source.shards.count == 16
    pictures = ImageDataset(replace(source, num_classes=3), TRANSFORM, 3)
    alone = torch.stack(pixels_of(TrainingBatches(pictures, 16, 3).from_step(0, 0)))
    for rank in range(2):
        batches = TrainingBatches(pictures, 16, 3, rank=rank, world=2, workers=2 * rank)
        assert torch.equal(torch.stack(pixels_of(batches.from_step(0, 0))), alone[:, batches.sampler.share])
