"""unsmooth demo: a deep, narrow ViT on digits, trained without and with remedies, diagnosed and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Option

from unsmooth.cli.terminal import run_bars, show

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=32, num_heads=2, depth=12)"
ARMS = ("", "+attn_scale+feat_scale", "+augmented_shortcut")
SEEDS = 3
# No flips and no crops: a mirrored digit is another shape, and digits fill their 64 pixels.
BUDGET: dict[str, Any] = {
    "epochs": 11,
    "lr": 2e-3,
    "hflip": 0,
    "crop_scale": (1.0, 1.0),
    "validate_every": 2,
    "vitals_every": 4,
}


def demo(
    out: Annotated[Path, Option(metavar="DIR", show_default=False, help="trial directory (default: demo)")] = Path(
        "demo"
    ),
    jobs: Annotated[
        int, Option(metavar="INT", show_default=False, help="runs trained at the same time (default: 2)")
    ] = 2,
) -> None:
    """Train and compare three small models on digits.

    A deep, narrow ViT is trained without and with remedies, with three seeds each, then diagnosed and compared.
    This takes about two minutes.
    """
    from unsmooth.report.trial_table import as_rich
    from unsmooth.trials.compare import compare
    from unsmooth.trials.directory import TrialDirectory

    show([
        f"A ViT of 12 blocks and 32 channels on 1,797 scanned digits of 8 × 8 pixels, plain and with remedies: "
        f"{len(ARMS)} arms × {SEEDS} seeds, {jobs} at a time, all on the same budget.\n",
    ])  # fmt: skip
    with run_bars() as bars:
        trial = compare(
            [HOST + arm for arm in ARMS], "digits", seeds=SEEDS, recipe="small", out=out, jobs=jobs, **BUDGET,
            on_progress=bars.on_progress, on_stage=bars.on_stage, command="unsmooth demo",
        )  # fmt: skip
    show([*as_rich(trial), ""])
    for arm in trial.arms:
        if (diagnosis := arm.diagnosed) is not None:
            show([f"[bold]{escape(arm.name)}[/bold]: {escape(diagnosis.verdict_text)}"])
    report = escape(str(TrialDirectory(out).report))
    show([f"\nReport: {report}\nNext: unsmooth diagnose --help, unsmooth compare --help"])
