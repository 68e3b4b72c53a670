"""unsmooth import: a checkpoint of a remedy's authors becomes a folder of this library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from unsmooth.cli.terminal import echo
from unsmooth.errors import UnsmoothError


def import_(
    checkpoint: Annotated[Path, Argument(metavar="FILE", help="a .pth or .safetensors file of the authors' code")],
    out: Annotated[Path, Option(metavar="DIR", help="the folder to write, as unsmooth.save does")],
    spec: Annotated[str | None, Option(help="HOST or HOST+remedy; without: found by names and shapes")] = None,
    source: Annotated[str | None, Option(help="the remedy: attn_scale, feat_scale or augmented_shortcut")] = None,
    doubled: Annotated[bool | None, Option(help="FeatScale on DeiT was trained as 1+2s, 1+2t, or as printed")] = None,
    entry: Annotated[str | None, Option(help="which weights of the file: model, model_ema, state_dict, …")] = None,
) -> None:
    """Convert a checkpoint of a remedy's authors."""
    from unsmooth.evaluation.cost import parameters
    from unsmooth.surgery.authors import import_checkpoint
    from unsmooth.surgery.record import applied
    from unsmooth.surgery.storage import save

    if out.exists() and not out.is_dir():
        raise UnsmoothError(f"{out} is a file; --out takes a folder")
    model = import_checkpoint(checkpoint, spec, source=source, doubled=doubled, entry=entry)
    save(model, out)
    print(f"{applied(model)}: {parameters(model):,} parameters")  # noqa: T201
    echo(f"wrote {out}; try: unsmooth evaluate {out} --data …")
