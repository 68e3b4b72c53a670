"""Provenance of a result: versions, command line and duration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from unsmooth.results.record import record

ClassName = Annotated[str, Field(validation_alias="class", serialization_alias="class")]  # "class" in the JSON


@record
class Provenance:
    """Versions, command line ("" if called from Python) and duration in seconds."""

    unsmooth: str
    torch: str
    timm: str
    command: str
    seconds: float


def versions() -> dict[str, str]:
    """Versions of unsmooth, torch and timm."""
    import timm
    import torch

    from unsmooth._version import __version__

    return {"unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__}
