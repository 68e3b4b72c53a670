"""A sample image in a diagnosis: the picture, maps of some patches, and pictures of all tokens by block.

Everything is quantised to bytes, so that a report stays small: one byte per head, query and patch of a map, and one to
three per patch of a picture.
"""

from __future__ import annotations

from pydantic import Field

from unsmooth.results.record import if_set, record


@record
class SampleBlock:
    """Attention maps and token similarity of one image and block, as base64 bytes.

    Both are taken at the patches in `queries` (row and column in `grid`): `maps` is heads × queries × grid, scaled to
    the largest entry of each map; `similarity` is queries × grid, from 0 to 1. `first_head` is the whole map of the
    first head, prefix tokens included, after 4 × 4 max pooling; it is square.
    """

    grid: list[int]
    queries: list[list[int]]
    heads: int | None = if_set()
    maps: str | None = if_set()
    similarity: str | None = if_set()
    first_head: str | None = if_set()


@record
class TokenPictures:
    """Pictures of all patches of one image after one block, as base64 bytes on `grid`.

    Attributes:
        grid: Rows and columns. Finer grids of patches are averaged, norms by their maximum.
        pca: Red, green and blue of each patch: its unit token less the mean of the block, on the first three principal
            components of all blocks of equal width. 128 is the mean.
        pca_share: Share of the variance of this block on these components.
        pca_own: The same with components and scale of this block alone.
        pca_own_share: Share of the variance of this block on them.
        norms: Norms of the tokens, from 0 to `largest_norm`.
        largest_norm: The largest norm.
        median_norm: The median norm.
        heads: Number of heads of `class_attention`.
        class_attention: Attention of the class token to the patches, heads × grid, scaled to the largest of each head.
        rollout: Attention rollout up to this block: what has reached the class token, or the mean of all patches if
            there is none. From 0 to its 95 % quantile; larger entries are saturated.
        rollout_peak: Its largest entry, relative to the mean over the patches.
    """

    grid: list[int]
    pca: str | None = if_set()
    pca_share: float | None = if_set()
    pca_own: str | None = if_set()
    pca_own_share: float | None = if_set()
    norms: str | None = if_set()
    largest_norm: float | None = if_set()
    median_norm: float | None = if_set()
    heads: int | None = if_set()
    class_attention: str | None = if_set()
    rollout: str | None = if_set()
    rollout_peak: float | None = if_set()


@record
class Trajectories:
    """Paths of some patches through blocks of equal width: unit tokens on the first two principal components of them.

    `points` has one list per patch with one point per block in `blocks`; `patches` are the places of the patches as
    shares of height and width, `shares` the shares of the variance of both components.
    """

    blocks: list[int]
    patches: list[list[float]]
    points: list[list[list[float]]]
    shares: list[float]


@record
class Sample:
    """One sample image: its name, the picture as a data URI, maps and pictures by block, and paths of tokens.

    `left_out` names the pictures that cannot be drawn for this model, or only for some blocks, with the reason.
    """

    name: str
    picture: str
    blocks: dict[int, SampleBlock]
    pictures: dict[int, TokenPictures] = Field(default_factory=dict, exclude_if=lambda value: not value)
    trajectories: Trajectories | None = if_set()
    left_out: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
