"""The pictures of tokens that reports draw: their names, titles and readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """Title of a picture, its normal appearance, and its appearance in a collapse."""

    title: str
    shows: str
    reading: str


PICTURES = {
    "pca": Picture(
        "Patch tokens as colours, one basis for all blocks",
        "Directions of the patch tokens on the first three principal components of all blocks, as red, green and blue. "
        "Grey is the mean token of the block; the number is the share of its variance that the colours show.",
        "Normal: regions of the image have their own colours, which stay from block to block. "
        "Collapse: the picture fades to grey, or to a few flat colours.",
    ),
    "pca_own": Picture(
        "Patch tokens as colours, each block in its own basis",
        "The same with the components and the scale of each block, which stretches whatever difference is left.",
        "Normal: objects and their parts. Collapse: noise or flat areas, and a share that rises towards 100 %.",
    ),
    "norms": Picture(
        "Token norms",
        "Norm of each patch token, from 0 to the largest of the block, which is the number.",
        "Normal: similar norms everywhere. A few bright patches in plain background are outliers, which registers "
        "remove. Norms alone do not show a collapse.",
    ),
    "class_attention": Picture(
        "Attention of the class token",
        "Attention of the class token to the patches, scaled to its largest entry. The menu above selects the head.",
        "Normal: heads differ, and late blocks look at objects. Collapse: an even picture, or the same few patches in "
        "every head.",
    ),
    "rollout": Picture(
        "Attention rollout",
        "Attention multiplied through all blocks so far, half attention and half skip: what has reached the class "
        "token, or the mean of the patches if there is none. The brightest 5 % of the patches are saturated; the "
        "number is the largest entry relative to the mean.",
        "Normal: more of some regions than of others. Collapse: an even picture with a number near 1, or a few patches "
        "that take everything.",
    ),
    "trajectories": Picture(
        "Paths of tokens through the blocks",
        "Directions of some patch tokens after each block, on their two main axes. A line is a patch, its "
        "colour the place in the image, and the dot the last block.",
        "Normal: lines stay apart, and neighbours run together. Collapse: all lines end in one point.",
    ),
}  # fmt: skip
