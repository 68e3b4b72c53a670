"""What the papers show, as data: papers/experiments/PAPER/paper.toml, one file for each table, figure or theorem beside it.

A file NAME.toml is run by `unsmooth paper PAPER/NAME`. NAME.json beside it is a recorded run of it: what was measured
here. What cannot be followed is listed in paper.toml with the reason. So nothing is without a state.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.recipes.recipe import load_recipe
from unsmooth.report.measures import MEASURES

KINDS = ("trial", "diagnosis", "bench", "task", "theorem")
TRAINED = ("trial", "diagnosis", "task")  # kinds whose small form has other hosts and data
PLAIN = "plain"  # the name of an arm with nothing added
EVIDENCE = {
    "P": "printed in the paper or its supplement", "C": "in the authors' released code",
    "N": "a third party's account of the paper", "R": "our reading, where nothing better was at hand",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A model of a table: the group's host with something added."""

    add: str = ""  # remedies
    host: str = ""  # instead of the group's, where an arm has its own
    small: str = ""  # the same, for --small
    name: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, str] = field(default_factory=dict)  # published in words, where no values are


@dataclass(frozen=True, kw_only=True)
class Group:
    """Arms that are compared with the first one of them."""

    name: str
    host: str
    small: str
    arms: Sequence[Arm]
    overrides: Mapping[str, Any] = field(default_factory=dict)  # recipe fields of this host
    small_overrides: Mapping[str, Any] = field(default_factory=dict)

    def specs(self, small: bool) -> list[str]:
        """The model specs of the arms, at full scale or for a laptop."""
        hosts = [(arm.small or self.small) if small else (arm.host or self.host) for arm in self.arms]
        return [host + (f"+{arm.add}" if arm.add else "") for host, arm in zip(hosts, self.arms, strict=True)]

    def names(self) -> list[str]:
        return [arm.name or arm.add or PLAIN for arm in self.arms]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How something is run: as in the paper, or small."""

    data: str = ""
    recipe: str = "glance"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)  # of a task
    seeds: int = 1
    images: int = 64  # that a diagnosis looks at
    batch_size: int = 32  # that speed is measured with


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a figure: a vital by block, or a metric by epoch."""

    label: str
    vital: str = ""
    part: str = ""
    metric: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a figure or a theorem says, in a form that a measurement can agree with."""

    text: str
    curve: str  # its label
    arm: str = ""  # every arm where none is named
    test: str = "rises"  # see `claims.TESTS`
    than: str = ""  # another curve of the arm, another arm, or a number


@dataclass(frozen=True, kw_only=True)
class Experiment:
    paper: str
    name: str
    title: str
    source: str  # where the paper has it
    evidence: str
    shows: str  # what is published, in our words
    kind: str
    measures: Sequence[str] = ()
    curves: Sequence[Curve] = ()
    claims: Sequence[Claim] = ()
    figure: str = ""  # of the report, that shows it best
    vitals: str = ""  # more vitals that the figure needs
    blocks: str = ""
    task: str = ""
    finetune: str = ""  # the host that a pre-trained encoder is fine-tuned in; `small_finetune` for --small
    small_finetune: str = ""
    finetune_recipe: str = "finetune"
    finetune_overrides: Mapping[str, Any] = field(default_factory=dict)
    theorem: str = ""
    robustness: bool = False
    finetuned: bool = False  # arms start from a trained host
    groups: Sequence[Group] = ()
    full: Scale = field(default_factory=Scale)
    small: Scale = field(default_factory=Scale)
    differs: str = ""  # from the paper, also at full scale

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.name}"

    def fingerprint(self) -> str:
        """Of all that decides what a small run measures: a record with another one is of an older file."""
        measured = {
            "kind": self.kind, "measures": self.measures, "curves": self.curves, "vitals": self.vitals,
            "blocks": self.blocks, "task": self.task, "theorem": self.theorem, "robustness": self.robustness,
            "finetuned": self.finetuned, "finetune": self.small_finetune, "claims": [
                (claim.curve, claim.arm, claim.test, claim.than) for claim in self.claims
            ],
            "specs": [(group.specs(small=True), group.small_overrides) for group in self.groups], "small": self.small,
            "recipe": load_recipe(self.small.recipe, self.small.overrides).to_json(),
        }  # fmt: skip
        return hashlib.sha256(repr(measured).encode()).hexdigest()[:16]

    @property
    def state(self) -> str:
        return "runnable"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A part of a paper that cannot be run, and why."""

    name: str
    source: str
    title: str
    why: str
    drawing: bool = False  # a diagram, which measures nothing

    @property
    def state(self) -> str:
        return f"{'nothing to measure' if self.drawing else 'not recoverable'}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Paper:
    id: str
    title: str
    venue: str
    link: str
    order: int
    note: str = ""
    missing: Sequence[Missing] = ()

    def experiments(self) -> list[Experiment]:
        names = sorted(
            p.name.removesuffix(".toml")
            for p in _folder(self.id).iterdir()
            if p.name.endswith(".toml") and p.name != "paper.toml"
        )
        found = [_experiment(self.id, name) for name in names]
        return sorted(found, key=lambda one: _place(one.source, one.name))


