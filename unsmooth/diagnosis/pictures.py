"""Pictures of all patch tokens of one image, block by block.

    PCA                u_i − ū on principal components, as red, green and blue;   u_i = x_i/‖x_i‖
    norms              ‖x_i‖
    class attention    row of the class token in each map
    rollout            R_l = Â_l R_{l−1},   Â = ½A + ½I with rows that sum to 1,   A: mean of the heads
    trajectories       paths of u_i through the blocks, on two principal components

Tokens are divided by their norms, because norms grow by an order of magnitude from the first block to the last. One
basis for all blocks shows how far the tokens of a block still differ; a basis of its own shows what is left of it.
Rollout is that of Abnar and Zuidema (Quantifying Attention Flow in Transformers, ACL 2020), of the effective maps.

Signs are fixed: the largest entry of each component is positive. Only the tokens of one image are held, at most
SIDE × SIDE of them per block.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg import eigh
from torch import Tensor

from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.results.measured import round_values
from unsmooth.results.sample import TokenPictures, Trajectories
from unsmooth.utils.text import blocks_text

SIDE = 40  # patches per side of a picture; finer grids are averaged
PATHS_PER_SIDE = 7
COLOUR_QUANTILE = 0.99  # of coordinates; the colour of larger ones is saturated
ROLLOUT_QUANTILE = 0.95  # of patches; a few sinks would darken the rest
PICTURES = ("pca", "norms", "class_attention", "rollout", "trajectories")

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]


class PictureCollector:
    """Collects the tokens and maps of one image and makes its pictures."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.pictures: dict[int, TokenPictures] = {}
        self.trajectories: Trajectories | None = None
        self.units: dict[int, Array] = {}  # unit tokens by block
        self.flow: Tensor | None = None  # the rollout of the blocks so far
        self.reasons: dict[str, dict[int, str]] = {name: {} for name in PICTURES}
        for block in anatomy.blocks:
            if not block.class_token:
                self.skip(block, "it has no class token", ("class_attention",))

    def skip(self, block: Block, reason: str, names: Sequence[str] = PICTURES) -> None:
        for name in names:
            self.reasons[name].setdefault(block.index, reason)

    def add_tokens(self, block: Block, patches: Tensor, grid: tuple[int, int]) -> None:
        """Patch tokens (n, d) of a block."""
        tokens = patches.float()
        norms = tokens.norm(dim=-1)
        shown = _shrink(norms.unsqueeze(0), grid, largest=True)
        unit = tokens / norms.clamp_min(1e-12).unsqueeze(-1)
        if shown.numel() < len(unit):
            unit = _shrink(unit.mT, grid).flatten(1).mT
        self.units[block.index] = unit.cpu().numpy()
        self.pictures[block.index] = TokenPictures(
            grid=list(shown.shape[-2:]),
            norms=as_bytes(shown),
            largest_norm=round_values(float(norms.amax())),
            median_norm=round_values(float(norms.median())),
        )

    def add_map(self, block: Block, maps: Tensor, patches: slice, grid: tuple[int, int]) -> None:
        """Maps (heads, n, n) between all tokens of a block; `patches` are the tokens of the grid."""
        picture = self.pictures[block.index]
        rows = _shrink(maps[:, :1, patches].flatten(0, 1), grid)
        if list(rows.shape[-2:]) != picture.grid:
            self.skip(block, "its maps and its tokens are on different grids", ("class_attention", "rollout"))
            return
        if block.class_token:
            picture.heads, picture.class_attention = len(rows), as_bytes(rows)
        if len(block.attentions) != 1:
            self.skip(block, f"it has {len(block.attentions)} attentions, not one", ("rollout",))
            return
        self._follow(block, maps.mean(dim=0))
        if self.flow is not None and block.index not in self.reasons["rollout"]:
            reached = self.flow[0] if block.class_token else self.flow[patches].mean(dim=0)
            shown = _shrink(reached[patches].unsqueeze(0), grid)
            saturated = max(float(shown.quantile(ROLLOUT_QUANTILE)), 1e-12)
            picture.rollout = as_bytes(shown.clamp_max(saturated), saturated)
            picture.rollout_peak = round_values(float(shown.amax() / shown.mean().clamp_min(1e-12)))

    def _follow(self, block: Block, mean: Tensor) -> None:
        """Add one block to the rollout, unless a block before it is missing."""
        before = self.anatomy.blocks[: block.index]
        missing = any(b.index in self.reasons["rollout"] for b in before)
        if missing or (before and self.flow is None):
            self.skip(block, "it needs the maps of all blocks before it", ("rollout",))
        elif self.flow is not None and self.flow.shape != mean.shape:
            self.skip(block, "it has another number of tokens than the block before it", ("rollout",))
        elif (step := rollout_step(mean)) is None:
            self.skip(block, "the rows of its maps cannot be normalised", ("rollout",))
        else:
            self.flow = step if self.flow is None else step @ self.flow

    def finish(self) -> None:
        """Make the pictures that need all blocks."""
        widths: dict[int, list[int]] = defaultdict(list)
        sizes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, unit in self.units.items():
            widths[unit.shape[1]].append(index)
            sizes[unit.shape].append(index)
        for blocks in widths.values():
            self._colour(blocks)
        longest = max(sizes.values(), key=len, default=[])
        if len(longest) > 1:
            self.trajectories = self._paths(longest)
        for block in self.anatomy.blocks:
            if block.index not in self.units:
                self.skip(block, "its tokens were not seen")
            if block.index not in longest or len(longest) < 2:
                self.skip(block, "no other block has as many tokens and channels" if len(longest) < 2
                          else "it has another number of tokens or channels", ("trajectories",))  # fmt: skip

    @property
    def left_out(self) -> dict[str, str]:
        """Pictures that some block does not have, with the reasons."""
        out: dict[str, str] = {}
        for name, by_block in self.reasons.items():
            reasons: dict[str, list[int]] = defaultdict(list)
            for block, reason in sorted(by_block.items()):
                reasons[reason].append(block)
            if reasons:
                out[name] = "; ".join(f"{blocks_text(blocks)}: {reason}" for reason, blocks in reasons.items())
        return out

    def _colour(self, blocks: list[int]) -> None:
        """PCA of blocks of equal width: in one basis, and each in its own."""
        centred = {block: self.units[block] - self.units[block].mean(axis=0) for block in blocks}
        basis, _ = principal(np.concatenate(list(centred.values())), 3)
        common = {block: x @ basis.T for block, x in centred.items()}
        scale = _quantile(np.concatenate([c.ravel() for c in common.values()]))
        for block, x in centred.items():
            own_basis, own_shares = principal(x, 3)
            own = x @ own_basis.T
            total = float(np.square(x).sum())
            picture = self.pictures[block]
            picture.pca = colours(common[block], scale)
            picture.pca_share = round_values(float(np.square(common[block]).sum()) / total if total else 0.0)
            picture.pca_own = colours(own, np.array([_quantile(own[:, i]) for i in range(3)]))
            picture.pca_own_share = round_values(float(own_shares.sum()))

    def _paths(self, blocks: list[int]) -> Trajectories:
        rows, columns = self.pictures[blocks[0]].grid
        kept = [np.linspace(0, n - 1, min(n, PATHS_PER_SIDE)).round().astype(int) for n in (rows, columns)]
        shown = [r * columns + c for r in kept[0] for c in kept[1]]
        tokens = np.stack([self.units[block][shown] for block in blocks])
        tokens -= tokens.mean(axis=(0, 1))
        axes, shares = principal(tokens.reshape(-1, tokens.shape[-1]), 2)
        points = tokens @ axes.T
        return Trajectories(
            blocks=blocks,
            patches=[[round((r + 0.5) / rows, 4), round((c + 0.5) / columns, 4)] for r in kept[0] for c in kept[1]],
            points=[[[round(float(v), 4) for v in point] for point in path] for path in points.swapaxes(0, 1)],
            shares=[round_values(float(share)) for share in shares],
        )


