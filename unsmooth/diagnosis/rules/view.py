"""View of a diagnosis for the rules."""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth.diagnosis.rules.thresholds import THRESHOLDS
from unsmooth.results.measured import Broken, ModelInfo, Reference, Series, VitalResult, round_values
from unsmooth.results.verdict import Evidence


@dataclass(frozen=True)
class DiagnosisView:
    """View of a diagnosis for the rules: means by vital, part and block."""

    model: ModelInfo
    vitals: dict[str, VitalResult]
    reference: Reference | None = None
    broken: Broken | None = None

    @property
    def depth(self) -> int:
        return len(self.model.blocks)

    def means(self, key: str, part: str = "") -> list[float | None]:
        """Mean of a vital by block; None where it has no value."""
        vital = self.vitals.get(key)
        return self._means(vital.parts if vital is not None else {}, part)

    def means_at_random(self, key: str, part: str = "") -> list[float | None]:
        """Mean of a vital by block of the random reference."""
        return self._means(self.reference.vitals.get(key, {}) if self.reference is not None else {}, part)

    def _means(self, parts: dict[str, Series], part: str) -> list[float | None]:
        series = parts.get(part, [None] * self.depth)
        return [s.mean if s is not None and isinstance(s.mean, float) else None for s in series]

    def means_in(self, blocks: list[int], key: str, part: str = "") -> list[float]:
        """Means of these blocks, as far as they have a value."""
        means = self.means(key, part)
        return [mean for b in blocks if (mean := means[b]) is not None]

    def heads(self, key: str) -> list[list[float | None]]:
        """Mean of a vital of maps by block and head."""
        vital = self.vitals.get(key)
        series = vital.parts.get("heads", []) if vital is not None else []
        means = [s.mean if s is not None and isinstance(s.mean, list) else [] for s in series or [None] * self.depth]
        return [[mean if isinstance(mean, float) else None for mean in heads] for heads in means]

    def evidence(
        self,
        key: str,
        part: str,
        text: str,
        block: int | None = None,
        name: str = "",
        limit: float | None = None,
        value: float | None = None,
    ) -> Evidence:
        """Evidence with the value at random initialisation, where there is one.

        With the `name` of a threshold, its limit is that of the threshold, or `limit` if it depends on the block.
        `value` is that of a head; otherwise it is the mean of the block.
        """
        random = self.means_at_random(key, part)[block] if block is not None and value is None else None
        suffix = f" (random initialisation: {random:.2g})" if random is not None else ""
        made = Evidence(key, part, self.vitals[key].family, text + suffix, block)
        if block is not None:
            made.value = round_values(self.means(key, part)[block] if value is None else value)
        if name and made.value is not None:
            used = THRESHOLDS[name]
            made.limit = round_values(used.value if limit is None else limit)
            made.margin = round_values((made.value - made.limit) * (1 if used.above else -1))
            made.threshold, made.source = name, used.source
        return made
