"""Batches depend on their place in a run and on nothing else: not on workers, processes, or where a run was cut."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import Mixup, create_transform
from torch import Tensor

from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.data.datasets import ImageBatch, ImageDataset
from unsmooth.data.images import Example, ImageReadError, ImageSource, Stream, first_valid_image, images_from_array
from unsmooth.data.sampling import (
    ITEM,
    MIX,
    derive_seed,
    epoch_order,
    preserved_rng,
    process_share,
    seed_everything,
)
from unsmooth.errors import UnsmoothError

COUNT, SIZE = 30, 8
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12, 3), dtype=np.uint8)
LABELS = np.arange(COUNT) % 3
# It draws from all generators: Python's (RandAugment, erasing), NumPy's (which operations), torch's (erased pixels).
AUGMENT = create_transform(
    (3, 12, 12), is_training=True, auto_augment="rand-m5-mstd0.5-inc1", re_prob=0.7, re_mode="pixel", hflip=0.5
)
PLAIN = create_transform((3, 12, 12), is_training=False, crop_pct=1.0)
KINDS = ["by place", "stream"]


def source(kind: str, broken: tuple[int, ...] = (), count: int = COUNT) -> ImageSource:
    """The same pictures, by place or as a stream that shuffles them itself."""
    images = images_from_array(PIXELS[:count], "toys", LABELS[:count])

    def picture(i: int) -> Image.Image:
        if i in broken:
            raise ImageReadError("half of it is missing")
        return images.load(i)

    def examples(seed: int | None) -> Iterator[Example]:
        places = list(range(count))
        if seed is not None:
            random.Random(seed).shuffle(places)
        for i in places:
            yield Example(lambda at=i: picture(at), int(LABELS[i]), f"toys[{i}]")  # type: ignore[misc]

    return replace(images, load=picture) if kind == "by place" else Stream("toys", count, examples)


def batches(images: ImageSource, transform: Any = AUGMENT, epoch: int = 0, start: int = 0, strict: bool = False,
            seed: int = 7, **how: Any) -> list[ImageBatch]:  # fmt: skip
    return list(TrainingBatches(ImageDataset(images, transform, 3, strict), SIZE, seed, **how).from_step(epoch, start))


def equal(a: list[ImageBatch], b: list[ImageBatch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.images, y.images) and torch.equal(x.labels, y.labels) and torch.equal(x.indices, y.indices)
        for x, y in zip(a, b, strict=True)
    )


def together(parts: list[list[ImageBatch]], world: int) -> list[ImageBatch]:
    """The batches of several processes as one process would have them."""
    whole = []
    for shares in zip(*parts, strict=True):
        at = torch.tensor([place for rank in range(world) for place in process_share(SIZE, rank, world)])
        joined = [
            torch.cat([getattr(part, name) for part in shares])[at.argsort()]
            for name in ("images", "labels", "indices")
        ]
        whole.append(ImageBatch(joined[0], joined[1], joined[2]))
    return whole


def refusal(run: Callable[[], Any]) -> str:
    """What an error says, without keeping it: its traceback holds loaders, and those wait for their workers."""
    try:
        run()
    except UnsmoothError as error:
        return str(error)
    raise AssertionError("it did not stop")


# Order and seeds


@given(st.lists(st.integers(0, 2**64 - 2), min_size=1, max_size=4), st.integers(0, 3))
def test_a_seed_is_63_bits_that_depend_on_every_number(place: list[int], at: int) -> None:
    actual = derive_seed(*place)
    assert 0 <= actual < 2**63 and actual == derive_seed(*place)
    other = list(place)
    other[at % len(place)] += 1
    assert derive_seed(*other) != actual and derive_seed(*place, 0) != actual


def test_seeds_are_stable() -> None:
    """Recorded runs depend on these numbers."""
    assert [derive_seed(0), derive_seed(0, 0), derive_seed(1, 7, 0, 0)] == [
        3717377837946358015, 4673967028024647969, 7920846853994292910,
    ]  # fmt: skip
    assert epoch_order(10, 0, 0) == [7, 8, 4, 0, 2, 3, 1, 9, 6, 5]
    assert epoch_order(8, 3, 2, 3) == [6, 6, 6, 1, 1, 1, 5, 5]


def test_every_generator_is_seeded_and_left_alone() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_everything(5)
    first, state = draw(), draw
    with preserved_rng():
        seed_everything(5)
        assert draw() == first
        seed_everything(6)
        assert not set(draw()) & set(first)
    after = state()
    seed_everything(5)
    draw()
    assert draw() == after, "as if nothing had been drawn inside"


@pytest.mark.parametrize("count", [1, 2, 97])
def test_an_order_is_a_permutation_of_its_own(count: int) -> None:
    assert sorted(epoch_order(count, 3, 5)) == list(range(count))
    assert epoch_order(count, 3, 5) == epoch_order(count, 3, 5)
    if count > 2:
        assert len({tuple(epoch_order(count, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_repeats_stand_in_a_row_and_fill_an_epoch() -> None:
    order = epoch_order(100, 0, 0, 3)
    assert len(order) == 100 and [order.count(i) for i in dict.fromkeys(order)] == [3] * 33 + [1]
    assert order[::3] == epoch_order(100, 0, 0)[:34], "the images that come are those of an epoch without repeats"
    assert epoch_order(100, 0, 0, 1) == epoch_order(100, 0, 0)


@given(st.integers(1, 40), st.integers(1, 7))
def test_shares_are_a_partition(batch: int, world: int) -> None:
    shares = [process_share(batch, rank, world) for rank in range(world)]
    assert sorted(place for part in shares for place in part) == list(range(batch))
    assert all(part == sorted(part) for part in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 2
    if batch % (2 * world) == 0:
        for part in shares:
            assert [batch - 1 - place for place in reversed(part)] == part, "mirror pairs stay together, and mirrored"


# Batches


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_every_image_once(kind: str) -> None:
    actual = batches(source(kind, count=24), PLAIN)
    assert [tuple(batch.images.shape) for batch in actual] == [(SIZE, 3, 12, 12)] * 3
    wanted = torch.stack([PLAIN(Image.fromarray(pixels)) for pixels in PIXELS[:24]])
    seen = torch.cat([batch.images for batch in actual])
    match = (seen.flatten(1)[:, None] == wanted.flatten(1)[None]).all(-1)
    assert (match.sum(0) == 1).all() and (match.sum(1) == 1).all()
    assert torch.equal(torch.cat([batch.labels for batch in actual]), match.int().argmax(1) % 3)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_seeds_differ_and_repeat(kind: str) -> None:
    images = source(kind)
    first = batches(images)
    assert equal(first, batches(images)) and len(first) == COUNT // SIZE
    assert not torch.equal(first[0].images, batches(images, epoch=1)[0].images)
    assert not torch.equal(first[0].images, batches(images, seed=8)[0].images)
    one = TrainingBatches(ImageDataset(images, AUGMENT, 3), SIZE, 7)
    assert one.steps == 3 and equal(list(one.from_step(1, 0)), batches(images, epoch=1))
    assert equal(list(one.from_step(0, 0)), first), "an epoch can be gone through again"


@pytest.mark.parametrize("kind", KINDS)
def test_workers_change_nothing(kind: str) -> None:
    images = source(kind, broken=(4, 5))
    alone = TrainingBatches(ImageDataset(images, AUGMENT, 3), SIZE, 7)
    helped = TrainingBatches(ImageDataset(images, AUGMENT, 3), SIZE, 7, workers=2)
    for epoch, start in ((0, 0), (1, 1), (0, 2)):
        wanted, actual = list(alone.from_step(epoch, start)), list(helped.from_step(epoch, start))
        assert equal(wanted, actual) and [b.skipped for b in wanted] == [b.skipped for b in actual]
    next(helped.from_step(0, 0))  # left in the middle
    assert equal(list(helped.from_step(1, 0)), list(alone.from_step(1, 0)))


@pytest.mark.parametrize("repeats", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_goes_on(kind: str, repeats: int) -> None:
    images = source(kind)
    whole = batches(images, repeats=repeats)
    for start in range(len(whole) + 1):
        assert equal(batches(images, start=start, repeats=repeats), whole[start:])


def test_a_stream_is_not_decoded_to_get_ahead() -> None:
    images = source("stream")
    assert isinstance(images, Stream)
    read = []

    def counted(seed: int | None) -> Iterator[Example]:
        for example in images.examples(seed):
            yield replace(example, load=lambda of=example: read.append(of.name) or of.load())  # type: ignore[misc]

    batches(replace(images, examples=counted), start=2)
    assert len(read) == SIZE


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_processes_together_have_the_batch_of_one(kind: str, world: int) -> None:
    images = source(kind, broken=(3,))
    for repeats in (0, 3):
        parts = [batches(images, rank=rank, world=world, repeats=repeats) for rank in range(world)]
        assert equal(together(parts, world), batches(images, repeats=repeats))


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_mixing_a_share_is_mixing_the_batch(mixup: float, cutmix: float) -> None:
    images, world = source("by place"), 2
    mix = Mixup(mixup, cutmix, label_smoothing=0.1, num_classes=3)

    def mixed(actual: list[ImageBatch]) -> list[tuple[Tensor, Tensor]]:
        done = []
        for step, batch in enumerate(actual):
            seed_everything(derive_seed(MIX, 7, 0, step))
            done.append(mix(batch.images.clone(), batch.labels))
        return done

    whole = mixed(batches(images))
    parts = [mixed(batches(images, rank=rank, world=world)) for rank in range(world)]
    for rank, part in enumerate(parts):
        mine = process_share(SIZE, rank, world)
        for (x, y), (all_x, all_y) in zip(part, whole, strict=True):
            assert torch.equal(x, all_x[mine]) and torch.equal(y, all_y[mine])
    plain = batches(images)
    assert any(not torch.equal(x, batch.images) for (x, _), batch in zip(whole, plain, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_an_image_are_augmented_differently(kind: str) -> None:
    actual = batches(source(kind), repeats=3)
    places = torch.cat([batch.labels for batch in actual]).tolist()
    assert places[0] == places[1] == places[2]
    first = actual[0].images
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    plain = batches(source(kind), PLAIN, repeats=3)[0].images
    assert torch.equal(plain[0], plain[1]) and torch.equal(plain[1], plain[2]) and not torch.equal(plain[2], plain[3])


@pytest.mark.parametrize("kind", KINDS)
def test_seed_epoch_and_position_are_what_augments(kind: str) -> None:
    """The transform meets exactly the seed that its position in the epoch has, in every epoch another."""
    met: list[float] = []

    def watching(picture: Image.Image) -> Tensor:
        met.append(random.random())
        return torch.zeros(1)

    for epoch in (0, 1):
        batches(source(kind), watching, epoch=epoch)
    wanted = [
        random.Random(derive_seed(ITEM, 7, epoch, position)).random() for epoch in (0, 1) for position in range(24)
    ]
    assert met == wanted and len(set(met)) == 48


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_has_its_own_order(kind: str) -> None:
    images = source(kind)
    plain = [batches(images, PLAIN, epoch=epoch)[0].images for epoch in range(3)]
    assert not any(torch.equal(plain[a], plain[b]) for a, b in ((0, 1), (1, 2), (0, 2)))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_random_numbers_of_this_process_stay_as_they_are(workers: int) -> None:
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    batches(source("by place"), workers=workers)
    assert torch.equal(torch.rand(3), wanted)


# Evaluation


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_has_every_image_once_in_order(kind: str, workers: int) -> None:
    """Workers that share a stream give its batches in another order."""
    pictures = ImageDataset(source(kind, broken=(0, 13)), PLAIN, 3)
    for world in (1, 3):
        seen: list[int] = []
        for rank in range(world):
            given = evaluation_batches(pictures, 4, workers, rank, world)
            for _ in range(2):  # it can be gone through again
                actual = list(given)
                places = [place for batch in actual for place in batch.indices.tolist()]
                assert (kind == "stream" and workers) or places == sorted(places)
                assert len(set(places)) == len(places) and len(actual) == len(given)
                assert torch.equal(torch.cat([b.labels for b in actual]), torch.as_tensor(LABELS)[places])
            seen += places
        assert sorted(seen) == [i for i in range(COUNT) if i not in (0, 13)]


def test_a_stream_is_evaluated_as_any_other_data() -> None:
    by_place, stream = (list(evaluation_batches(ImageDataset(source(kind), PLAIN, 3), 4)) for kind in KINDS)
    assert equal(by_place, stream)


# Broken images


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_image_takes_the_turn_of_a_broken_one(kind: str, workers: int) -> None:
    whole, actual = batches(source(kind)), batches(source(kind, broken=(4, 5)), workers=workers)
    skipped = {name: reason for batch in actual for name, reason in batch.skipped.items()}
    assert (
        skipped.items() <= {"toys[4]": "half of it is missing", "toys[5]": "half of it is missing"}.items() and skipped
    )
    assert [len(batch.labels) for batch in actual] == [SIZE] * 3
    changed = 0
    for a, b in zip(whole, actual, strict=True):
        same = torch.tensor([torch.equal(x, y) for x, y in zip(a.images, b.images, strict=True)])
        changed += int((~same).sum())
        if kind == "by place":
            assert torch.equal(b.indices, torch.where((a.indices == 4) | (a.indices == 5), 6, a.indices))
    assert 1 <= changed <= 2, "all others keep place and augmentation"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_strict_data_stops_in_one_line_with_the_name(kind: str, workers: int) -> None:
    images = source(kind, broken=tuple(range(5, COUNT)))
    pictures = ImageDataset(images, PLAIN, 3, strict=True)
    runs: list[Callable[[], Any]] = [
        lambda: batches(images, strict=True, workers=workers),
        lambda: list(evaluation_batches(pictures, 4, workers)),
    ]
    for run in runs:
        assert re.fullmatch(
            r"toys\[\d+\] of toys is broken: half of it is missing\. Leave out strict_data .*", refusal(run)
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_broken_images(kind: str, workers: int) -> None:
    images = source(kind, broken=tuple(range(COUNT)))
    said = {"by place": "toys has no valid image: all 30 were skipped",
            "stream": "toys: all 8 images of a batch are broken"}  # fmt: skip
    assert refusal(lambda: batches(images, workers=workers)) == said[kind]
    with pytest.raises(UnsmoothError, match=r"no valid image: all 30 are broken. .*toys\[0\]: half of it is missing"):
        first_valid_image(images)
    actual = list(evaluation_batches(ImageDataset(images, PLAIN, 3), 16, workers))
    assert [len(batch.labels) for batch in actual] == [0, 0] and sum(len(batch.skipped) for batch in actual) == COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_image_that_can_be_used(kind: str) -> None:
    assert np.array_equal(np.asarray(first_valid_image(source(kind, broken=(0, 1)))), PIXELS[2])
    assert first_valid_image(source(kind), channels=1).mode == "L"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_ends_early_or_has_odd_labels(workers: int) -> None:
    images = source("stream")
    assert isinstance(images, Stream)
    short = replace(images, count=90)
    said = refusal(lambda: batches(short, workers=workers))
    assert said == "toys ended before its 90 images. Correct the number after |."
    said = refusal(lambda: list(evaluation_batches(ImageDataset(short, PLAIN, 3), 4, workers)))
    assert said == "toys has 30 images, fewer than the expected 90"
    said = refusal(lambda: batches(replace(images, num_classes=2), workers=workers))
    assert re.fullmatch(r"toys: toys\[\d+\] has label 2, but there are 2 classes \(0 to 1\)", said)


def test_pinning_reaches_every_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)  # there may be no GPU here
    batch = ImageBatch(torch.zeros(2), torch.zeros(2), torch.zeros(2), {"a": "b"}).pin_memory()
    assert (batch.images == 1).all() and (batch.labels == 1).all() and (batch.indices == 1).all()
    assert batch.skipped == {"a": "b"}