def rollout_step(mean: Tensor) -> Tensor | None:
    """½A + ½I with rows that sum to 1; None if a row has no positive sum."""
    step = 0.5 * mean + 0.5 * torch.eye(len(mean), device=mean.device, dtype=mean.dtype)
    sums = step.sum(dim=-1, keepdim=True)
    return step / sums if bool((sums > 0).all()) and bool(sums.isfinite().all()) else None


def principal(x: Array, count: int) -> tuple[Array, Array]:
    """The first principal components (count, d) of centred rows, and their shares of the variance.

    Components without variance are zero.
    """
    rows, width = x.shape
    by_rows = rows < width
    scatter = (x @ x.T if by_rows else x.T @ x).astype(np.float64)
    kept = min(count, len(scatter))
    values, vectors = eigh(scatter, subset_by_index=[len(scatter) - kept, len(scatter) - 1])
    values, vectors = values[::-1], vectors[:, ::-1].T
    total = float(np.trace(scatter))
    real = values > 1e-12 * total
    components, shares = np.zeros((count, width)), np.zeros(count)
    axes = vectors[real] @ x / np.sqrt(values[real, None]) if by_rows else vectors[real]
    largest = np.abs(axes).argmax(axis=1)
    components[: len(axes)] = axes * np.sign(axes[np.arange(len(axes)), largest])[:, None]
    shares[: len(axes)] = values[real] / total if total else 0.0
    return components, shares


def colours(coordinates: Array, scale: float | Array) -> str:
    """Coordinates from −scale to scale as base64 bytes; 128 is zero."""
    relative = np.divide(coordinates, scale, out=np.zeros_like(coordinates), where=np.asarray(scale) > 0)
    return base64.b64encode(np.rint(127.5 * (1 + relative.clip(-1, 1))).astype(np.uint8).tobytes()).decode()


def as_bytes(maps: Tensor, largest: float | None = None) -> str:
    """Maps as base64 bytes, scaled to `largest` or to the largest entry of each map."""
    scale = maps.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12) if largest is None else largest
    return base64.b64encode((maps.clamp_min(0) / scale * 255).round().to(torch.uint8).cpu().numpy().tobytes()).decode()


def _quantile(values: Array) -> float:
    return float(np.quantile(np.abs(values), COLOUR_QUANTILE))


def _shrink(maps: Tensor, grid: tuple[int, int], largest: bool = False) -> Tensor:
    """Values of all patches (k, n) on their grid (k, h, w), at most SIDE patches per side: means, or largest ones."""
    maps = maps.unflatten(-1, grid)
    shown = (-(-grid[0] // -(-grid[0] // SIDE)), -(-grid[1] // -(-grid[1] // SIDE)))
    if shown == grid:
        return maps
    return (F.adaptive_max_pool2d if largest else F.adaptive_avg_pool2d)(maps, shown)
