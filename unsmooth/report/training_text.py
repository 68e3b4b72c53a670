"""The result of a training run as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.report.metrics import format_scores

if TYPE_CHECKING:
    from unsmooth.results.training import TrainingResult


def as_text(result: TrainingResult) -> str:
    """Metrics of the last and of the best epoch, images, speed, and the number of broken images."""
    best = f"{format_scores(result.best.metrics)} after epoch {result.best.epoch}"
    text = (
        f"{format_scores(result.metrics)} on {result.images:,} images after {result.epochs} epochs (best: {best}), "
        f"{result.images_per_second:,.0f} images/s"
    )
    skipped = sum(map(len, result.skipped.values()))
    return f"{text}\nskipped {skipped} broken images, listed in result.json" if skipped else text
