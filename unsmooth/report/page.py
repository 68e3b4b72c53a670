"""The page: what Jinja needs to write it, and everything it needs to open without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from unsmooth.report import charts, words
from unsmooth.report.heatmap import strip
from unsmooth.report.values import depth_of, merged

DIAGNOSIS = ("report.css", "core.js", "strip.js", "curves.js", "grids.js", "maps.js")
SEVERITIES = {"severe": 0, "warning": 1, "note": 2}
STATES = ("healthy", "untrained", "collapsing", "collapsed", "suspicious", "broken", "unknown")


def page(diagnoses: list[dict[str, Any]]) -> str:
    """One HTML page of one or more diagnoses."""
    names = words.labels(diagnoses)
    data = charts.chart_data(diagnoses, names)
    samples = charts.samples(diagnoses)
    models = [_model(i, name, d) for i, (name, d) in enumerate(zip(names, diagnoses, strict=True))]
    return environment().get_template("diagnosis.html.j2").render(
        title=" and ".join(names) if len(names) < 3 else f"{len(names)} models",
        models=models,
        several=len(models) > 1,
        depth=depth_of(diagnoses),
        strip=strip(diagnoses),
        families=by_family(data["curves"]),
        data=data,
        samples=samples,
        definitions=merged(diagnoses),
        empty=_why_empty(diagnoses, samples),
        data_json=words.script_json(data),
        samples_json=words.script_json(samples),
        shown_first={"spread": True, "start": True},
        **assets(*DIAGNOSIS),
    )  # fmt: skip


def by_family(curves: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Curves under the heading that they stand under, in the order of the headings."""
    families = dict.fromkeys((*words.FAMILIES, *(c["family"] for c in curves)))
    rows = {family: [c for c in curves if c["family"] == family] for family in families}
    return {family: own for family, own in rows.items() if own}


@cache
def environment() -> Environment:
    """Templates escape everything. All pages are built on the same base and macros."""
    env = Environment(
        loader=PackageLoader("unsmooth.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    env.filters |= {
        "number": words.show, "ranges": words.ranges, "in_blocks": words.in_blocks, "paragraphs": words.paragraphs,
        "code_ticks": code_ticks, "breakable": breakable,
        "thousands": words.thousands, "duration": words.duration, "setting": words.setting,
        "formula": formula, "whole": words.unbroken,
        "family": lambda f: words.FAMILIES.get(f, f),
    }  # fmt: skip
    return env


def code_ticks(text: str) -> Markup:
    """`name` in a docstring as code, and formulas between words as formulas."""
    pieces = text.split("`")
    marked = (Markup("<code>{}</code>").format(p) if i % 2 else formula(p) for i, p in enumerate(pieces))
    return Markup("").join(marked)


def formula(text: str) -> Markup:
    """X_l, Σ_{i<j} and ‖X‖_F with their letters below the line."""
    below = r"_(?:\{([^}]*)\}|(⌈[^⌉]*⌉|:,\w|[A-Za-z0-9]{1,3}(?![A-Za-z0-9_])))"
    return Markup(re.sub(below, lambda m: f"<sub>{m[1] or m[2]}</sub>", str(escape(text))))


def breakable(name: str) -> Markup:
    """A name that may be broken after its punctuation and nowhere else."""
    return Markup(re.sub(r"([_(+,=/])", r"\1<wbr>", str(escape(name))))


@cache
def assets(*names: str) -> dict[str, Any]:
    """Style and scripts as they go into the page, and the policy that lets no other script run and nothing load."""
    from plotly.offline import get_plotlyjs

    static = files("unsmooth.report") / "static"
    own = "\n".join((static / name).read_text(encoding="utf-8") for name in names if name.endswith(".js"))
    scripts = {"plotly": get_plotlyjs(), "script": f'(() => {{\n"use strict";\n{own}\n}})();'}
    assert not any("</script" in s.lower() or "<!--" in s for s in scripts.values())
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts.values())
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}"
    style = "\n".join((static / name).read_text(encoding="utf-8") for name in names if name.endswith(".css"))
    return {"style": Markup(style), "policy": policy, **{name: Markup(text) for name, text in scripts.items()}}


def _model(index: int, name: str, d: dict[str, Any]) -> dict[str, Any]:
    verdict = d["verdict"]
    findings = sorted((_finding(f) for f in d["findings"]), key=lambda f: SEVERITIES.get(f["severity"], 3))
    marks: dict[int, dict[str, Any]] = {}
    for number, finding in enumerate(findings):
        for block in finding.get("blocks", []):
            marks.setdefault(int(block), {"severity": finding["severity"], "number": number, "titles": []})
            marks[int(block)]["titles"].append(finding["title"])
    return {
        "index": index, "letter": words.letter(index), "name": name, "model": d["model"], "images": d["images"],
        "made": d["made"], "broken": d["broken"], "reference": d["reference"],
        "state": verdict["state"], "known_state": verdict["state"] in STATES, "text": verdict["text"],
        "why": str(verdict.get("why") or "").rstrip("."),
        "findings": findings, "marks": marks, "blocks": len(d["model"]["blocks"]),
        "heads": words.ranges({a["heads"] for b in d["model"]["blocks"] for a in b["attention"]}),
        "kinds": sorted({a["kind"] for b in d["model"]["blocks"] for a in b["attention"]}),
        "skipped": _skipped(d), "images_skipped": by_reason(d["images"]["skipped"]),
    }  # fmt: skip


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding with everything a template asks for."""
    whole = {"blocks": [], "evidence": [], "remedies": [], "reference": "", "severity": "note", **finding}
    whole["evidence"] = [{"part": "", "family": "", **piece} for piece in whole["evidence"]]
    return whole


def _skipped(d: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a reason: which vitals it kept from which blocks. Vitals with equal blocks share a line."""
    reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for facts in d["vitals"].values():
        blocks: dict[str, list[int]] = defaultdict(list)
        for block, reason in facts["skipped"].items():
            blocks[str(reason)].append(int(block))
        for reason, which in blocks.items():
            reasons[reason][words.in_blocks(which)].append(facts["title"])
    return [{"reason": reason, "lines": list(lines.items())} for reason, lines in reasons.items()]


def by_reason(skipped: dict[str, str]) -> dict[str, list[str]]:
    """Names of images that share a reason for being skipped."""
    out: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        out.setdefault(str(reason), []).append(str(name))
    return out


def _why_empty(diagnoses: list[dict[str, Any]], samples: list[Any]) -> dict[str, str]:
    """What stands in a section that has no data."""
    facts = merged(diagnoses)
    spectrum = "The vital attention_spectrum was not asked for."
    for key in ("attention_spectrum", "equivalent_rank"):
        reason = next(iter((facts.get(key) or {"skipped": {}})["skipped"].values()), None)
        if reason is not None:
            spectrum = f"No block has a spectrum: {reason}."
            break
    theory = [f for f in facts.values() if f["family"] == "theory"]
    reason = next((str(r) for f in theory for r in f["skipped"].values()), "none was measured")
    pictures = any(d.get("samples") for d in diagnoses)
    return {
        "strip": "No vital has a number for any block.",
        "grids": spectrum,
        "maps": "No block has patches on a grid that could be shown." if pictures else "No sample image came along.",
        "bounds": f"No bound has a value: {reason}." if theory else "No vital of the theory was asked for.",
        "learned": "No remedy with learned parameters is on the model." if len(diagnoses) == 1
        else "No remedy with learned parameters is on any of the models.",
    }  # fmt: skip
