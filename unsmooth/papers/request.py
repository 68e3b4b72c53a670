"""What a user asks of an experiment: its scale, data, models and folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.papers.catalogue import Experiment, Group, Scale

DIGITS = "digits"  # the data of --small where none are named


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    out: Path
    small: bool = False
    data: str | None = None
    data_dir: Path | None = None
    only: str = ""  # a group
    spec: str = ""  # a model of the user's own, for a figure
    checkpoints: Sequence[Path] = ()
    pretrained: bool = False
    seeds: int | None = None
    jobs: int = 1
    workers: int = 0
    device: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    on_progress: Callable[..., None] | None = None
    on_stage: Callable[[str], None] = lambda text: None
    command: str = ""

    def scale(self, experiment: Experiment) -> Scale:
        return experiment.small if self.small else experiment.full

    def groups(self, experiment: Experiment) -> list[Group]:
        if not self.only:
            return first_of_each(experiment.groups) if self.small else list(experiment.groups)
        found = [group for group in experiment.groups if group.name == self.only]
        if not found:
            raise unknown(f"group of {experiment.id}", self.only, [repr(group.name) for group in experiment.groups])
        return found

    def images(self, experiment: Experiment) -> str:
        """The data: as named, digits for --small, and never a guess where ImageNet is meant."""
        if self.data is not None:
            return self.data
        if self.small:
            return experiment.small.data or DIGITS
        raise UnsmoothError(
            f"{experiment.id} is published on {experiment.full.data}: name it with --data, or try --small"
        )

    def fields(self, experiment: Experiment, group: Group) -> dict[str, Any]:
        """Recipe fields: the experiment's, its host's, the user's."""
        own = group.small_overrides if self.small else group.overrides
        return {**self.scale(experiment).overrides, **own, **self.overrides}

    def folder(self, group: Group) -> Path:
        return self.out / re.sub(r"[^A-Za-z0-9.+-]+", "_", group.name).strip("_")


def first_of_each(groups: Sequence[Group]) -> list[Group]:
    """Groups without those that have the same small hosts and arms as one before: they would be the same runs."""
    seen = dict[tuple[str, ...], Group]()
    for group in groups:
        seen.setdefault(tuple(group.specs(small=True)), group)
    return list(seen.values())
