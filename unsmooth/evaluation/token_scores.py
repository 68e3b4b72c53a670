"""`token_scores`: what the frozen tokens of each block are worth, by nearest neighbours and a linear probe.

Two passes over images: the first keeps tokens of training images (the memory), the second scores the tokens of
validation images (the queries) as they are computed. Memory grows with the settings `memory_images` and
`memory_tokens` and not with the number of queries.

With masks every patch token is classified. A patch has the class of most of its labelled pixels; a prediction holds for
all pixels of its patch and is scored at the resolution of the annotation. With labels the mean of the patch tokens and
the class token are classified. Tokens are the outputs of blocks, before the final norm of the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unsmooth.data.splits import Splits
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.diagnosis.probe import probe
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.resampling import draw_weights, interval, resampled_accuracy, resampled_miou
from unsmooth.evaluation.settings import EvaluateSettings
from unsmooth.evaluation.token_data import LabelData, MaskData, TokenBatch, open_token_data
from unsmooth.evaluation.token_probes import (
    LinearProbe,
    NearestNeighbours,
    fit_linear,
    patch_counts,
    patch_labels,
    pixel_hits,
)
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.hosts.token_layout import as_tokens, grid_of, prefix_of
from unsmooth.results.evaluation import BlockScore, TokenProbe, TokenScores
from unsmooth.results.scores import accuracy_interval
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import open_model
from unsmooth.utils.devices import choose_device
from unsmooth.utils.options import merge_options
from unsmooth.vitals.token_cosine import token_cosine

NO_GRID = "its tokens are not on a grid"
NOT_FINITE = "its tokens contain NaN or infinity"

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int | None], None]  # images done, total
Kind = Literal["patch", "mean", "class"]
Probe = NearestNeighbours | LinearProbe
Key = tuple[Kind, int]  # kind of token and block


def token_scores(
    model: nn.Module | str | Path,
    data: str | Path | Splits,
    *,
    settings: EvaluateSettings | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> TokenScores:
    """Score the frozen tokens of each block on data with labels or with masks.

    The model is not changed, and its head is not used.

    Args:
        model: A model, a model spec, or a folder written by `save`.
        data: A folder in the layout of ADE20K (masks), or data with labels as for `train`. Probes are fitted on its
            training images and scored on its validation images.
        settings: Settings of the evaluation. Default: `EvaluateSettings()`.
        progress: Called with the number of images done and the total.
        **fields: Fields of `EvaluateSettings`, such as `memory_images`, `memory_tokens`, `neighbours`, `mask_classes`,
            `limit` or `batch_size`. They replace those of `settings`.

    Returns:
        Scores by kind of token, probe and block, with 95 % intervals, and each block's gain over the last block.

    Raises:
        UnsmoothError: If the data has no training images, or if no block has tokens that can be scored.

    Example:
        >>> from unsmooth.evaluation.token_scores import token_scores
        >>> spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, depth=2, num_classes=0)"
        >>> scores = token_scores(spec, "digits", memory_images=100, limit=50)
        >>> scores.keys()
        [('mean', 'knn'), ('mean', 'linear'), ('class', 'knn'), ('class', 'linear')]
        >>> len(scores["mean", "knn"].blocks)
        2
    """
    settings = merge_options(EvaluateSettings, settings, fields, EvaluateSettings.label)
    host = open_model(model, settings.checkpoint).model
    if settings.device is not None or not isinstance(model, nn.Module):
        host.to(choose_device(settings.device, mps=False))
    prepare = preprocessing(host, settings.image_size)
    source = open_token_data(data, prepare, settings)
    anatomy, total, done = anatomy_of(host), source.memory + source.queries, 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    memory = _Memory(anatomy, prepare, source)
    _run(host, anatomy, source.batches(training=True), memory, settings.amp, advance)
    queries = _Queries(anatomy, prepare, source, memory.fit(settings.neighbours, device_of(host)))
    _run(host, anatomy, source.batches(training=False), queries, settings.amp, advance)
    return queries.result(memory, settings)


class _Pass(ABC):
    """Receives the tokens of each block of a batch."""

    def __init__(self, anatomy: Anatomy, prepare: Preprocessing, source: LabelData | MaskData) -> None:
        self.anatomy, self.size, self.source = anatomy, prepare.size[1:], source
        self.reasons: dict[int, str] = {}
        self.skipped: dict[str, str] = {}
        self.images = 0  # in earlier batches

    def begin_batch(self, batch: TokenBatch) -> None:
        self.targets = batch.targets
        self.counts: dict[tuple[int, int], list[Tensor]] = {}  # patch counts by grid

    def end_batch(self) -> None:
        self.images += len(self.targets)

    def patches(self, block: Block, x: Tensor) -> tuple[Tensor, tuple[int, int]] | None:
        """The patch tokens of a block and their grid; None, with the reason noted, if it cannot be scored."""
        tokens = as_tokens(x, block.channels)[:, prefix_of(block, self.anatomy) :].float()
        grid = grid_of(tokens.shape[1], self.size)
        if grid is None or not bool(tokens.isfinite().all()):
            self.reasons[block.index] = NO_GRID if grid is None else NOT_FINITE
            return None
        return tokens, (grid[0], grid[1])

    def pooled(self, block: Block, x: Tensor, patches: Tensor) -> dict[Kind, Tensor]:
        features: dict[Kind, Tensor] = {"mean": patches.mean(dim=1)}
        if block.class_token:
            features["class"] = as_tokens(x, block.channels)[:, 0].float()
        return features

    def counts_of(self, grid: tuple[int, int]) -> list[Tensor]:
        if grid not in self.counts:
            self.counts[grid] = [patch_counts(mask, grid, self.source.classes) for mask in self.targets]
        return self.counts[grid]

    @abstractmethod
    def on_tokens(self, block: Block, x: Tensor) -> None: ...


class _Memory(_Pass):
    """Keeps tokens of the memory images with their labels."""

    def __init__(self, anatomy: Anatomy, prepare: Preprocessing, source: LabelData | MaskData) -> None:
        super().__init__(anatomy, prepare, source)
        self.kept: dict[Key, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)  # tokens, labels, images
        self.quota = max(1, source.settings.memory_tokens // source.memory)
        self.pixels = torch.zeros(source.classes, dtype=torch.long)  # labelled pixels, or images, by class

    def begin_batch(self, batch: TokenBatch) -> None:
        super().begin_batch(batch)
        for target in batch.targets:
            self.pixels += torch.bincount(target[target >= 0].long(), minlength=len(self.pixels))

    def on_tokens(self, block: Block, x: Tensor) -> None:
        scored = self.patches(block, x)
        if scored is None:
            return
        patches, grid = scored
        numbers = torch.arange(self.images, self.images + len(patches))
        if not self.source.masks:
            labels = torch.cat(self.targets).flatten()
            for kind, feature in self.pooled(block, x, patches).items():
                self.kept[kind, block.index].append((feature.cpu(), labels, numbers))
            return
        for i, counts in enumerate(self.counts_of(grid)):
            labels = patch_labels(counts)
            there = (labels >= 0).nonzero().flatten()
            # A random sample that depends on the image and not on its batch.
            order = torch.randperm(len(there), generator=torch.Generator().manual_seed(int(numbers[i])))
            chosen = there[order[: self.quota]]
            row = (patches[i].cpu()[chosen], labels[chosen], numbers[i].expand(len(chosen)))
            self.kept["patch", block.index].append(row)

    def fit(self, neighbours: int, device: torch.device) -> dict[Key, dict[str, Probe]]:
        """Both probes of each kind of token and block. The kept tokens move into the probes."""
        probes: dict[Key, dict[str, Probe]] = {}
        self.tokens = 0
        for kind, block in list(self.kept):
            rows = self.kept.pop((kind, block))
            if block in self.reasons:
                continue
            tokens, labels, images = (torch.cat(column) for column in zip(*rows, strict=True))
            self.tokens = max(self.tokens, len(tokens))
            if len(labels.unique()) < 2:
                raise UnsmoothError(
                    f"the {self.images} training images of {self.source.name} have fewer than two classes. "
                    "Use more memory_images."
                )
            tokens, labels = tokens.to(device), labels.to(device)
            probes[kind, block] = {
                "knn": NearestNeighbours(tokens, labels, self.source.classes, neighbours),
                "linear": fit_linear(tokens, labels, images, self.source.classes),
            }
        if not probes:
            reasons = next(iter(self.reasons.items()), None)
            why = f": block {reasons[0]}: {reasons[1]}" if reasons else ""
            raise UnsmoothError(f"no block has tokens that can be scored{why}")
        return probes


class _Queries(_Pass):
    """Scores tokens of the query images."""

    def __init__(self, anatomy: Anatomy, prepare: Preprocessing, source: LabelData | MaskData,
                 probes: dict[Key, dict[str, Probe]]) -> None:  # fmt: skip
        super().__init__(anatomy, prepare, source)
        self.probes = probes
        self.labels: list[Array] = []  # per image: its label, or its labelled pixels by class
        self.hits: dict[tuple[Kind, str, int], list[Array]] = defaultdict(list)  # per image: see `labels`
        self.guesses: dict[tuple[Kind, str, int], list[Array]] = defaultdict(list)
        self.oracle: dict[tuple[int, int], list[tuple[Array, Array]]] = defaultdict(list)  # by grid
        self.grids: dict[int, tuple[int, int]] = {}
        self.cosines: dict[int, list[Tensor]] = defaultdict(list)

    def begin_batch(self, batch: TokenBatch) -> None:
        super().begin_batch(batch)
        for target in batch.targets:
            classes = torch.bincount(target[target >= 0].long(), minlength=self.source.classes)
            self.labels.append(classes.numpy().astype(np.int32))

    def on_tokens(self, block: Block, x: Tensor) -> None:
        scored = self.patches(block, x)
        if scored is None:
            return
        patches, self.grids[block.index] = scored
        if patches.shape[1] > 1:
            self.cosines[block.index].append(token_cosine(patches).cpu())
        if not self.source.masks:
            labels = torch.cat(self.targets).flatten()
            for kind, feature in self.pooled(block, x, patches).items():
                for name, fitted in self.probes.get((kind, block.index), {}).items():
                    self.hits[kind, name, block.index].append((fitted.predict(feature).cpu() == labels).numpy())
            return
        counts = self.counts_of(self.grids[block.index])
        for name, fitted in self.probes.get(("patch", block.index), {}).items():
            predicted = fitted.predict(patches.flatten(0, 1)).cpu().view(len(patches), -1)
            for image, classes in zip(counts, predicted, strict=True):
                hits, guesses = pixel_hits(image, classes)
                self.hits["patch", name, block.index].append(hits.numpy().astype(np.int32)[None])
                self.guesses["patch", name, block.index].append(guesses.numpy().astype(np.int32)[None])

    def end_batch(self) -> None:
        for grid, images in self.counts.items():
            for counts in images:
                hits, guesses = pixel_hits(counts, counts.argmax(dim=1))
                self.oracle[grid].append((hits.numpy(), guesses.numpy()))
        super().end_batch()

    def result(self, memory: _Memory, settings: EvaluateSettings) -> TokenScores:
        if not self.images or not np.any(self.labels):
            raise UnsmoothError(f"there is no labelled image to score in the validation part of {self.source.name}")
        weights = draw_weights(self.images)
        reasons = memory.reasons | self.reasons
        labelled = np.stack(self.labels)
        resample = resampled_miou if self.source.masks else resampled_accuracy
        per_image = {
            key: (hits, np.concatenate(self.guesses[key]), labelled) if self.source.masks else (hits,)
            for key, hits in ((key, np.concatenate(rows)) for key, rows in self.hits.items())
            if key[2] not in reasons
        }
        resampled: dict[tuple[Kind, str], dict[int, Array]] = defaultdict(dict)
        for (kind, name, block), counts in per_image.items():
            resampled[kind, name][block] = resample(weights, *counts)
        probes = [
            TokenProbe(kind, name, "miou" if self.source.masks else "accuracy", self._blocks(kind, name, values))  # type: ignore[arg-type]
            for (kind, name), values in resampled.items()
        ]
        ceiling = {grid: self._miou(rows, labelled) for grid, rows in self.oracle.items()}
        scored = sorted(self.grids.keys() - reasons.keys())
        scores = TokenScores(
            data=self.source.name, images=self.images, memory_images=memory.images,
            memory_tokens=memory.tokens if self.source.masks else 0, neighbours=settings.neighbours,
            classes=int((memory.pixels > 0).sum()), chance=self._chance(int(memory.pixels.argmax()), labelled),
            ceiling={block: ceiling[self.grids[block]] for block in scored} if self.source.masks else {},
            similarity={block: float(torch.cat(self.cosines[block]).mean()) for block in scored if self.cosines[block]},
            probes=probes, skipped=dict(sorted(reasons.items())), skipped_images=memory.skipped | self.skipped,
        )  # fmt: skip
        for key, counts in per_image.items():
            scores.per_image[key] = counts
        return scores

    def _blocks(self, kind: Kind, name: str, values: dict[int, Array]) -> list[BlockScore]:
        last = values[max(values)]
        return [
            BlockScore(
                block=block,
                score=float(scores[0]),
                interval=interval(scores) if self.source.masks
                else _pair(accuracy_interval(np.concatenate(self.hits[kind, name, block]))),
                gain=float(scores[0] - last[0]),
                gain_interval=interval(scores - last),
            )
            for block, scores in sorted(values.items())
        ]  # fmt: skip

    def _miou(self, rows: Sequence[tuple[Array, Array]], labelled: Array) -> float:
        hits, guesses = (np.stack(column) for column in zip(*rows, strict=True))
        return float(resampled_miou(np.ones((1, len(hits))), hits, guesses, labelled)[0])

    def _chance(self, common: int, labelled: Array) -> float:
        if not self.source.masks:
            return float(labelled[:, common].sum() / labelled.sum())
        hits, guesses = np.zeros_like(labelled), np.zeros_like(labelled)
        hits[:, common], guesses[:, common] = labelled[:, common], labelled.sum(1)
        return float(resampled_miou(np.ones((1, len(hits))), hits, guesses, labelled)[0])


def _run(model: nn.Module, anatomy: Anatomy, batches: Iterator[TokenBatch], pass_: _Pass, amp: str,
         advance: Callable[[int], None]) -> None:  # fmt: skip
    device = device_of(model)
    with eval_mode(model):
        for batch in batches:
            pass_.skipped |= batch.skipped
            if batch.targets:
                pass_.begin_batch(batch)
                with probe(model, pass_.on_tokens, anatomy=anatomy), autocast(amp, device):
                    run(model, batch_inputs(model, batch.images))
                pass_.end_batch()
            advance(len(batch.targets) + len(batch.skipped))


def _pair(values: Sequence[float]) -> tuple[float, float]:
    low, high = values
    return low, high
