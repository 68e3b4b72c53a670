"""Attention and token similarity of a few images, small enough to travel in a report.

Maps are those between patches: every head, a lattice of query patches and the whole grid of keys, as bytes scaled to
each map's largest entry. Nothing here is a measurement; it is for a person to look at.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from unsmooth.data.image_batches import ImageBatches, NamedImages
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens, grid_of, prefix_of
from unsmooth.seam.intercept import AttentionCall

LATTICE = 7  # queries along each side of the grid
KEYS = 16  # keys along each side; finer grids are averaged
SIDE = 224  # pixels of the picture that goes along


def samples(
    model: nn.Module, anatomy: Anatomy, feed: ImageBatches, batch: NamedImages, count: int
) -> list[dict[str, Any]]:
    """What `count` images of a batch look like from inside."""
    images = batch.images[:count]
    size = images.shape[-2:]
    found: list[dict[str, Any]] = [
        {"name": name, "picture": _data_uri(feed.to_pixels(image)), "blocks": {}}
        for image, name in zip(images, batch.names, strict=False)
    ]

    def on_attention(block: Block, attention: Attention, call: AttentionCall) -> None:
        if attention.kind != "global":
            return
        start = prefix_of(block, anatomy)
        maps = call.map()[..., start:, start:].float()
        grid = grid_of(maps.shape[-1], size)
        if grid is None or maps.ndim != 4 or len(maps) != len(images) or not maps.sum().isfinite():
            return
        for i, a in enumerate(maps):
            entry = found[i]["blocks"].setdefault(str(block.index), {})
            queries, cut = _cut(a, grid)
            entry |= {"grid": list(cut.shape[-2:]), "queries": queries, "heads": cut.shape[0], "maps": _bytes(cut)}

    def on_tokens(block: Block, x: Tensor) -> None:
        tokens = as_tokens(x, block.channels)[:, prefix_of(block, anatomy) :].float()
        grid = grid_of(tokens.shape[1], size)
        if grid is None or not tokens.sum().isfinite():
            return
        u = F.normalize(tokens, dim=-1)
        for i, cosine in enumerate(u @ u.mT):
            entry = found[i]["blocks"].setdefault(str(block.index), {})
            queries, cut = _cut(cosine.abs().unsqueeze(0), grid)
            entry |= {"grid": list(cut.shape[-2:]), "queries": queries, "similarity": _bytes(cut, largest=1.0)}

    with eval_mode(model), probe(model, on_tokens, on_attention, anatomy):
        run(model, batch_inputs(model, images))
    return found


def _cut(a: Tensor, grid: tuple[int, int]) -> tuple[list[list[int]], Tensor]:
    """The rows of a lattice of queries, by place in the grid that is shown, and the map (heads, queries, h, w)."""
    rows, columns = (torch.linspace(0, n - 1, min(n, LATTICE)).round().long().tolist() for n in grid)
    index = [r * grid[1] + c for r in rows for c in columns]
    maps = a[:, index].unflatten(-1, grid)
    shown = (min(grid[0], KEYS), min(grid[1], KEYS))
    if shown != grid:
        maps = F.adaptive_avg_pool2d(maps, shown)
    places = [[r * shown[0] // grid[0], c * shown[1] // grid[1]] for r in rows for c in columns]
    return places, maps


def _bytes(maps: Tensor, largest: float | None = None) -> str:
    top = maps.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12) if largest is None else largest
    return base64.b64encode((maps.clamp_min(0) / top * 255).round().to(torch.uint8).cpu().numpy().tobytes()).decode()


def _data_uri(pixels: Tensor) -> str:
    picture = Image.fromarray(pixels.numpy())
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
