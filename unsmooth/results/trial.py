"""What a trial holds: one value that goes to JSON and back, prints as a table and saves as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsmooth.results.base import Result
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.utils.files import write


class Trial(Result):
    """Arms with their accuracies, differences, costs, curves and vitals; `data` is the JSON value itself."""

    kind = "trial"
    command = "unsmooth compare"

    @property
    def verdict(self) -> str:
        return str(self.data["verdict"]["text"])

    def __getitem__(self, name: str) -> dict[str, Any]:
        """An arm by its name."""
        for arm in self.data["arms"]:
            if arm["name"] == name:
                return dict(arm)
        raise KeyError(name)

    def __str__(self) -> str:
        from unsmooth.report.trial_table import as_text

        return as_text(self.data)

    def save(self, path: str | Path) -> None:
        """Write a page (.html) or a figure (.png, .svg, .pdf)."""
        from unsmooth.report.render import render_trial

        path = Path(path)
        write(path, render_trial(with_diagnoses(self.data), path.suffix.lstrip(".").lower()))


def with_diagnoses(data: dict[str, Any]) -> dict[str, Any]:
    """A trial whose arms hold their diagnoses as `Diagnosis`."""
    arms = [
        {**arm, "diagnosis": arm.get("diagnosis") and Diagnosis.from_dict(arm["diagnosis"])} for arm in data["arms"]
    ]
    return {**data, "arms": arms}
