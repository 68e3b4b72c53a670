"""What the remedies on a model have learned, block by block (the first paper's Figures 6 and 7)."""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth.diagnosis.moments import shorten
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import record_of

MOST = 64  # values of a parameter that are listed; of longer ones, quantiles are


def learned(model: nn.Module) -> list[dict[str, Any]]:
    """Every remedy parameter: its block, its values where they are few, and their spread."""
    if not record_of(model).applied:
        return []
    names = {block.index: block.name for block in anatomy_of(model).blocks}
    rows = []
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            if not attachment.module:
                continue
            at = attachment.module
            block = next((i for i, name in names.items() if f"{at}.".startswith(f"{name}.")), None)
            for parameter, value in model.get_submodule(at).named_parameters():
                flat = value.detach().double().flatten().cpu()
                few = flat.numel() <= MOST
                rows.append({
                    "remedy": entry.remedy.name,
                    "name": f"{at}.{parameter}",
                    "parameter": parameter,
                    "block": block,
                    "count": flat.numel(),
                    "mean": shorten(flat.mean().item()),
                    "low": shorten(flat.min().item()),
                    "high": shorten(flat.max().item()),
                    "values": shorten(flat.tolist() if few else flat.quantile(_levels()).tolist()),
                    "quantiles": not few,
                })  # fmt: skip
    return rows


def _levels() -> Any:
    import torch

    return torch.linspace(0, 1, MOST, dtype=torch.float64)
