"""Data that is read from front to back: WebDataset's shards, Hugging Face's streams, TensorFlow's records.

Shards come in a shuffled order, and examples pass a buffer that shuffles them. The order depends on the seed alone, not
on how many read: every process and worker goes through the whole stream and decodes its own images.
"""

from __future__ import annotations

import json
import os
import random
import tarfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar

from PIL import Image

from unsmooth.data.images import Example, ImageReadError, Stream, read_picture
from unsmooth.data.timm_names import DataName, columns, hf_picture, opened
from unsmooth.errors import UnsmoothError

BUFFER = 2048  # encoded examples that are shuffled among each other; about 250 MB of ImageNet
SUFFIXES = ("jpg", "jpeg", "png", "webp")  # of an image in a shard
Item = TypeVar("Item")


def shuffled(items: Iterable[Item], seed: int | None, size: int = BUFFER) -> Iterator[Item]:
    """The items by way of a buffer that gives back any of those it holds; without a seed as they come."""
    if seed is None:
        yield from items
        return
    chance, held = random.Random(seed), list[Item]()
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        place = chance.randrange(size)
        yield held[place]
        held[place] = item
    chance.shuffle(held)
    yield from held


def shards(wanted: DataName, root: str | None) -> Stream:
    """WebDataset: tar files that `_info.json` names for a split, or a pattern like train-{0000..0099}.tar."""
    from timm.data.readers.reader_wds import ReaderWds

    assert root is not None
    split = wanted.split or "validation"
    reader: Any = opened(wanted.text, lambda: ReaderWds(root, wanted.name, split, num_samples=wanted.count or None))
    paths = [os.path.join(root, name) for name in reader.split_info.filenames]
    key: str = reader.split_info.alt_label
    local = all("://" not in path and not path.startswith("pipe:") for path in paths)
    missing = next((path for path in paths if local and not os.path.isfile(path)), None)
    if missing is not None:
        raise UnsmoothError(f"{wanted.text}: the shard {missing} is not there")

    @cache
    def scan() -> tuple[int, set[int]]:
        """The number of examples and their labels, by reading the small files of each shard."""
        labels = [label for path in paths for label in _shard_labels(path, key)]
        return len(labels), set(labels)

    def examples(seed: int | None) -> Iterator[Example]:
        order = list(paths)
        if seed is not None:
            random.Random(seed).shuffle(order)
        return shuffled(_shard_examples(order, key), seed)

    count = reader.num_samples or (scan()[0] if local else 0)
    return Stream(wanted.text, count, examples, limit=wanted.classes, found=(lambda: scan()[1]) if local else None)


def _shard_labels(path: str, key: str) -> Iterator[int]:
    suffix = ".json" if key else ".cls"
    try:
        with tarfile.open(path) as file:
            for member in file:
                if member.isfile() and member.name.endswith(suffix):
                    content = file.extractfile(member)
                    assert content is not None
                    label = _shard_label({suffix[1:]: content.read()}, key, f"{path}/{member.name}")
                    if label is not None:
                        yield label
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UnsmoothError(f"cannot read the shard {path}: {error}") from error


def _shard_label(sample: dict[str, Any], key: str, name: str) -> int | None:
    """The label of an example; None where `_info.json` chose other labels and this one has none."""
    try:
        label = int(json.loads(sample["json"])[key] if key else sample["cls"])
    except (KeyError, ValueError, TypeError) as error:
        where = f"as {key} in its .json file" if key else "in its .cls file"
        raise UnsmoothError(f"{name} has no label {where}: it must be a whole number") from error
    return None if key and label < 0 else label


def _shard_examples(paths: list[str], key: str) -> Iterator[Example]:
    from webdataset.tariterators import tarfile_samples

    for path in paths:
        try:
            for sample in tarfile_samples([{"url": path}]):
                name = f"{path}/{sample['__key__']}"
                label = _shard_label(sample, key, name)
                if label is not None:
                    yield Example(partial(_shard_picture, sample), label, name)
        except UnsmoothError:
            raise
        except Exception as error:  # of tar files, zip streams, pipes and addresses
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnsmoothError(f"cannot read the shard {path}: {reason}") from error


def _shard_picture(sample: dict[str, Any]) -> Image.Image:
    content = next((sample[suffix] for suffix in SUFFIXES if suffix in sample), None)
    if content is None:
        raise ImageReadError(f"no {', '.join(SUFFIXES)} file beside its label")
    return read_picture(content)


def hugging_face(wanted: DataName, root: str | None) -> Stream:
    """Hugging Face, streamed."""
    import datasets

    split = wanted.split or "validation"
    builder: Any = opened(wanted.text, lambda: datasets.load_dataset_builder(wanted.name, cache_dir=root))
    table: Any = opened(wanted.text, lambda: builder.as_streaming_dataset(split=split))
    features = table.features or opened(wanted.text, lambda: table._resolve_features().features)
    image, label, classes = columns(wanted.text, features)
    table = table.cast_column(image, datasets.Image(decode=False))
    said = builder.info.splits and builder.info.splits.get(split)

    def examples(seed: int | None) -> Iterator[Example]:
        rows = table if seed is None else table.shuffle(seed=seed, buffer_size=BUFFER)
        # One by one, the library would give each worker other shards.
        for n, batch in enumerate(rows.iter(batch_size=1)):
            found = batch[image][0]
            name = found.get("path") or f"{wanted.text}[{n}]"
            yield Example(partial(hf_picture, found), -1 if label is None else int(batch[label][0]), name)

    count = wanted.count or (said.num_examples if said else 0) or 0
    return Stream(wanted.text, count, examples, classes, label is not None, wanted.classes)


def tensorflow(wanted: DataName, root: str | None) -> Stream:
    """TensorFlow Datasets, as prepared. TensorFlow itself reads nothing: its threads do not survive a fork."""
    import tensorflow_datasets as tfds

    builder: Any = opened(wanted.text, lambda: tfds.builder(wanted.name, data_dir=root))
    split: Any = opened(wanted.text, lambda: builder.info.splits[wanted.split or "validation"])
    features, kind = builder.info.features, builder.info.file_format.value
    if "image" not in features or "label" not in features:
        raise UnsmoothError(f"{wanted.text} has no features `image` and `label`, but {', '.join(features)}")
    if kind != "tfrecord":
        raise UnsmoothError(f"{wanted.text} has files of the format {kind}: prepare it with file_format=tfrecord")

    def rows(seed: int | None) -> Iterator[Example]:
        parts = list(split.file_instructions)
        if seed is not None:
            random.Random(seed).shuffle(parts)
        for part in parts:
            for n, record in islice(enumerate(_records(part.filename)), part.skip, part.skip + part.take):
                row = features.deserialize_example_np(record, decoders={"image": tfds.decode.SkipDecoding()})
                name = f"{os.path.basename(part.filename)}[{n}]"
                yield Example(partial(read_picture, row["image"]), int(row["label"]), name)

    classes = tuple(getattr(features["label"], "names", ()) or ())
    return Stream(wanted.text, wanted.count or split.num_examples, lambda seed: shuffled(rows(seed), seed), classes,
                  limit=wanted.classes)  # fmt: skip


def _records(path: Any) -> Iterator[bytes]:
    """The records of a TFRecord file: each has its length before it, and checksums behind both."""
    with open(path, "rb") as file:
        while header := file.read(12):
            length = int.from_bytes(header[:8], "little")
            record = file.read(length)
            if len(record) < length or len(file.read(4)) < 4:
                raise UnsmoothError(f"the file {path} is cut off")
            yield record
