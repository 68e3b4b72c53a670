"""Attention maps, token similarity and pictures of tokens of a few sample images, small enough for a report.

Maps between patches: every head, a lattice of query patches, and the whole grid of keys, as bytes. The first head also
as a whole, with max pooling (anti-oversmoothing, Figure 8). `pictures` has the rest. Of a clip, the frame in the middle
is shown. They are for display only; no vital is computed from them.
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
from unsmooth.diagnosis.measure import NOT_FINITE, UNSUPPORTED, map_entries
from unsmooth.diagnosis.pictures import PictureCollector, as_bytes
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens, extent_of, grid_of, prefix_of
from unsmooth.results.sample import Sample, SampleBlock
from unsmooth.seam.intercept import AttentionCall
from unsmooth.vitals.base import LARGEST_MAPS

QUERIES_PER_SIDE = 7
KEYS_PER_SIDE = 16  # finer grids are averaged
POOLED = 4  # entries of the map of the first head per side of a pooling window
PICTURE_SIDE = 224  # pixels


def sample_maps(
    model: nn.Module, anatomy: Anatomy, source: ImageBatches, batch: NamedImages, count: int
) -> list[Sample]:
    """Maps and pictures of the first `count` images. Blocks without patches on a grid, or in pieces, have none."""
    size = extent_of(batch.images, anatomy)
    if len(size) == 1:
        return []  # a signal has no picture
    pairs = zip(batch.images[:count], batch.names, strict=False)
    samples = [Sample(name, _data_uri(source.to_pixels(_picture(image, size))), {}) for image, name in pairs]
    for image, sample in zip(batch.images, samples, strict=False):
        _fill(sample, model, anatomy, image.unsqueeze(0), size)
    return samples


def _fill(sample: Sample, model: nn.Module, anatomy: Anatomy, image: Tensor, size: Sequence[int]) -> None:
    """Add the maps and pictures of one input, a batch of one."""
    pictures = PictureCollector(anatomy)
    maps: dict[int, Tensor] = {}  # of the running block, until its tokens are known

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        if attention.kind == "global" and map_entries(attention) <= LARGEST_MAPS:
            maps[block.index] = call.map().float()

    def on_tokens(block: Block, x: Tensor) -> None:
        whole, tokens = maps.pop(block.index, None), as_tokens(x, block.channels).float()
        start = prefix_of(block, anatomy)
        if len(tokens) != 1 or not tokens.sum().isfinite():
            pictures.skip(block, "its tokens are in pieces" if len(tokens) != 1 else NOT_FINITE)
            return
        patches = tokens[0, start:]
        grid, shown = _plane(len(patches), size)
        if grid is None:
            pictures.skip(block, f"its {len(patches)} tokens fill no grid")
        else:
            _add_similarity(sample, block, patches[shown], grid)
            pictures.add_tokens(block, patches[shown], grid)
        if whole is None:
            pictures.skip(block, _why_no_map(block), ("class_attention", "rollout"))
            return
        side = whole.shape[-1]
        extra = max(0, side - tokens.shape[1]) if tokens.shape[1] == block.tokens else 0  # tokens of a remedy
        grid, shown = _plane(side - extra - start, size)
        square = whole.shape[-2] == side and whole.ndim == 4 and len(whole) == 1
        if grid is None or not square or not whole.sum().isfinite():
            pictures.skip(block, "its maps are not between patches on a grid", ("class_attention", "rollout"))
            return
        shown = slice(start + shown.start, start + shown.stop)
        _add_maps(sample, block, whole[0], shown, grid)
        if block.index in pictures.pictures:
            pictures.add_map(block, whole[0], shown, grid)

    with eval_mode(model), probe(model, on_tokens, on_attention, anatomy):
        run(model, batch_inputs(model, image))
    pictures.finish()
    sample.pictures, sample.trajectories = pictures.pictures, pictures.trajectories
    sample.left_out = pictures.left_out


def _add_maps(sample: Sample, block: Block, whole: Tensor, shown: slice, grid: tuple[int, int]) -> None:
    """Maps of the lattice of queries, and the whole map of the first head."""
    queries, reduced = _reduce(whole[:, shown, shown][:, _lattice(grid)], grid)
    entry = sample.blocks.setdefault(block.index, SampleBlock([], []))
    entry.grid, entry.queries = list(reduced.shape[-2:]), queries
    entry.heads, entry.maps = len(whole), as_bytes(reduced)
    entry.first_head = as_bytes(F.max_pool2d(whole[:1], POOLED, ceil_mode=True))


def _add_similarity(sample: Sample, block: Block, patches: Tensor, grid: tuple[int, int]) -> None:
    """Similarity of all tokens to those of the lattice."""
    u = F.normalize(patches, dim=-1)
    cosine = u[_lattice(grid)] @ u.mT  # the whole matrix is quadratic in the tokens
    queries, reduced = _reduce(cosine.abs().unsqueeze(0), grid)
    entry = sample.blocks.setdefault(block.index, SampleBlock([], []))
    entry.grid, entry.queries = list(reduced.shape[-2:]), queries
    entry.similarity = as_bytes(reduced, largest=1.0)


def _why_no_map(block: Block) -> str:
    """Why the attention of a block has no map between all tokens."""
    if not block.attentions:
        return block.reasons.get("attn", "it has no softmax attention")
    largest = max(map_entries(attention) for attention in block.attentions)
    if largest > LARGEST_MAPS:
        return f"its maps are too large ({largest / 2**28:,.0f} GiB)"
    return UNSUPPORTED[block.attentions[-1].kind]


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


def _data_uri(pixels: Tensor) -> str:
    picture = Image.fromarray(pixels.numpy())
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
