"""Attention maps and token similarity of a few sample images, small enough for a report.

Maps between patches: every head, a lattice of query patches, and the whole grid of keys, as bytes. The first head also
as a whole, with max pooling (anti-oversmoothing, Figure 8). Of a clip, the frame in the middle is shown. They are for
display only; no vital is computed from them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from unsmooth.data.image_batches import ImageBatches, NamedImages
from unsmooth.diagnosis.measure import map_entries
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens, extent_of, grid_of, prefix_of
from unsmooth.results.diagnosis import Sample, SampleBlock
from unsmooth.seam.intercept import AttentionCall
from unsmooth.vitals.base import LARGEST_MAPS

QUERIES_PER_SIDE = 7
KEYS_PER_SIDE = 16  # finer grids are averaged
POOLED = 4  # entries of the map of the first head per side of a pooling window
PICTURE_SIDE = 224  # pixels


def sample_maps(
    model: nn.Module, anatomy: Anatomy, source: ImageBatches, batch: NamedImages, count: int
) -> list[Sample]:
    """Maps of the first `count` images of a batch. Blocks without patches on a grid, or in pieces, are left out."""
    size = extent_of(batch.images, anatomy)
    if len(size) == 1:
        return []  # a signal has no picture
    pairs = zip(batch.images[:count], batch.names, strict=False)
    samples = [Sample(name, _data_uri(source.to_pixels(_picture(image, size))), {}) for image, name in pairs]
    for image, sample in zip(batch.images, samples, strict=False):
        _fill(sample, model, anatomy, image.unsqueeze(0), size)
    return samples


def _fill(sample: Sample, model: nn.Module, anatomy: Anatomy, image: Tensor, size: Sequence[int]) -> None:
    """Add the maps of one input, a batch of one."""

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        if attention.kind != "global" or map_entries(attention) > LARGEST_MAPS:
            return
        start = prefix_of(block, anatomy)
        whole = call.map().float()
        maps = whole[..., start:, start:]
        square = maps.shape[-2] == maps.shape[-1]
        grid, shown = _plane(maps.shape[-1], size)
        if grid is None or not square or maps.ndim != 4 or len(maps) != 1 or not maps.sum().isfinite():
            return
        maps = maps[..., shown, shown]
        first = F.max_pool2d(whole[:, :1], POOLED, ceil_mode=True)[0]
        heads = maps[0]
        queries, reduced = _reduce(heads[:, _lattice(grid)], grid)
        entry = sample.blocks.setdefault(block.index, SampleBlock([], []))
        entry.grid, entry.queries = list(reduced.shape[-2:]), queries
        entry.heads, entry.maps, entry.first_head = len(heads), _encode(reduced), _encode(first)

    def on_tokens(block: Block, x: Tensor) -> None:
        tokens = as_tokens(x, block.channels)[:, prefix_of(block, anatomy) :].float()
        grid, shown = _plane(tokens.shape[1], size)
        if grid is None or len(tokens) != 1 or not tokens.sum().isfinite():
            return
        tokens = tokens[:, shown]
        u = F.normalize(tokens[0], dim=-1)
        cosine = u[_lattice(grid)] @ u.mT  # the whole matrix is quadratic in the tokens
        queries, reduced = _reduce(cosine.abs().unsqueeze(0), grid)
        entry = sample.blocks.setdefault(block.index, SampleBlock([], []))
        entry.grid, entry.queries = list(reduced.shape[-2:]), queries
        entry.similarity = _encode(reduced, largest=1.0)

    with eval_mode(model), probe(model, on_tokens, on_attention, anatomy):
        run(model, batch_inputs(model, image))


def _plane(tokens: int, size: Sequence[int]) -> tuple[tuple[int, int] | None, slice]:
    """Rows and columns of the patches that are shown, and which they are: all of an image, a frame of a clip."""
    grid = grid_of(tokens, size)
    if grid is None:
        return None, slice(0)
    rows, columns = grid[-2:]
    middle = math.prod(grid[:-2]) // 2 * rows * columns
    return (rows, columns), slice(middle, middle + rows * columns)


def _picture(item: Tensor, size: Sequence[int]) -> Tensor:
    """An image (c, h, w) of an input: the middle frame of a clip, a spectrogram in grey."""
    if item.ndim == 4:
        frames = item if item.shape[1] in (1, 3) else item.movedim(1, 0)
        return frames[len(frames) // 2]
    if item.ndim == 2:
        return (item if tuple(item.shape) == tuple(size) else item.mT).flip(0).unsqueeze(0)  # low frequencies below
    return item


def _rows_and_columns(grid: tuple[int, int]) -> tuple[list[int], list[int]]:
    rows, columns = (torch.linspace(0, n - 1, min(n, QUERIES_PER_SIDE)).round().long().tolist() for n in grid)
    return rows, columns


def _lattice(grid: tuple[int, int]) -> list[int]:
    """Indices of the queries that are shown."""
    rows, columns = _rows_and_columns(grid)
    return [r * grid[1] + c for r in rows for c in columns]


def _reduce(maps: Tensor, grid: tuple[int, int]) -> tuple[list[list[int]], Tensor]:
    """The queries as rows and columns of the shown grid, and their maps (heads, queries, h, w), maybe averaged."""
    rows, columns = _rows_and_columns(grid)
    maps = maps.unflatten(-1, grid)
    shown = (min(grid[0], KEYS_PER_SIDE), min(grid[1], KEYS_PER_SIDE))
    if shown != grid:
        maps = F.adaptive_avg_pool2d(maps, shown)
    queries = [[r * shown[0] // grid[0], c * shown[1] // grid[1]] for r in rows for c in columns]
    return queries, maps


def _encode(maps: Tensor, largest: float | None = None) -> str:
    """Maps as base64 bytes, scaled to `largest` or to the largest entry of each map."""
    scale = maps.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12) if largest is None else largest
    return base64.b64encode((maps.clamp_min(0) / scale * 255).round().to(torch.uint8).cpu().numpy().tobytes()).decode()


def _data_uri(pixels: Tensor) -> str:
    picture = Image.fromarray(pixels.numpy())
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
