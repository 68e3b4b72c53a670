"""Hosts that the papers use and timm lacks, registered with timm under their names."""

from unsmooth.models import convmixer, deepvit, deit, localvit, pvt, t2t_vit

__all__ = ["convmixer", "deepvit", "deit", "localvit", "pvt", "t2t_vit"]
