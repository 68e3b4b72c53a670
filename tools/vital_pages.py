"""One page per vital: formula, range, reading, closed-form cases, cost; and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.markdown import code, facts, page, prose, section, table
from unsmooth.diagnosis import registry
from unsmooth.papers.catalogue import list_papers
from unsmooth.vitals.base import FAMILIES, Undefined, Vital

SIDE = 8
EQUAL, ORTHOGONAL = torch.ones(1, SIDE, SIDE), torch.eye(SIDE)[None]
UNIFORM, IDENTITY = torch.full((1, 1, SIDE, SIDE), 1 / SIDE), torch.eye(SIDE)[None, None]
ONE, ALL = torch.eye(SIDE)[:1], torch.ones(1, SIDE)  # singular values of rank 1, and all equal
HALVED = ORTHOGONAL.mean(dim=1, keepdim=True) + (ORTHOGONAL - ORTHOGONAL.mean(dim=1, keepdim=True)) / 2
_ROWS = torch.arange(4.0)
CHESSBOARD = (1 - 2 * ((_ROWS[:, None] + _ROWS) % 2))[None, :, :, None]
_PLACES = torch.cartesian_prod(torch.arange(2.0), torch.arange(4.0)) * 16
DISTANCES = torch.cdist(_PLACES, _PLACES)
CASES: dict[str, list[tuple[str, tuple[Tensor, ...]]]] = {
    "tokens": [("8 equal tokens", (EQUAL,)), ("8 orthogonal tokens of norm 1", (ORTHOGONAL,))],
    "growth": [("tokens as before the first block", (ORTHOGONAL, ORTHOGONAL)),
               ("half of their distance to the mean token", (HALVED, ORTHOGONAL))],
    "change": [("a block that changes nothing", (ORTHOGONAL, ORTHOGONAL)),
               ("a block that reverses every token", (ORTHOGONAL, -ORTHOGONAL))],
    "branches": [("a branch that adds nothing", (ORTHOGONAL, 0 * ORTHOGONAL)),
                 ("a branch that adds the tokens themselves", (ORTHOGONAL, ORTHOGONAL))],
    "singular": [("8 equal tokens (one singular value)", (ONE,)),
                 ("8 orthogonal tokens (equal singular values)", (ALL,))],
    "grid": [("4 × 4 equal tokens", (torch.ones(1, 4, 4, 1),)), ("4 × 4 chessboard of ±1", (CHESSBOARD,))],
    "map": [("uniform 8 × 8 map", (UNIFORM,)), ("8 × 8 identity map", (IDENTITY,))],
    "scores": [("scores of 0", (0 * IDENTITY,)), ("identity matrix as scores", (IDENTITY,))],
    "map_singular": [("uniform 8 × 8 map (one singular value)", (ONE[None],)),
                     ("8 × 8 identity map (equal singular values)", (ALL[None],))],
    "map_grid": [("uniform map on 2 × 4 patches of 16 pixels", (UNIFORM, DISTANCES)),
                 ("identity map on the same patches", (IDENTITY, DISTANCES))],
}  # fmt: skip
READS = {
    "tokens": "the output tokens of each block",
    "growth": "the output tokens of each block, and the tokens before the first block",
    "change": "the input and output tokens of each block",
    "branches": "the residual stream, and what each branch adds to it",
    "singular": "singular values of the tokens",
    "grid": "patch tokens on their grid",
    "map": "attention maps (of a treated model: the effective maps)",
    "scores": "attention scores before the softmax",
    "map_singular": "singular values of the attention maps",
    "map_grid": "attention maps between patch tokens, and distances in pixels",
    "blocks": "several blocks at once",
    "model": "the model itself, with parts removed",
}


def pages() -> dict[str, str]:
    vitals = {key: registry.get(key) for key in registry.list_vitals()}
    return {"vitals/index.md": _index(vitals), **{f"vitals/{key}.md": _vital(vital) for key, vital in vitals.items()}}


def _index(vitals: dict[str, Vital]) -> str:
    lines = [
        "# Vitals", "",
        "What `unsmooth diagnose` measures, block by block. Values are means over images, with their spread. Parts "
        "named `heads` have one value per head. Where a vital cannot be measured, the reason is shown instead. "
        'In Python: `diagnosis["token_cosine"].mean`.', "",
    ]  # fmt: skip
    for family in FAMILIES:
        members = [vital for vital in vitals.values() if vital.family == family]
        rows = (
            (f"[`{v.key}`]({v.key}.md)", v.title, code(v.formula), v.reading.replace("|", "&#124;")) for v in members
        )
        lines += [f"## {family.capitalize()}", "", *table(("vital", "name", "formula", "reading"), rows)]
    return page(lines)


def _vital(vital: Vital) -> str:
    known = {
        "formula": code(vital.formula),
        "range": _range(vital),
        "reading": vital.reading,
        "family": vital.family,
        "reads": READS.get(vital.of, vital.of),
        "kinds of attention": ", ".join(vital.accepts),
        "images": ("all" if vital.sample is None else f"at most {vital.sample}")
        + (f"; at most {vital.default_sample} unless it is requested by name" if vital.default_sample else ""),
        "measured": "by default" if vital.default else f"on request: `--vitals {vital.key}`",
    }
    return page([
        f"# {vital.title[:1].upper()}{vital.title[1:]} (`{vital.key}`)", "", prose(vital.help), "",
        *facts(known),
        *section("Parts", table(("part", "meaning"), ((f"`{name}`", meaning) for name, meaning in vital.parts))),
        *section("Closed-form cases", _cases(vital)),
        *section("Cost", [_cost(vital)]),
        *section("Where the papers use it", _papers(vital)),
    ])  # fmt: skip


def _range(vital: Vital) -> str:
    if vital.low is None and vital.high is None:
        return "any number"
    if vital.high is None:
        return f"{vital.low:g} or more"
    return f"{vital.low:g} to {vital.high:.4g}"


def _cases(vital: Vital) -> list[str]:
    rows = [(name, _value(vital.measure, inputs, vital.main)) for name, inputs in CASES.get(vital.of, ())]
    return [*(["Computed by the library itself:", ""] if rows else []), *table(("input", "value"), rows)]


def _value(measure: Callable[..., Any], inputs: tuple[Tensor, ...], main: str) -> str:
    try:
        values = measure(*(tensor.double() for tensor in inputs))  # so that rounding does not show
    except Undefined as reason:
        return f"undefined: {reason}"
    if isinstance(values, dict):
        values = values[main] if main in values else next(iter(values.values()))
    value = float(values.flatten()[0])
    return f"{value if abs(value) > 1e-6 else 0:.4g}".replace("-", "−")


def _cost(vital: Vital) -> str:
    if vital.of == "model":
        text = f"Runs the model again with parts removed, on at most {vital.sample} images."
    elif vital.sample is None:
        text = "One pass over tensors that the forward pass computes anyway, for every image. Nothing is stored."
    else:
        text = f"Computed for the first {vital.sample} images only, so its cost does not grow with the data."
    if vital.cubic:
        text += " Its cost grows with the cube of the map's side: larger maps are measured for fewer images."
    return text


def _papers(vital: Vital) -> list[str]:
    rows = [
        (f"[{experiment.title}](../papers/{paper.id}.md#{experiment.name})", experiment.source)
        for paper in list_papers()
        for experiment in paper.experiments()
        if any(curve.vital == vital.key for curve in experiment.curves) or vital.key in experiment.vitals.split(",")
    ]
    return table(("experiment", "in the paper"), rows)
