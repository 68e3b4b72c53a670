"""Request to run an experiment: scale, data, models and directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.papers.catalogue import Experiment, PublishedGroup, Scale
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.spec import ModelSpec
from unsmooth.utils.options import FilePath, option, options

DIGITS = "digits"  # default data with small=True


@options
class RunRequest:
    """Settings of one run of an experiment."""

    label = "paper"

    out: FilePath = option("directory of the run", default=Path("paper"))
    small: bool = option("small hosts and data, minutes on a laptop", default=False)
    data: str | None = option("images (default with small: scanned digits)", default=None)
    data_dir: FilePath | None = option("folder of timm dataset files", default=None)
    only: str = option("name of the only group to run (default: all)", default="")
    spec: str = option("model spec to use in place of the models of a figure", default="")
    checkpoints: Sequence[Path] = option("weights of each model, or the weights that every arm starts from", default=())
    pretrained: bool = option("start from the library's pretrained weights", default=False)
    seeds: int | None = option("runs per arm (default: that of the experiment)", default=None, low=1)
    jobs: int = option("runs trained at the same time", default=1, low=1)
    workers: int = option("worker processes that load images, per run", default=0, low=0)
    device: str = option("device: cpu, cuda or cuda:N (default: cuda if available)", default="")
    overrides: Mapping[str, Any] = Field(default_factory=dict)  # recipe fields
    on_progress: Callable[..., None] | None = None
    on_stage: Callable[[str], None] = lambda text: None
    command: str = ""

    def scale(self, experiment: Experiment) -> Scale:
        return experiment.small if self.small else experiment.full

    def seeds_of(self, experiment: Experiment) -> int:
        return self.seeds or self.scale(experiment).seeds

    def groups(self, experiment: Experiment) -> list[PublishedGroup]:
        """The groups to run. At small scale, groups with the same models are run once."""
        if not self.only:
            return distinct_groups(experiment.groups) if self.small else list(experiment.groups)
        groups = [group for group in experiment.groups if group.name == self.only]
        if not groups:
            raise unknown(f"group of {experiment.id}", self.only, [repr(group.name) for group in experiment.groups])
        return groups

    def images(self, experiment: Experiment) -> str:
        """The name of the data."""
        if self.data is not None:
            return self.data
        if self.small:
            return experiment.small.data or DIGITS
        raise UnsmoothError(
            f"{experiment.id} is published on {experiment.full.data}. Give it as data (--data), or use small (--small)."
        )

    def recipe(self, experiment: Experiment, group: PublishedGroup) -> Recipe:
        """The recipe with fields of the experiment, of the group and of the request, in this order."""
        scale = self.scale(experiment)
        group_fields = group.small_overrides if self.small else group.overrides
        name = scale.recipe if self.small else group.recipe or scale.recipe
        return load_recipe(name, {**scale.overrides, **group_fields, **self.overrides})

    def folder(self, group: PublishedGroup) -> Path:
        """The trial directory of a group."""
        return self.out / re.sub(r"[^A-Za-z0-9.+-]+", "_", group.name).strip("_")


def distinct_groups(groups: Sequence[PublishedGroup]) -> list[PublishedGroup]:
    """Groups without those whose small models are the same as those of an earlier group."""
    first = dict[tuple[ModelSpec, ...], PublishedGroup]()
    for group in groups:
        first.setdefault(tuple(group.specs(small=True)), group)
    return list(first.values())