def list_papers() -> list[Paper]:
    """The papers, in the order of their years."""
    names = [p.name for p in files("unsmooth.papers.experiments").iterdir() if (p / "paper.toml").is_file()]
    return sorted((_paper(name) for name in names), key=lambda paper: paper.order)


def open_experiment(name: str) -> Experiment:
    """An experiment by its name, PAPER/NAME."""
    paper, _, part = name.replace("-", "_").partition("/")
    known = {one.id: one for one in list_papers()}
    if paper not in known:
        raise unknown("paper", paper, list(known))
    lost = next((one for one in known[paper].missing if one.name == part), None)
    if lost is not None:
        raise UnsmoothError(f"{paper}/{part} ({lost.source}) cannot be run; {lost.state}")
    names = [one.name for one in known[paper].experiments()]
    if part not in names:
        raise unknown(f"part of {paper}", part, names)
    return _experiment(paper, part)


def _folder(paper: str) -> Any:
    return files("unsmooth.papers.experiments") / paper


def _read(paper: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads((_folder(paper) / f"{name}.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UnsmoothError(f"papers/experiments/{paper}/{name}.toml: {error}") from error


@cache
def _paper(name: str) -> Paper:
    given = _read(name, "paper")
    missing = [_of(Missing, row, name) for row in given.pop("missing", [])]
    return _of(Paper, {"id": name, **given, "missing": missing}, name)


@cache
def _experiment(paper: str, name: str) -> Experiment:
    given, where = _read(paper, name), f"{paper}/{name}"
    for key, kind in (("curves", Curve), ("claims", Claim)):
        given[key] = [_of(kind, row, where) for row in given.get(key, [])]
    groups = []
    for row in given.get("groups", []):
        arms = [_of(Arm, {**arm, "small": _small(arm.get("small", ""), where)}, where) for arm in row["arms"]]
        groups.append(_of(Group, {**row, "arms": arms, "small": _small(row["small"], where)}, where))
    given["small_finetune"] = _small(given.get("small_finetune", ""), where)
    scales = {key: _of(Scale, given.get(key, {}), where) for key in ("full", "small")}
    found = _of(Experiment, {**given, "paper": paper, "name": name, "groups": groups, **scales}, where)
    if found.kind not in KINDS:
        raise unknown(f"kind of {where}", found.kind, KINDS)
    wrong = [key for key in (*found.measures, *_published(found)) if key not in MEASURES]
    if wrong:
        raise unknown(f"measure of {where}", wrong[0], MEASURES)
    return found


@cache
def _small_hosts() -> dict[str, str]:
    return tomllib.loads((files("unsmooth.papers") / "small_hosts.toml").read_text(encoding="utf-8"))


def _small(name: str, where: str) -> str:
    """The spec of a small host; nothing stays nothing."""
    if name and name not in _small_hosts():
        raise unknown(f"small host of papers/experiments/{where}.toml", name, _small_hosts())
    return _small_hosts().get(name, "")


def _published(experiment: Experiment) -> set[str]:
    return {key for group in experiment.groups for arm in group.arms for key in (*arm.published, *arm.gains)}


def _of(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise unknown(f"key of papers/experiments/{where}.toml", name, known)
    try:
        return kind(**given)
    except TypeError as error:
        raise UnsmoothError(f"papers/experiments/{where}.toml: {error}") from None


def _place(source: str, name: str) -> tuple[int, int, str]:
    """Tables first, then figures, then theorems; by number."""
    digits = "".join(letter if letter.isdigit() else " " for letter in source).split()
    rank = next((i for i, word in enumerate(("Table", "Figure", "Theorem", "Prop")) if source.startswith(word)), 1)
    return rank, int(digits[0]) if digits else 0, name
