"""Whether tokens that collapse also lose class information: the accuracy of their nearest neighbours, by block."""

from __future__ import annotations

from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.measured import round_values
from unsmooth.results.verdict import Finding, Harm
from unsmooth.utils.intervals import paired_interval

PROBE, LOST = "depth_probe", "lost.matrix"


def harm_of(view: DiagnosisView, finding: Finding) -> Harm:
    """Compare the block of the finding's evidence with the last block before the finding, image by image.

    Neither block is chosen by its accuracy, so that the interval needs no correction for the choice.
    """
    accuracy = view.means(PROBE)
    if all(value is None for value in accuracy):
        return Harm("not measured", "no labels were given")
    worst = finding.deciding.block if finding.deciding is not None else None
    block = finding.blocks[-1] if worst is None else worst
    if accuracy[block] is None:
        return Harm("not measured", f"block {block} has no nearest-neighbour accuracy")
    images = _images(view, block)
    own = f"nearest-neighbour accuracy {accuracy[block]:.2f}{_interval(view, block)} in block {block}"
    before = next((b for b in reversed(range(finding.blocks[0])) if accuracy[b] is not None), None)
    if before is None:
        return Harm("not shown", f"{own} of {images} images; there is no earlier block to compare with", block)
    lost, won = _share(view, block, before), _share(view, before, block)
    low, high = paired_interval(won * images, lost * images, images)
    text = (
        f"{own}, {accuracy[before]:.2f}{_interval(view, before)} in block {before}: a change of {won - lost:+.2f} "
        f"(95 % interval {low:+.2f} to {high:+.2f}, {images} images)"
    )
    change, low, high = round_values([won - lost, low, high])
    return Harm("shown" if high < 0 else "not shown", text, block, before, change, low, high, images)


def _images(view: DiagnosisView, block: int) -> int:
    spread = view.vitals[PROBE].parts[""][block]
    return 0 if spread is None else spread.images


def _interval(view: DiagnosisView, block: int) -> str:
    low, high = view.means(PROBE, "low")[block], view.means(PROBE, "high")[block]
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"


def _share(view: DiagnosisView, block: int, other: int) -> float:
    """The share of images that `other` gets right and `block` does not."""
    spread = view.vitals[PROBE].parts[LOST][block]
    assert spread is not None and isinstance(spread.mean, list)
    value = spread.mean[other]
    assert isinstance(value, float)
    return value
