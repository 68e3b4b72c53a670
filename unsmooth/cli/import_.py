"""unsmooth import: convert a checkpoint of a remedy's authors to a folder that unsmooth.load reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from unsmooth.cli.options import DIR
from unsmooth.cli.outputs import check_directory
from unsmooth.cli.terminal import echo


def import_(
    checkpoint: Annotated[Path, Argument(metavar="FILE", help=".pth or .safetensors file of the authors' code")],
    out: Annotated[Path, Option(metavar=DIR, help="directory to write the model to")],
    spec: Annotated[
        str | None,
        Option(metavar="SPEC", help="model spec: HOST or HOST+remedy (default: inferred from names and shapes)"),
    ] = None,
    source: Annotated[
        str | None,
        Option(
            metavar="REMEDY",
            help="remedy that the file must hold: attn_scale, feat_scale or augmented_shortcut (default: inferred)",
        ),
    ] = None,
    doubled: Annotated[
        bool | None,
        Option(
            show_default=False,
            help="read FeatScale on DeiT as factors 1+2s and 1+2t (default: 1+s and 1+t, as in the paper)",
        ),
    ] = None,
    entry: Annotated[
        str | None,
        Option(metavar="KEY", help="entry of the file that holds the weights, such as model_ema (default: the first)"),
    ] = None,
) -> None:
    """Convert a checkpoint of a remedy's authors.

    Checkpoints of AttnScale, FeatScale and augmented shortcuts are supported. The result loads with unsmooth.load.
    """
    from unsmooth.evaluation.cost import parameters
    from unsmooth.surgery.authors import import_checkpoint
    from unsmooth.surgery.record import applied
    from unsmooth.surgery.storage import save

    check_directory(out)
    model = import_checkpoint(checkpoint, spec, source=source, doubled=doubled, entry=entry)
    save(model, out)
    print(f"{applied(model)}: {parameters(model):,} parameters")  # noqa: T201
    echo(f"wrote {out}; next: unsmooth evaluate {out} --data …")
