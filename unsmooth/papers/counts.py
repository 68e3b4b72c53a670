"""Parameters, operations and layers of a published host with its remedies, counted without weights."""

from __future__ import annotations

from functools import cache

import torch

from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import flops, parameters
from unsmooth.spec import ModelSpec, parse
from unsmooth.surgery.apply import apply
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import anatomy_of, plan


@cache
def counts(spec: str) -> dict[str, float]:
    """The metrics in `catalogue.COUNTED` of a model, in units of one."""
    parsed = parse(spec)
    with torch.device("meta"):
        model = create_model(str(ModelSpec(parsed.host, ())))
        added = 0
        for remedy in parsed.remedies:
            added += plan(model, str(remedy)).flops
            apply(model, str(remedy))
    counted = {"parameters": float(parameters(model)), "macs": flops(model) / 2, "added_flops": float(added)}
    try:
        return {**counted, "layers": float(len(anatomy_of(model).blocks))}
    except UnsmoothError:  # a convolutional network of a table has no attention
        return counted
