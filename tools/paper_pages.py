"""One page per paper: every table, figure and theorem as published and as measured here, from recorded runs."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from tools.markdown import page, prose, table
from tools.records import REAL, SMALL, read_record, state_of
from unsmooth.papers.catalogue import EVIDENCE, Experiment, Paper, citation, list_papers
from unsmooth.papers.claims import State
from unsmooth.report.reproduction_table import body, claim_lines
from unsmooth.results.reproduction import Reproduction

NAMES = {"your model": "a fine-tune of DINOv2 ViT-S/14"}  # how the records name it
INTRO = """
Every table, figure and theorem of the five papers: what was published (figures are described, not copied) and what was
measured here. Each experiment is one command:

    unsmooth paper                                               # list every experiment and its state
    unsmooth paper anti_oversmoothing/table1 --small             # minutes on a laptop
    unsmooth paper anti_oversmoothing/table1 --data imagenet/    # full scale, on GPUs
    unsmooth paper anti_oversmoothing/figure4 --spec SPEC --checkpoint mine.pth --data photos/   # your own model
"""
CONTRADICTIONS = """
Places where a paper disagrees with itself, or with a count of ours. Lines are those of the text that we transcribed. We
keep both values, and run what the text and the equations agree on.
"""
SCALE = """
Small runs use CIFAR-10 (1,500 of the 50,000 training images, 6 epochs, 500 test images, three seeds, one seed for
figures; hosts of a few thousand to a few hundred thousand parameters; two CPU cores), generated scenes of digits
(segmentation, question answering) or no data (cost, theorems). They show that each experiment runs and what it
measures. **Gains below several points cannot be seen at this scale**, and most rows read "no difference shown". Larger
recorded trials are on [their own page](../trials/index.md).

