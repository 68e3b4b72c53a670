"""unsmooth demo: a ViT that does not train, its diagnosis, a remedy, and the proof that the remedy works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from typer import Option

from unsmooth.cli.terminal import run_bars, show

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.trial import Trial

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=32, num_heads=2, depth=12, mlp_ratio=2)"
ILL = HOST + "+no_skip(branch=attn)"
REMEDY = "augmented_shortcut(branch=attn)"
TREATED = f"{ILL}+{REMEDY}"
SEEDS = 3
# No flips and no crops: a mirrored digit is another shape, and digits fill their 64 pixels.
# The learning rate was chosen so that both the plain and the treated host train; at 4e-3 only the plain one does.
BUDGET: dict[str, Any] = {
    "epochs": 16,
    "batch_size": 32,
    "lr": 1.5e-3,
    "warmup_epochs": 2,
    "hflip": 0,
    "crop_scale": (1.0, 1.0),
    "validate_every": 4,
    "vitals_every": 0,
}


def demo(
    out: Annotated[Path, Option(metavar="DIR", show_default=False, help="trial directory (default: demo)")] = Path(
        "demo"
    ),
    jobs: Annotated[
        int, Option(metavar="INT", show_default=False, help="runs trained at the same time (default: 2)")
    ] = 2,
) -> None:
    """Diagnose, treat and compare a ViT that does not train.

    The demo removes the attention skip of a 12-block ViT, which then fails to learn to classify digits. It diagnoses
    the model, applies a remedy, and compares both with an interval. It needs no download and takes about three minutes.
    """
    from unsmooth.report.trial_table import as_rich
    from unsmooth.trials.compare import compare
    from unsmooth.trials.directory import TrialDirectory

    def trial_of(specs: list[str], **settings: Any) -> Trial:
        with run_bars() as bars:
            return compare(
                specs, "digits", recipe="small", out=out, jobs=jobs, **BUDGET, **settings,
                on_progress=bars.on_progress, on_stage=bars.on_stage, progress=bars.on_runs, command="unsmooth demo",
            )  # fmt: skip

    _heading(1, "A model that does not train")
    show([
        "A ViT of 12 blocks learns to read 1,797 scanned digits of 8 × 8 pixels. Then the skip of its attention is "
        "removed (no_skip), and it is trained again in the same way.\n"
    ])  # fmt: skip
    first = trial_of([ILL, HOST], seeds=1, costs=False)
    ill, plain = first.arms
    show([f"with the skip: {_accuracy(plain.top1.mean)}; without it: {_accuracy(ill.top1.mean)}"])

    _heading(2, "Diagnosis")
    before = ill.diagnosed
    if before is None:
        show(["The model could not be trained, so there is nothing to diagnose."])
        return
    show([f"[bold]{escape(before.verdict_text)}[/bold]"])
    if before.conclusion.why:
        show([f"Why: {escape(before.conclusion.why)}."])
    for finding in before.findings[:1]:
        show(["\nCandidates:"])
        show(
            [f"  {escape(c.spec)}: {escape(c.reason)}" if c.spec else f"  {escape(c.reason)}" for c in finding.remedies]
        )

    _heading(3, "Treatment, as a trial")
    show([
        f"The model is trained with and without {REMEDY}: {SEEDS} seeds each, with the same data order and initial "
        "weights.\n"
    ])  # fmt: skip
    trial = trial_of([ILL, TREATED], seeds=SEEDS)
    show(as_rich(trial))

    _heading(4, "Diagnosis again")
    after = trial.arms[1].diagnosed
    if after is not None:
        show([escape(after.verdict_text), "", *_similarity(before, after)])
    report = escape(str(TrialDirectory(out).report))
    show([f"\nReport: {report}\nYour own model: unsmooth diagnose HOST --checkpoint FILE --images FOLDER"])


def _heading(number: int, title: str) -> None:
    show([f"\n[bold]{number}. {title}[/bold]"])


def _accuracy(top1: float | None) -> str:
    return "failed" if top1 is None else f"{100 * top1:.1f} % of the digits"


def _similarity(before: Diagnosis, after: Diagnosis) -> list[str]:
    """Token similarity by block, without and with the remedy."""
    rows = [("block", [f"{block:4d}" for block in range(len(before["token_cosine"]))])]
    for name, diagnosis in (("without", before), ("with", after)):
        values = diagnosis["token_cosine"].mean
        rows.append((name, ["   –" if value is None else f"{value:4.2f}" for value in values]))
    return ["Cosine similarity of tokens, without and with the remedy:"] + [
        f"{name:8}{' '.join(cells)}" for name, cells in rows
    ]
