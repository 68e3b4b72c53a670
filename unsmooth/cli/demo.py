"""The main job on embedded data: a deep, narrow ViT on digits, plain and with remedies, trained and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from unsmooth.cli.terminal import run_bars, show
from unsmooth.report.trial_table import as_rich
from unsmooth.trials.compare import compare
from unsmooth.trials.directory import TrialDirectory

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=32, num_heads=2, depth=12)"
ARMS = ("", "+attn_scale+feat_scale", "+augmented_shortcut")
SEEDS = 3
# Digits have a right way round and fill their 64 pixels: no mirror, no crop.
BUDGET: dict[str, Any] = {
    "epochs": 11,
    "lr": 2e-3,
    "hflip": 0,
    "crop_scale": (1.0, 1.0),
    "validate_every": 2,
    "vitals_every": 4,
}


def demo(out: Path, jobs: int) -> None:
    """Run the trial in a folder, print what it found, and say where the report is."""
    console = Console()
    console.print(
        f"A ViT of 12 blocks and 32 channels on 1,797 scanned digits of 8 × 8 pixels, plain and with remedies: "
        f"{len(ARMS)} arms × {SEEDS} seeds, {jobs} at a time, each on the same budget.\n",
        highlight=False,
    )
    with run_bars() as bars:
        trial = compare(
            [HOST + arm for arm in ARMS], "digits", seeds=SEEDS, recipe="small", out=out, jobs=jobs, **BUDGET,
            on_progress=bars.on_progress, on_stage=bars.on_stage, command="unsmooth demo",
        )  # fmt: skip
    show(as_rich(trial))
    console.print()
    for arm in trial.arms:
        if arm.diagnosis is not None:
            verdict = arm.diagnosis["verdict"]["text"]
            console.print(f"[bold]{escape(arm.name)}[/bold]: {escape(verdict)}", highlight=False)
    console.print(
        f"\nThe report: {TrialDirectory(out).report}\nNext: unsmooth diagnose, unsmooth compare --help", highlight=False
    )
