"""The result of `prescribe`: the diagnosis, the candidates, the rungs of the search and one recommendation or none."""

from __future__ import annotations

from typing import Annotated

from unsmooth.rendering import renderer
from unsmooth.results.provenance import Provenance
from unsmooth.results.record import Reported, Result, record, stored_as
from unsmooth.results.trial import Difference, SeedSpread, TrialData
from unsmooth.results.verdict import Finding, Verdict


@record
class TriedCandidate:
    """A candidate: the name that the page shows, the whole model spec, why it is one, and the finding it is for."""

    name: str
    spec: str
    reason: str
    finding: str


@record
class RungRun:
    """A candidate in one rung: its accuracy on held-out training images; None if the run failed."""

    name: str
    top1: float | None
    folder: str
    failed: str | None


@record
class Rung:
    """One rung: all its candidates were trained for the same number of epochs. `kept` are those of the next one."""

    epochs: int
    runs: list[RungRun]
    kept: list[str]


@record
class Budget:
    """Training of a prescription, in runs of the recipe's epochs and in training images; all stages included.

    Attributes:
        runs: Most runs.
        images: Most training images: runs × epochs × images of the data.
        planned: Training images of the plan, which was made after the diagnosis.
        spent: Training images that were used.
        text: The plan as text.
    """

    runs: float
    images: int
    planned: int
    spent: int
    text: str


@record
class FinalComparison:
    """The final comparison on fresh seeds: accuracies, the paired difference, and the trial directory."""

    name: str
    seeds: int
    confidence: float
    top1: SeedSpread
    baseline: SeedSpread
    difference: Difference | None
    folder: str


@record
class Prescription(Reported, Result):
    """One recommendation for a model, or none, with its evidence.

    Attributes:
        spec: The model spec that was examined.
        data: Name and size of the data.
        recipe_name: Name of the recipe.
        epochs: Epochs of the diagnosed run and of the final comparison.
        verdict: The verdict of the diagnosis.
        findings: The findings of the diagnosis.
        budget: The stated budget, and what was used of it.
        candidates: What was considered, best first by the diagnosis.
        rungs: The rungs of successive halving.
        evidence: The final comparison, one entry per finalist.
        recommendation: The model spec to use, or None.
        text: The recommendation, or the reason for none.
        provenance (Provenance): Versions, command and duration.

    Example:
        >>> import tempfile, unsmooth
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> given = unsmooth.prescribe(
        ...     host, "digits", epochs=1, warmup_epochs=0, train_images=128, val_images=40, out=tempfile.mkdtemp()
        ... )
        >>> given.recommendation is None
        True
    """

    kind = "prescription"
    command = "unsmooth prescribe"

    spec: str
    data: TrialData
    recipe_name: str
    epochs: int
    verdict: Verdict
    findings: list[Finding]
    budget: Budget
    candidates: list[TriedCandidate]
    rungs: list[Rung]
    evidence: list[FinalComparison]
    recommendation: str | None
    text: str
    provenance: Annotated[Provenance, stored_as("made")]

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        return f"Prescription({self.text!r})"
