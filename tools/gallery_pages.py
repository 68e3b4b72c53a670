"""The gallery: every part of every paper, as published in words and as measured here, from recorded runs."""

from __future__ import annotations

from dataclasses import replace

from tools.records import REAL, read_record, state_of
from unsmooth.papers.catalogue import EVIDENCE, Experiment, Paper, list_papers
from unsmooth.report.reproduction_table import body, claim_lines
from unsmooth.results.reproduction import Reproduction

NOTE = "<!-- written by `make docs`; edit what it is made of instead -->\n"
NAMED = {"your model": "a fine-tune of DINOv2 ViT-S/14"}  # whom the records call so
INTRO = """
Each part of the five papers: what is published (figures described in words, not copied), and what was measured here.
Small runs are on CIFAR-10 (1,500 of the 50,000 training images, 6 epochs, 500 test images, three seeds, one for
figures; hosts of a few thousand to a few hundred thousand parameters; two CPU cores), on made scenes of digits
(segmentation, questions), or on no data (cost, theorems). They show that each part runs and what it measures; **gains
below several points cannot be seen at this scale**, and most rows say "no difference shown". Larger recorded trials
are in [trials.md](trials.md). "On a real model": a saliency fine-tune of DINOv2 ViT-S/14 on up to 60 ImageNet
photographs; it has no remedy, so only its own curve is shown. A claim in the list under a table is a statement of the
paper, or what its account leads one to expect, in a form that a measurement can agree with or not; figures rest on
one model of each arm. Of many 95 % intervals, one in twenty misses by chance: a lone "agrees in sign" or "opposite
sign" at this scale proves nothing.

Every part is one command. At full scale: `unsmooth paper PAPER/PART --data imagenet/` with GPUs. Your own model under
a paper's figure: `--spec SPEC --checkpoint FILE --data PHOTOS`. Published values carry their evidence:
"""


def gallery_page() -> str:
    letters = "; ".join(f"{letter}: {words}" for letter, words in EVIDENCE.items())
    lines = ["# Gallery", "", f"{INTRO.strip()}\n{letters}.", ""]
    for paper in list_papers():
        lines += _paper(paper)
    return NOTE + "\n".join(lines).rstrip() + "\n"


def _paper(paper: Paper) -> list[str]:
    lines = [f"## {paper.title}", "", f"{paper.venue}, {paper.link}. {paper.note}".strip(), "",
             "| part | in the paper | state |", "|---|---|---|"]  # fmt: skip
    states = [(experiment, state_of(experiment)) for experiment in paper.experiments()]
    states += [(unavailable, unavailable.state) for unavailable in paper.unavailable]
    lines += [f"| `{paper.id}/{item.name}` | {item.source} | {state} |" for item, state in states] + [""]
    for experiment in paper.experiments():
        lines += _part(experiment)
    return lines


def _part(experiment: Experiment) -> list[str]:
    lines = [f"### {experiment.title}", "",
             f"{experiment.source} ({experiment.evidence}), `{experiment.id}`. {experiment.shows}", ""]  # fmt: skip
    found = read_record(experiment)
    if found is not None:
        lines += [f"    {found.made.command}", "", *_pictures(found, experiment), *body(_unpictured(found)), ""]
    real = read_record(experiment, REAL)
    if real is not None:
        lines += ["On a real model:", "", f"    {real.made.command}", "", *_pictures(real, experiment)]
        lines += [*(f"- {line}" for line in claim_lines(real)), ""]
    return lines


def _pictures(found: Reproduction, experiment: Experiment) -> list[str]:
    names = [(found.picture, ""), *((group.picture, NAMED.get(group.name, group.name)) for group in found.groups)]
    shown = [
        f"![{experiment.title}{f', {name}' if name else ''}](gallery/{picture})" for picture, name in names if picture
    ]
    return [line for picture in shown for line in (picture, "")]


def _unpictured(found: Reproduction) -> Reproduction:
    """The page shows pictures by itself."""
    return replace(found, groups=[replace(group, picture=None) for group in found.groups])
