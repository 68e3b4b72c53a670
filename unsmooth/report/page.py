"""The page of diagnoses: one HTML file that opens without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from unsmooth.report import charts, formatting
from unsmooth.report.charts import Payload
from unsmooth.report.heatmap import heatmap
from unsmooth.report.pictures import PICTURES, Picture
from unsmooth.report.values import deciding_vitals, depth_of, merged
from unsmooth.utils.text import blocks_text, spans

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.verdict import Finding

FILES = ("report.css", "core.js", "heatmap.js", "curves.js", "grids.js", "pictures.js", "maps.js")
SEVERITIES = {"severe": 0, "warning": 1, "note": 2}
T = TypeVar("T")
DECIDING = 2  # curves that lead the page
STATES = ("healthy", "untrained", "collapsing", "collapsed", "suspicious", "broken", "unknown")


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """One HTML page of one or more diagnoses."""
    names = formatting.unique_names(diagnosis.model.name for diagnosis in diagnoses)
    data = charts.chart_data(diagnoses, names)
    samples = charts.samples(diagnoses)
    models = [_model(i, name, d) for i, (name, d) in enumerate(zip(names, diagnoses, strict=True))]
    decided = deciding_curves(data["curves"], diagnoses)
    return environment().get_template("diagnosis.html.j2").render(
        title=" and ".join(names) if len(names) < 3 else f"{len(names)} models",
        models=models,
        several=len(models) > 1,
        depth=depth_of(diagnoses),
        heatmap=heatmap(diagnoses),
        decided=decided,
        families=by_family([curve for curve in data["curves"] if curve not in decided]),
        data=data,
        samples=samples,
        pictures=_pictures(samples),
        definitions=merged(diagnoses),
        empty=_why_empty(diagnoses),
        data_json=formatting.script_json(data),
        samples_json=formatting.script_json(samples),
        shown_first={"spread": True, "random": True},
        **assets(*FILES),
    )  # fmt: skip


def finding_page(finding: Finding, policy: str) -> str:
    """One finding as a small page without scripts, with a content security policy."""
    return (
        environment()
        .get_template("finding.html.j2")
        .render(finding=finding, definitions={}, style=style("report.css"), policy=policy)
    )


def _pictures(samples: list[list[Payload]]) -> dict[str, Picture]:
    """The pictures that some sample has, or does not have with a reason."""
    every = [sample for model in samples for sample in model]
    named = {name for s in every for entry in s["pictures"].values() for name in entry}
    named |= {name for s in every for name in s["leftOut"]} | {"trajectories" for s in every if s["trajectories"]}
    return {name: picture for name, picture in PICTURES.items() if name in named}


def by_family(curves: list[Payload]) -> dict[str, list[Payload]]:
    """Curves by family, in the order of the headings."""
    families = dict.fromkeys((*formatting.FAMILIES, *(c["family"] for c in curves)))
    rows = {family: [c for c in curves if c["family"] == family] for family in families}
    return {family: own for family, own in rows.items() if own}


def deciding_curves(curves: list[Payload], diagnoses: Sequence[Diagnosis]) -> list[Payload]:
    """The curves that decided the verdict; without a finding, those that have limits."""
    limited = dict.fromkeys(limit.vital for diagnosis in diagnoses for limit in diagnosis.limits)
    by_key = {curve["key"]: curve for curve in curves}
    keys = [key for key in dict.fromkeys((*deciding_vitals(diagnoses), *limited, *by_key)) if key in by_key]
    return [by_key[key] for key in keys[:DECIDING]]


@cache
def environment() -> Environment:
    """The environment of all templates. Everything is escaped."""
    env = Environment(
        loader=PackageLoader("unsmooth.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    env.filters |= {
        "number": formatting.show, "spans": spans, "blocks_text": blocks_text,
        "paragraphs": formatting.paragraphs, "code_ticks": code_ticks, "breakable": breakable,
        "thousands": formatting.thousands, "duration": formatting.duration, "setting": formatting.setting,
        "formula": formula, "whole": formatting.unbroken,
        "family": lambda f: formatting.FAMILIES.get(f, f),
    }  # fmt: skip
    return env


def code_ticks(text: str) -> Markup:
    """`name` in a docstring as code, and formulas with subscripts."""
    pieces = text.split("`")
    marked = (Markup("<code>{}</code>").format(p) if i % 2 else formula(p) for i, p in enumerate(pieces))
    return Markup("").join(marked)


def formula(text: str) -> Markup:
    """X_l, Σ_{i<j} and ‖X‖_F with subscripts."""
    return Markup(formatting.subscripts(str(escape(text))))


def breakable(name: str) -> Markup:
    """A name in which a line may break after punctuation only."""
    return Markup(re.sub(r"([_(+,=/])", r"\1<wbr>", str(escape(name))))


@cache
def style(*names: str) -> Markup:
    """The style sheets among these files."""
    static = files("unsmooth.report") / "static"
    return Markup("\n".join((static / name).read_text(encoding="utf-8") for name in names if name.endswith(".css")))


@cache
def assets(*names: str) -> dict[str, Any]:
    """Style and scripts of a page, and a policy that allows no other script and no network."""
    from plotly.offline import get_plotlyjs

    static = files("unsmooth.report") / "static"
    own = "\n".join((static / name).read_text(encoding="utf-8") for name in names if name.endswith(".js"))
    scripts = {"plotly": get_plotlyjs(), "script": f'(() => {{\n"use strict";\n{own}\n}})();'}
    assert not any("</script" in s.lower() or "<!--" in s for s in scripts.values())
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts.values())
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}"
    return {"style": style(*names), "policy": policy, **{name: Markup(text) for name, text in scripts.items()}}


@dataclass
class BlockMark:
    """The most severe finding of a block, and the titles of all its findings."""

    severity: str
    number: int
    titles: list[str] = field(default_factory=list)


@dataclass
class ModelCard:
    """One model of the page."""

    index: int
    letter: str
    name: str
    diagnosis: Diagnosis
    findings: list[Finding]
    marks: dict[int, BlockMark]
    heads: str
    kinds: list[str]
    skipped: dict[str, dict[str, list[str]]]  # by reason, then blocks: titles of vitals
    images_skipped: dict[str, list[str]]

    @property
    def state(self) -> str:
        return self.diagnosis.verdict

    @property
    def style(self) -> str:
        """CSS class of the state."""
        return self.state if self.state in STATES else "unknown"

    @property
    def why(self) -> str:
        return self.diagnosis.conclusion.why.rstrip(".")

    @property
    def reference(self) -> Any:
        return self.diagnosis.reference


def _model(index: int, name: str, diagnosis: Diagnosis) -> ModelCard:
    findings = sorted(diagnosis.findings, key=lambda finding: SEVERITIES[finding.severity])
    marks: dict[int, BlockMark] = {}
    for number, finding in enumerate(findings):
        for block in finding.blocks:
            marks.setdefault(block, BlockMark(finding.severity, number)).titles.append(finding.title)
    attentions = [attention for block in diagnosis.model.blocks for attention in block.attention]
    return ModelCard(
        index=index,
        letter=formatting.letter(index),
        name=name,
        diagnosis=diagnosis,
        findings=findings,
        marks=marks,
        heads=spans({attention.heads for attention in attentions}),
        kinds=sorted({attention.kind for attention in attentions}),
        skipped=_skipped(diagnosis),
        images_skipped=by_reason(diagnosis.images.skipped),
    )


def _skipped(diagnosis: Diagnosis) -> dict[str, dict[str, list[str]]]:
    """Titles of skipped vitals by reason and blocks."""
    reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for vital in diagnosis.vitals.values():
        for reason, blocks in by_reason(vital.skipped).items():
            reasons[reason][blocks_text(blocks)].append(vital.title)
    return reasons


def by_reason(skipped: dict[T, str]) -> dict[str, list[T]]:
    """What was skipped (images or blocks), by reason."""
    reasons: dict[str, list[T]] = {}
    for item, reason in skipped.items():
        reasons.setdefault(reason, []).append(item)
    return reasons


def _why_empty(diagnoses: Sequence[Diagnosis]) -> dict[str, str]:
    """The text of each section without data."""
    vitals = merged(diagnoses)
    spectra = [vitals[key] for key in ("attention_spectrum", "equivalent_rank") if key in vitals]
    theory = [vital for vital in vitals.values() if vital.family == "theory"]
    no_spectrum = next((reason for vital in spectra for reason in vital.skipped.values()), None)
    no_bound = next((reason for vital in theory for reason in vital.skipped.values()), "none was measured")
    return {
        "vitals": "No vital has a value for any block.",
        "other": "There are no other vitals with one value per block.",
        "grids": "The vital attention_spectrum was not measured." if no_spectrum is None
        else f"No block has a spectrum: {no_spectrum}.",
        "maps": "No block has patches on a grid." if any(diagnosis.samples for diagnosis in diagnoses)
        else "The diagnosis has no sample images.",
        "bounds": f"No bound has a value: {no_bound}." if theory
        else "Bounds are measured on request: vitals=default,theory.",
        "learned": "No remedy with learned parameters is applied to "
        + ("the model." if len(diagnoses) == 1 else "any of the models."),
    }  # fmt: skip
