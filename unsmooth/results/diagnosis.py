"""What a diagnosis holds: one value that goes to JSON and back without loss, prints as a table and saves as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.results.base import Result
from unsmooth.utils.files import write


class Reading(Sequence[float | None]):
    """One vital by block: a sequence of means (None where there is no value), with their spread over images."""

    def __init__(self, key: str, facts: dict[str, Any], part: str) -> None:
        self.key, self.facts, self.name = key, facts, part
        self._spreads: list[dict[str, Any] | None] = facts["parts"][part]

    def _column(self, name: str) -> list[Any]:
        return [None if spread is None else spread.get(name) for spread in self._spreads]

    @property
    def mean(self) -> list[Any]:
        return self._column("mean")

    @property
    def sd(self) -> list[Any]:
        """Standard deviation over images; None where a value is one for all images together."""
        return self._column("sd")

    @property
    def low(self) -> list[Any]:
        return self._column("low")

    @property
    def high(self) -> list[Any]:
        return self._column("high")

    @property
    def images(self) -> list[Any]:
        """How many images each value stands on."""
        return self._column("images")

    @property
    def parts(self) -> list[str]:
        return list(self.facts["parts"])

    @property
    def skipped(self) -> dict[int, str]:
        """Why there is no value, by block."""
        return {int(block): reason for block, reason in self.facts["skipped"].items()}

    def part(self, name: str) -> Reading:
        """Another part of the same vital: "robust" of `log_condition`, "heads" of an attention vital."""
        if name not in self.facts["parts"]:
            raise unknown(f"part of {self.key}", name, self.facts["parts"])
        return Reading(self.key, self.facts, name)

    def __len__(self) -> int:
        return len(self._spreads)

    def __getitem__(self, block: Any) -> Any:
        return self.mean[block]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.mean)

    def __repr__(self) -> str:
        values = ", ".join("–" if v is None else f"{v:.4g}" if isinstance(v, float) else "[…]" for v in self.mean)
        return f"{self.key}{'.' + self.name if self.name else ''}: {values}"


class Diagnosis(Result):
    """All vitals of one model on some images, with findings and a verdict.

    `diagnosis["token_cosine"]` gives a `Reading`; `print` a table by block with findings and verdict; `save` a page
    (.html) or a figure (.png, .svg, .pdf); `to_json` and `from_json` everything. `data` is the JSON value itself.
    """

    kind = "diagnosis"
    command = "unsmooth diagnose"

    @property
    def verdict(self) -> str:
        """healthy, collapsing, collapsed, …: one word, with `data["verdict"]["text"]` for people."""
        return str(self.data["verdict"]["state"])

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.data["findings"])

    @property
    def blocks(self) -> int:
        return len(self.data["model"]["blocks"])

    def keys(self) -> list[str]:
        return list(self.data["vitals"])

    def __getitem__(self, key: str) -> Reading:
        if key not in self.data["vitals"]:
            raise unknown("vital of this diagnosis", key, self.data["vitals"])
        facts = self.data["vitals"][key]
        if not facts["parts"]:
            reason = next(iter(facts["skipped"].values()), "nothing was measured")
            raise UnsmoothError(f"{key} has no value on any block: {reason}")
        main = facts["main"] if facts["main"] in facts["parts"] else next(iter(facts["parts"]))
        return Reading(key, facts, main)

    def __str__(self) -> str:
        from unsmooth.report.tables import as_text

        return as_text(self.data)

    def __repr__(self) -> str:
        return f"Diagnosis({self.data['model']['name']!r}: {self.data['verdict']['text']})"

    def save(self, path: str | Path, *others: Diagnosis) -> None:
        """Write a page (.html) or a figure for print (.png, .svg, .pdf), with other diagnoses laid over it."""
        from unsmooth.report.render import render

        path = Path(path)
        write(path, render([self.data, *(other.data for other in others)], path.suffix.lstrip(".").lower()))