*On a real model* is a saliency fine-tune of DINOv2 ViT-S/14 on up to 60 ImageNet photographs. It has no remedy, so only
its own curve is shown. A *claim* below a table is a statement of the paper in a form that a measurement can confirm or
contradict. It is *not decidable at this scale* if the interval of a difference covers zero, or if two curves are closer
than their spread over images or seeds. Claims about figures rest on one model per arm. One in twenty 95 % intervals
misses by chance, so a single "confirmed" or "contradicted" at this scale proves little.
"""


def pages() -> dict[str, str]:
    papers = list_papers()
    return {
        "papers/index.md": _index(papers),
        "papers/contradictions.md": _contradictions(papers),
        **{f"papers/{paper.id}.md": _paper(paper) for paper in papers},
    }


DECIDABLE = """
A claim is a statement of a paper in a form that a measurement can confirm or contradict. The table counts one check per
claim and model in the recorded runs of this machine, two CPU cores. Small hosts cannot decide claims about gains of a
few points.
"""
GALLERY = """
A saliency fine-tune of DINOv2 ViT-S/14 on up to 60 ImageNet photographs. It has no remedy, so only its own curves are
shown. The headings are those of the experiments, and not results of this model.
"""
STATES = get_args(State)


def _decided(papers: list[Paper]) -> list[str]:
    """Claims by paper, by what ran and by state: the checks of all models."""
    rows = []
    for paper in papers:
        for title, folder in (("the real model", REAL), ("small hosts, counts and theorems", SMALL)):
            records = [record for e in paper.experiments() if (record := read_record(e, folder)) is not None]
            states = [check.state for record in records for claim in record.claims for check in claim.checks]
            open_claims = sum(not claim.checks for record in records for claim in record.claims)
            if states:
                counts = (states.count(state) for state in STATES)
                rows.append((f"[{paper.title}]({paper.id}.md)", title, *counts, open_claims))
    headings = ("paper", "on", "confirmed", "contradicted", "not decidable here", "not measured")
    return table(headings, rows)


def _real_figures(papers: list[Paper]) -> list[str]:
    """The figures of the real model, with links to their experiments."""
    lines: list[str] = []
    for paper in papers:
        for experiment in paper.experiments():
            real = read_record(experiment, REAL)
            pictures = [] if real is None else _pictures(real, experiment)
            if pictures:
                lines += [f"**[{experiment.title}]({paper.id}.md#{experiment.name})**, {paper.title}", "", *pictures]
    return lines


def _index(papers: list[Paper]) -> str:
    rows = (
        (f"[{p.title}]({p.id}.md)", f"{p.venue}, {p.link}", len(p.experiments()), len(p.unavailable)) for p in papers
    )
    return page([
        "# The papers", "", INTRO.strip(), "",
        "## Which claims these budgets can decide", "", DECIDABLE.strip(), "", *_decided(papers),
        "## Figures of a real model", "", GALLERY.strip(), "", *_real_figures(papers),
        "## All experiments", "",
        *table(("paper", "published", "experiments that run", "experiments that do not"), rows),
        SCALE.strip(), "",
        "Published values carry their evidence. Line numbers are those of our plain-text copies of the papers:", "",
        *table(("mark", "evidence"), EVIDENCE.items()),
        "[Where the papers contradict themselves](contradictions.md)", "",
        "[Which figure of the first paper is which vital](../figures.md)",
    ])  # fmt: skip


def _paper(paper: Paper) -> str:
    experiments = paper.experiments()
    lines = [f"# {paper.title}", "", f"{paper.venue}, {paper.link}. {paper.note}".strip(), "",
             "[How to read this page](index.md)", ""]  # fmt: skip
    rows = [(f"[`{paper.id}/{e.name}`](#{e.name})", e.source, state_of(e)) for e in experiments]
    rows += [(f"`{paper.id}/{e.name}`", e.source, e.state) for e in paper.unavailable]
    lines += table(("experiment", "in the paper", "state"), rows)
    for experiment in experiments:
        lines += _experiment(experiment)
    if paper.printed:
        facts = ((fact.text, fact.ours or "–", fact.lines) for fact in paper.printed)
        lines += ["## Numbers in the running text", "", *table(("printed", "ours", "lines"), facts)]
    return page(lines)


def _experiment(experiment: Experiment) -> list[str]:
    origin = f"{experiment.source} ({citation(experiment.evidence, experiment.lines)}), `{experiment.id}`."
    lines = [f'<a id="{experiment.name}"></a>', "", f"## {experiment.title}", ""]
    lines += [f"{origin} {prose(experiment.shows)}", ""]
    real = read_record(experiment, REAL)
    if real is not None:
        lines += ["**On a real model**", "", f"    {real.provenance.command}", "", *_pictures(real, experiment)]
        lines += [*(f"- {line}" for line in claim_lines(real)), ""]
    record = read_record(experiment)
    if record is not None:
        lines += ["**On small hosts**", ""] if any(group.ran for group in record.groups) else []
        lines += [f"    {record.provenance.command}", "", *_pictures(record, experiment)]
        lines += [*body(_without_pictures(record)), ""]
    return lines


def _contradictions(papers: list[Paper]) -> str:
    lines = ["# Contradictions", "", CONTRADICTIONS.strip(), ""]
    for paper in papers:
        if paper.contradictions:
            rows = ((item.places, item.printed, item.ours or "–", item.lines or "–") for item in paper.contradictions)
            lines += [f"## {paper.title}", "", *table(("where", "what is printed", "ours", "lines"), rows)]
    return page(lines)


def _pictures(record: Reproduction, experiment: Experiment) -> list[str]:
    pictures = [
        (record.picture, ""),
        *((group.picture, NAMES.get(group.name, group.ran or group.name)) for group in record.groups),
    ]
    return [
        line
        for picture, name in pictures
        if picture
        for line in (f"![{experiment.title}{f', {name}' if name else ''}](../images/papers/{picture})", "")
    ]


def _without_pictures(record: Reproduction) -> Reproduction:
    return replace(record, groups=[replace(group, picture=None) for group in record.groups])
