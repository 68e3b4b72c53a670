"""Checkpoints of the remedies' authors, as models of this library.

What was read, and where: names, shapes and meaning of every parameter are from the authors' public code (VITA-Group's
ViT-Anti-Oversmoothing for AttnScale and FeatScale on DeiT, CaiT and Swin; huawei-noah's Efficient-AI-Backbones,
augvit_pytorch, for augmented shortcuts). No checkpoint file of theirs was at hand: docs/importing.md says what that
leaves open.
"""

from unsmooth.surgery.authors.checkpoint import import_checkpoint

__all__ = ["import_checkpoint"]
