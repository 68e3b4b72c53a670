"""Imports checkpoints of the authors of remedies.

The names, shapes and meaning of the parameters are from the authors' public code: ViT-Anti-Oversmoothing of VITA-Group
for AttnScale and FeatScale on DeiT, CaiT and Swin; augvit_pytorch in Efficient-AI-Backbones of huawei-noah for
augmented shortcuts. They were not tested with the authors' checkpoint files; docs/guides/authors-checkpoints.md lists
what that leaves open.
"""

from unsmooth.surgery.authors.checkpoint import import_checkpoint

__all__ = ["import_checkpoint"]
