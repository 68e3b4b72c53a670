"""The strip of blocks: a table of vitals by block, each row on its own scale."""

from __future__ import annotations

from typing import Any

from unsmooth.report.values import column, main_part, marked_blocks, merged
from unsmooth.report.words import part_label


def strip(diagnoses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the strip: one for each vital, with the cells of each model on the vital's own scale from 0 to 1."""
    rows = []
    for key, facts in merged(diagnoses).items():
        if facts["family"] == "theory":
            continue
        models, seen = [], []
        for i, d in enumerate(diagnoses):
            own = d["vitals"].get(key)
            part = main_part(own) if own is not None else None
            if own is None or part is None:
                continue
            series = own["parts"][part]
            marked = set(marked_blocks(d, key))
            models.append((i, part, own, marked, column(series), column(series, "sd"), column(series, "images")))
            seen += [v for v in column(series) if v is not None]
        if models:
            rows.append(_row(key, facts, models, min(seen), max(seen)))
    return rows


def _row(key: str, facts: Any, models: list[Any], low: float, high: float) -> dict[str, Any]:
    width = high - low

    def cell(
        own: Any, marked: set[int], block: int, value: float | None, sd: float | None, images: float | None
    ) -> dict[str, Any]:
        level = None if value is None else 0.0 if width <= 0 else (value - low) / width
        return {
            "block": block, "marked": block in marked, "value": value, "sd": sd,
            "images": None if images is None else int(images),
            "level": None if level is None else round(level, 3),
            "reason": "" if value is not None else str(own["skipped"].get(str(block), "not measured")),
        }  # fmt: skip

    return {
        "key": key, "title": facts["title"], "family": facts["family"], "low": low, "high": high,
        "part": part_label(models[0][1]) if models[0][1] else "",
        "models": [
            {"index": i, "cells": [cell(own, marked, b, *v) for b, v in enumerate(zip(mean, sd, n, strict=True))]}
            for i, _, own, marked, mean, sd, n in models
        ],
    }  # fmt: skip
