"""Recorded runs of the papers' experiments, in results/papers/."""

from __future__ import annotations

from pathlib import Path

from unsmooth.papers.catalogue import TRAINED, Experiment
from unsmooth.results.reproduction import Reproduction

RECORDS = Path(__file__).parent.parent / "results" / "papers"
SMALL, REAL = RECORDS / "small", RECORDS / "vits14"


def read_record(experiment: Experiment, folder: Path = SMALL) -> Reproduction | None:
    """The recorded run of an experiment, or None: with --small (SMALL), or on the ViT-S/14 (REAL)."""
    path = folder / f"{experiment.id}.json"
    return Reproduction.from_json(path) if path.is_file() else None


def state_of(experiment: Experiment) -> str:
    record = read_record(experiment)
    if record is None:
        return experiment.state
    scale = " at small scale" if record.scale.small and experiment.kind in TRAINED else ""
    return f"measured here{scale}: {record.scale.data}"
