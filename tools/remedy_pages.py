"""One page per remedy: equation, options, cost, evidence, hosts, departures; and the table of all of them."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import unsmooth
from tools import bench_tables
from tools.host_pages import MARKS, read_hosts
from tools.markdown import facts, page, prose, section, table
from tools.trial_pages import recorded_trials
from unsmooth import remedies
from unsmooth.papers.catalogue import list_papers
from unsmooth.remedies.base import Remedy
from unsmooth.utils.options import describe


def pages() -> dict[str, str]:
    keys = unsmooth.list_remedies()
    return {"remedies/index.md": _index(keys), **{f"remedies/{key}.md": _remedy(key) for key in keys}}


def _index(keys: list[str]) -> str:
    rows = []
    for key in keys:
        remedy = remedies.get(key)
        rows.append((f"[`{key}`]({key}.md)", remedy.title, remedy.acts_on, remedies.start_text(remedy), remedy.paper))
    return page([
        "# Remedies", "",
        'A remedy is one published fix. Apply it in Python with `unsmooth.apply(model, "attn_scale")`, or write it '
        "after a host in a model spec: `deit_small_patch16_224+attn_scale`. Every remedy takes `blocks` (`6:`, `:-2`, "
        "`'0,3,5'`), except those that act once per model.", "",
        "![One transformer block and the places where remedies act](../images/block.svg)", "",
        *table(("remedy", "name", "acts on", "outputs when applied", "paper"), rows),
        "*Outputs when applied* says whether a pretrained host gives the same outputs right after `apply`.", "",
        "[Hosts × remedies](../hosts.md) · [cost of each remedy](../cost.md) · "
        "[how to add a remedy](../contributing.md)",
    ])  # fmt: skip


def _remedy(key: str) -> str:
    remedy = remedies.get(key)
    module = sys.modules[type(remedy).__module__]
    known = {
        "acts on": remedy.acts_on,
        "outputs when applied": remedies.start_text(remedy),
        "parameters": remedy.parameters,
        "fused attention": remedy.fused,
        "conflicts with": ", ".join(f"[`{name}`]({name}.md)" for name in remedy.conflicts),
        "paper": remedy.paper,
    }
    return page([
        f"# {remedy.title} (`{key}`)", "", prose(inspect.getdoc(module) or ""), "",
        *facts(known),
        *section("Options", table(("option", "default", "values", "meaning"), _options(remedy))),
        *section("Use", ["```python", "import unsmooth", "",
                         f'model = unsmooth.create_model("deit_tiny_patch16_224(depth=2)+{key}")', "```", ""]),
        *section("Departures from the paper", [prose(remedy.departures)]),
        *section("Cost", _cost(key)),
        *section("Evidence", _evidence(key)),
        *section("Hosts", _hosts(key)),
    ])  # fmt: skip


def _options(remedy: Remedy[Any]) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{o.name}`", _default(o.default), ", ".join(f"`{c}`" for c in o.choices) or o.range, o.help)
        for o in describe(remedy.Options)
    ]


def _default(value: object) -> str:
    return "automatic" if value is None else f"`{str(value).lower()}`"


def _cost(key: str) -> list[str]:
    head, recorded = bench_tables.rows("remedies", "remedies")
    rows = [row for row in recorded if re.match(rf"`{key}[`(]", row[0])]
    if not rows:
        return [
            "Not part of the benchmark: it does not change the cost of a forward pass, or it was not measured.",
            "",
        ]
    explanation = "Speed is a ratio to the plain host (1: as fast), on one CPU. [What the columns mean](../cost.md)."
    return [*table(head, rows), explanation, ""]


def _evidence(key: str) -> list[str]:
    used = re.compile(rf"(?<![a-z_]){key}(?![a-z_])")
    trials = []
    for name, (plan, trial) in recorded_trials().items():
        for arm in trial.arms:
            if used.search(arm.name) and arm.difference is not None:
                published = plan.get("published", {}).get(arm.name, "–")
                trials.append(
                    (f"`{arm.name}`", f"[{plan['title']}](../trials/{name}.md)", arm.difference.text, published)
                )
    experiments = [
        (
            f"[{experiment.title}](../papers/{paper.id}.md#{experiment.name})",
            experiment.source,
            f"`unsmooth paper {experiment.id}`",
        )
        for paper in list_papers()
        for experiment in paper.experiments()
        if any(used.search(str(spec)) for group in experiment.groups for spec in group.specs(small=False))
    ]
    return [
        *(["Recorded trials on CIFAR-10, difference from the plain host in points of top-1:", ""] if trials else []),
        *table(("arm", "trial", "measured here", "published"), trials),
        *(["Experiments of the papers that use it, with published and measured values:", ""] if experiments else []),
        *table(("experiment", "in the paper", "command"), experiments),
    ]


def _hosts(key: str) -> list[str]:
    hosts = read_hosts()
    rows = []
    for host in hosts:
        cell = host["remedies"][key]
        rows.append((host["name"], MARKS[cell["state"]][1], "yes" if cell["folds"] else "", "; ".join(cell["reasons"])))
    full = [row for row in rows if row[1] == MARKS["all"][1]]
    rest = [row for row in rows if row[1] != MARKS["all"][1]]
    folding = [name for name, _, folds, _ in rows if folds]
    lines = [
        f"Works on every block of {len(full)} of {len(rows)} tested hosts: {', '.join(row[0] for row in full)}.",
        "",
    ]
    lines += table(("host", "works on", "reason"), ((name, state, reason) for name, state, _, reason in rest))
    if folding:
        lines += [f"`unsmooth.fold` folds it for inference on {len(folding)} of them."]
    return [*lines, "", "[All hosts and remedies](../hosts.md)."]
