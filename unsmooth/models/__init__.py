"""Hosts of the papers that timm does not have. Importing this package registers them with timm."""

from unsmooth.models import cct, convmixer, deepvit, deit, localvit, pvt, t2t_vit

__all__ = ["cct", "convmixer", "deepvit", "deit", "localvit", "pvt", "t2t_vit"]
