"""Recorded runs of the papers' parts, in results/papers/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unsmooth.papers.catalogue import TRAINED, Experiment

RECORDS = Path(__file__).parent.parent / "results" / "papers"
SMALL, REAL = RECORDS / "small", RECORDS / "vits14"


def read_record(experiment: Experiment, folder: Path = SMALL) -> dict[str, Any] | None:
    """The recorded run of a part, or None: with --small (SMALL), or on the ViT-S/14 (REAL)."""
    path = folder / f"{experiment.id}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def state_of(experiment: Experiment) -> str:
    record = read_record(experiment)
    if record is None:
        return experiment.state
    scale = " at small scale" if record["scale"]["small"] and experiment.kind in TRAINED else ""
    return f"measured here{scale}: {record['scale']['data']}"
