"""Hosts that the papers use and timm lacks, registered with timm under their names."""

from unsmooth.models import convmixer

__all__ = ["convmixer"]
