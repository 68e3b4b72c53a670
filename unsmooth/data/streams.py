"""Streamed datasets: WebDataset shards, Hugging Face streams and TFRecord files.

`unsmooth.data.lanes` decides which process and worker reads which shards, and in which order.
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

from unsmooth.data.images import Example, ImageReadError, Shards, Stream, read_image
from unsmooth.data.shard_index import ShardIndex, shard_index
from unsmooth.data.timm_names import DataName, find_columns, open_or_raise, read_hf_image
from unsmooth.errors import UnsmoothError, first_line

BUFFER = 2048  # encoded examples in the shuffle buffer; about 250 MB for ImageNet
SUFFIXES = ("jpg", "jpeg", "png", "webp")  # of images in a shard
Item = TypeVar("Item")


def shuffled(items: Iterable[Item], seed: int | None, size: int = BUFFER) -> Iterator[Item]:
    """Shuffle items in a buffer of limited size; without a seed, yield them in order."""
    if seed is None:
        yield from items
        return
    generator, buffer = random.Random(seed), list[Item]()
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        i = generator.randrange(size)
        yield buffer[i]
        buffer[i] = item
    generator.shuffle(buffer)
    yield from buffer


def open_webdataset(name: DataName, root: str | None) -> Stream:
    """Open WebDataset shards: those that `_info.json` lists for a split, or a pattern like train-{0000..0099}.tar."""
    from timm.data.readers.reader_wds import ReaderWds

    assert root is not None
    split = name.split or "validation"
    reader: Any = open_or_raise(name.text, lambda: ReaderWds(root, name.name, split, num_samples=name.count or None))
    paths = [os.path.join(root, file) for file in reader.split_info.filenames]
    key: str = reader.split_info.alt_label
    local = all("://" not in path and not path.startswith("pipe:") for path in paths)
    missing = next((path for path in paths if local and not os.path.isfile(path)), None)
    if missing is not None:
        raise UnsmoothError(f"{name.text}: the shard {missing} does not exist")

    @cache
    def index() -> ShardIndex:
        return shard_index(paths, key, partial(_shard_labels, key=key))

    def examples(seed: int | None) -> Iterator[Example]:
        order = list(paths)
        if seed is not None:
            random.Random(seed).shuffle(order)
        return shuffled(_shard_examples(order, key), seed)

    lengths: tuple[int, ...] | None = tuple(reader.split_info.shard_lengths or ())
    if key or len(lengths or ()) != len(paths):  # other labels leave examples out
        lengths = index().lengths if local and (len(paths) > 1 or not reader.num_samples) else None
    count = reader.num_samples or sum(lengths or ())
    shards = Shards(len(paths), lambda i: _shard_examples([paths[i]], key), lengths)
    return Stream(name.text, count, examples, num_classes=name.classes,
                  read_labels=(lambda: set(index().labels)) if local else None, shards=shards)  # fmt: skip


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
    """Label of an example; None if `_info.json` specifies other labels and the example has none."""
    try:
        label = int(json.loads(sample["json"])[key] if key else sample["cls"])
    except (KeyError, ValueError, TypeError) as error:
        location = f"{key} of its .json file" if key else "its .cls file"
        raise UnsmoothError(f"{name} has no integer label in {location}") from error
    return None if key and label < 0 else label


def _shard_examples(paths: list[str], key: str) -> Iterator[Example]:
    from webdataset.tariterators import tarfile_samples

    for path in paths:
        try:
            for sample in tarfile_samples([{"url": path}]):
                name = f"{path}/{sample['__key__']}"
                label = _shard_label(sample, key, name)
                if label is not None:
                    yield Example(partial(_shard_image, sample), label, name)
        except UnsmoothError:
            raise
        except Exception as error:  # of tar files, compression, pipes and URLs
            raise UnsmoothError(f"cannot read the shard {path}: {first_line(error)}") from error


def _shard_image(sample: dict[str, Any]) -> Image.Image:
    content = next((sample[suffix] for suffix in SUFFIXES if suffix in sample), None)
    if content is None:
        raise ImageReadError(f"no {', '.join(SUFFIXES)} file next to its label")
    return read_image(content)


def open_hf_stream(name: DataName, root: str | None) -> Stream:
    """Open a Hugging Face dataset as a stream."""
    import datasets

    split = name.split or "validation"
    builder: Any = open_or_raise(name.text, lambda: datasets.load_dataset_builder(name.name, cache_dir=root))
    table: Any = open_or_raise(name.text, lambda: builder.as_streaming_dataset(split=split))
    features = table.features or open_or_raise(name.text, lambda: table._resolve_features().features)
    image, label, classes = find_columns(name.text, features)
    table = table.cast_column(image, datasets.Image(decode=False))
    info = builder.info.splits and builder.info.splits.get(split)

    def read(rows: Any, part: str = "") -> Iterator[Example]:
        # In batches of one, since plain iteration would give each worker other shards.
        for n, batch in enumerate(rows.iter(batch_size=1)):
            cell = batch[image][0]
            item = cell.get("path") or f"{name.text}{part}[{n}]"
            yield Example(partial(read_hf_image, cell), -1 if label is None else int(batch[label][0]), item)

    def examples(seed: int | None) -> Iterator[Example]:
        return read(table if seed is None else table.shuffle(seed=seed, buffer_size=BUFFER))

    count = name.count or (info.num_examples if info else 0) or 0
    parts = int(table.num_shards)
    shards = Shards(parts, lambda i: read(table.shard(parts, i), f" shard {i}"))
    return Stream(name.text, count, examples, classes, label is not None, name.classes, shards=shards)


def open_tfds(name: DataName, root: str | None) -> Stream:
    """Open a prepared TensorFlow dataset, without TensorFlow's readers, whose threads do not survive a fork."""
    import tensorflow_datasets as tfds

    builder: Any = open_or_raise(name.text, lambda: tfds.builder(name.name, data_dir=root))
    split: Any = open_or_raise(name.text, lambda: builder.info.splits[name.split or "validation"])
    features, kind = builder.info.features, builder.info.file_format.value
    if "image" not in features or "label" not in features:
        raise UnsmoothError(f"{name.text} needs the features `image` and `label` (got {', '.join(features)})")
    if kind != "tfrecord":
        raise UnsmoothError(f"{name.text} has files of format {kind}. Prepare it with file_format=tfrecord.")

    files = list(split.file_instructions)

    def read(part: Any) -> Iterator[Example]:
        for n, record in islice(enumerate(_records(part.filename)), part.skip, part.skip + part.take):
            row = features.deserialize_example_np(record, decoders={"image": tfds.decode.SkipDecoding()})
            item = f"{os.path.basename(part.filename)}[{n}]"
            yield Example(partial(read_image, row["image"]), int(row["label"]), item)

    def rows(seed: int | None) -> Iterator[Example]:
        parts = list(files)
        if seed is not None:
            random.Random(seed).shuffle(parts)
        return (example for part in parts for example in read(part))

    classes = tuple(getattr(features["label"], "names", ()) or ())
    # `take` may be -1 for all of a file.
    lengths = tuple(int(part.take) if part.take >= 0 else part.examples_in_shard - part.skip for part in files)
    shards = Shards(len(files), lambda i: read(files[i]), lengths)
    return Stream(name.text, name.count or split.num_examples, lambda seed: shuffled(rows(seed), seed), classes,
                  num_classes=name.classes, shards=shards)  # fmt: skip


def _records(path: Any) -> Iterator[bytes]:
    """Records of a TFRecord file: length, checksum, content, checksum."""
    with open(path, "rb") as file:
        while header := file.read(12):
            length = int.from_bytes(header[:8], "little")
            record = file.read(length)
            if len(record) < length or len(file.read(4)) < 4:
                raise UnsmoothError(f"{path} is truncated")
            yield record
