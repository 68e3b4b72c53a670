"""Masked autoencoding (He et al., Masked Autoencoders Are Scalable Vision Learners, CVPR 2022), with remedies."""

from unsmooth.tasks.mae.storage import load_mae

__all__ = ["load_mae"]
