"""Parameters, operations and layers of a published host with its remedies, counted without weights."""

from __future__ import annotations

from functools import cache

import torch

from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import flops, parameters
from unsmooth.papers.catalogue import COUNTED, Experiment, PublishedArm, PublishedGroup
from unsmooth.papers.rows import add_measured
from unsmooth.results.reproduction import ArmResult
from unsmooth.spec import ModelSpec
from unsmooth.surgery.apply import apply
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import anatomy_of, plan


@cache
def counts(spec: ModelSpec) -> dict[str, float]:
    """The metrics in `catalogue.COUNTED` of a model, in units of one."""
    with torch.device("meta"):
        model = create_model(ModelSpec(spec.host))
        added = 0
        for remedy in spec.remedies:
            added += plan(model, remedy).flops
            apply(model, remedy)
    counted = {"parameters": float(parameters(model)), "macs": flops(model) / 2, "added_flops": float(added)}
    try:
        return {**counted, "layers": float(len(anatomy_of(model).blocks))}
    except UnsmoothError:  # a convolutional network of a table has no attention
        return counted


def add_counts(row: ArmResult, experiment: Experiment, group: PublishedGroup, arm: PublishedArm) -> None:
    """Parameters and operations of the published host, at every scale."""
    wanted = [name for name in experiment.measures if name in COUNTED]
    if wanted:
        counted = counts(group.spec(arm, small=False))
        for name in wanted:
            add_measured(row, name, counted.get(name))
