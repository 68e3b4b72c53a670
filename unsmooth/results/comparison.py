"""The comparison of two diagnoses: what changed, by how much, and whether it is more than the images' spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from unsmooth.errors import UnsmoothError
from unsmooth.results.measured import ImagesInfo, ModelInfo, Spread, VitalResult
from unsmooth.utils.text import blocks_text

SAME = 1e-4  # relative difference that rounding explains
ERRORS = 2.0  # standard errors of the difference of two means over images


class Compared(Protocol):
    """What a comparison reads of a diagnosis."""

    model: ModelInfo
    images: ImagesInfo
    vitals: dict[str, VitalResult]

    @property
    def verdict(self) -> str: ...

    @property
    def blocks(self) -> int: ...


@dataclass(frozen=True)
class Change:
    """One vital in one block, before and after.

    Attributes:
        key: Name of the vital.
        part: Name of the part.
        block: Index of the block.
        before: Mean over images.
        after: Mean over images.
        sd: Pooled standard deviation over images; None for a value that all images share.
        beyond: Whether the difference is more than two standard errors of the means.
    """

    key: str
    part: str
    block: int
    before: float
    after: float
    sd: float | None
    beyond: bool

    @property
    def delta(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def changed(self) -> bool:
        """Whether the difference is more than rounding."""
        return abs(self.delta) > SAME * max(abs(self.before), abs(self.after))


@dataclass(frozen=True)
class Comparison:
    """Differences between two diagnoses. `print(comparison)` shows it.

    Attributes:
        before: Name of the first model.
        after: Name of the second model.
        verdicts: Both verdicts.
        changes: Every vital and block that both diagnoses have.
        notes: Differences of the images, which make the numbers hard to compare.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
        >>> before = unsmooth.diagnose(model, limit=4, quick=True)
        >>> print(before.compare(before))
        Nothing changed.
    """

    before: str
    after: str
    verdicts: tuple[str, str]
    changes: list[Change]
    notes: list[str]

    @property
    def changed(self) -> list[Change]:
        """Differences that are more than rounding, the largest in units of the images' spread first."""
        return sorted((c for c in self.changes if c.changed), key=_size, reverse=True)

    def of(self, key: str, part: str | None = None) -> dict[int, Change]:
        """Changes of a vital by block."""
        return {c.block: c for c in self.changes if c.key == key and part in (None, c.part)}

    def lines(self) -> list[str]:
        """The comparison as sentences."""
        if not self.changed:
            return [*self.notes, "Nothing changed."]
        first, second = self.verdicts
        lines = [*self.notes, f"Verdict: {first}, unchanged." if first == second else f"Verdict: {first} → {second}."]
        by_key: dict[str, list[Change]] = {}
        for change in self.changed:
            by_key.setdefault(change.key, []).append(change)
        within = [key for key, changes in by_key.items() if not any(c.beyond for c in changes)]
        for key, changes in by_key.items():
            if key in within:
                continue
            far = [c for c in changes if c.beyond]
            top = max(far, key=_size)
            spread = "" if top.sd is None else f", spread over images {top.sd:.3g}"
            lines.append(
                f"{key}: {top.delta:+.3g} in block {top.block} ({top.before:.3g} → {top.after:.3g}{spread}); "
                f"changed in {blocks_text(sorted(c.block for c in far))}."
            )
        if within:
            lines.append(f"Within the images' spread: {', '.join(within)}.")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _size(change: Change) -> float:
    """A difference in units of the images' spread, or of the value itself."""
    scale = change.sd or max(abs(change.before), abs(change.after))
    return abs(change.delta) / scale if scale else 0.0


def compare(before: Compared, after: Compared) -> Comparison:
    """Compare the vitals that two diagnoses share, block by block."""
    if before.blocks != after.blocks:
        raise UnsmoothError(
            f"{before.model.name} has {before.blocks} blocks and {after.model.name} has {after.blocks}. "
            "Compare diagnoses with the same number of blocks."
        )
    changes = []
    for key, vital in before.vitals.items():
        other = after.vitals.get(key)
        part = vital.main if vital.main in vital.parts else next(iter(vital.parts), None)
        if other is None or part is None or part not in other.parts:
            continue
        for block, (x, y) in enumerate(zip(vital.parts[part], other.parts[part], strict=True)):
            change = _change(key, part, block, x, y)
            if change is not None:
                changes.append(change)
    verdicts = before.verdict, after.verdict
    return Comparison(before.model.name, after.model.name, verdicts, changes, _notes(before, after))


def _change(key: str, part: str, block: int, x: Spread | None, y: Spread | None) -> Change | None:
    if x is None or y is None or not isinstance(x.mean, float) or not isinstance(y.mean, float):
        return None
    if not isinstance(x.sd, float) or not isinstance(y.sd, float):
        return Change(key, part, block, x.mean, y.mean, None, beyond=True)
    sd = math.sqrt((x.sd**2 + y.sd**2) / 2)
    error = math.sqrt(x.sd**2 / max(x.images, 1) + y.sd**2 / max(y.images, 1))
    return Change(key, part, block, x.mean, y.mean, sd, abs(y.mean - x.mean) > ERRORS * error)


def _notes(before: Compared, after: Compared) -> list[str]:
    x, y = before.images, after.images
    if (x.source, x.count, x.size) == (y.source, y.count, y.size):
        return []
    return [
        f"The images differ: {x.count} from {x.source} ({' × '.join(map(str, x.size))}) before, {y.count} from "
        f"{y.source} ({' × '.join(map(str, y.size))}) after."
    ]
