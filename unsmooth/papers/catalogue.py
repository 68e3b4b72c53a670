"""The experiments of the papers as data: experiments/PAPER/NAME.toml, one file per table, figure or theorem.

`unsmooth paper PAPER/NAME` runs an experiment. Tables and figures that cannot be run are listed in
experiments/PAPER/paper.toml with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.recipes.recipe import load_recipe
from unsmooth.report.metrics import METRICS
from unsmooth.spec import ModelSpec, parse, parse_remedies
from unsmooth.utils.files import read_toml
from unsmooth.utils.options import options, read_options

T = TypeVar("T")

COUNTED = tuple(name for name, metric in METRICS.items() if metric.counted)  # on hosts of published size
EXPERIMENT_KINDS = ("trial", "diagnosis", "bench", "task", "theorem")
TRAINED = ("trial", "diagnosis", "task")  # kinds that train models, with other hosts and data at small scale
PLAIN = "plain"  # name of an arm without remedies
EVIDENCE = {
    "P": "printed in the paper or its supplement", "C": "in the authors' released code",
    "N": "a third party's account of the paper", "R": "our reading, where there is no better source",
}  # fmt: skip
SHORT_EVIDENCE = {"P": "printed", "C": "in the authors' code", "N": "third party", "R": "our reading"}


def citation(evidence: str, lines: str) -> str:
    """Evidence and lines of the paper's text, such as "printed, lines 12–14"."""
    if not lines:
        return SHORT_EVIDENCE[evidence]
    return f"{SHORT_EVIDENCE[evidence]}, {'line' if lines.isdigit() else 'lines'} {lines}"


@options
class PublishedArm:
    """A model of a table: the host of its group with remedies."""

    add: str = ""  # remedies
    host: str = ""  # host of this arm (default: that of the group)
    small: str = ""  # the same, at small scale
    name: str = ""
    why: str = ""  # why there is no model of a printed row
    overrides: Mapping[str, Any] = field(default_factory=dict)  # recipe fields of this arm alone, at full scale
    published: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, str] = field(default_factory=dict)  # published as text, where no values are


def treated(host: str, add: str) -> ModelSpec:
    """A host with the remedies of an arm."""
    spec = parse(host)
    return ModelSpec(spec.host, (*spec.remedies, *parse_remedies(add)))


@options
class PublishedGroup:
    """Arms that are compared with the first of them."""

    name: str
    arms: Sequence[PublishedArm]
    host: str = ""
    small: str = ""
    recipe: str = ""  # recipe of this group at full scale (default: that of the experiment)
    overrides: Mapping[str, Any] = field(default_factory=dict)  # recipe fields of this group
    small_overrides: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, arm: PublishedArm, small: bool) -> ModelSpec:
        """The model spec of an arm that can be built, at full or small scale."""
        return treated((arm.small or self.small) if small else (arm.host or self.host), arm.add)

    @property
    def models(self) -> list[PublishedArm]:
        """The arms that can be built."""
        return [arm for arm in self.arms if not arm.why]

    def specs(self, small: bool) -> list[ModelSpec]:
        """The model specs of the arms that can be built, at full or small scale."""
        return [self.spec(arm, small) for arm in self.models]

    def names(self) -> list[str]:
        """The names of the arms that can be built."""
        return [arm.name or arm.add or PLAIN for arm in self.models]


def _texts(group: PublishedGroup, small: bool) -> list[str]:
    return list(map(str, group.specs(small)))


@options
class Scale:
    """How an experiment is run: as in the paper, or small."""

    data: str = ""
    recipe: str = "glance"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)  # options of the task
    seeds: int = 1
    images: int = 64  # per diagnosis
    batch_size: int = 32  # of timing


@options
class Curve:
    """A curve of a figure: a vital or a learned parameter by block, or a metric by epoch."""

    label: str
    vital: str = ""
    part: str = ""
    reduce: str = ""  # of a part with curves by head: one of `curves.REDUCTIONS`
    learned: str = ""  # REMEDY.PARAMETER, or a difference of two: "feat_scale.t - feat_scale.s"
    metric: str = ""
    arms: Sequence[str] = ()  # arms that the figure shows it of (default: all)


@options
class Claim:
    """A statement of a paper that measured curves or metrics can confirm or contradict."""

    text: str
    lines: str = ""  # lines of the paper's text
    evidence: str = "P"  # a key of EVIDENCE
    curve: str = ""  # label of a curve
    metric: str = ""  # or name of a metric
    arm: str = ""  # default: every arm
    test: str = "rises"  # one of `claims.TESTS`
    than: str = ""  # what to compare with: another curve of the arm, another arm, or a number
    tolerance: float = 0.0  # relative for "equals", in units of the metric for "equal to" and "not lower than"

    @property
    def source(self) -> str:
        """Where the claim comes from."""
        return citation(self.evidence, self.lines)


@options
class Experiment:
    """A table, figure or theorem of a paper that can be run."""

    paper: str
    name: str
    title: str
    source: str  # place in the paper
    evidence: str  # a key of EVIDENCE
    shows: str  # what is published
    kind: str
    lines: str = ""  # lines of the paper's text
    measures: Sequence[str] = ()
    curves: Sequence[Curve] = ()
    claims: Sequence[Claim] = ()
    figure: str = ""  # figure of the diagnosis report
    vitals: str = ""  # vitals that the figure needs besides those of the curves
    blocks: str = ""
    task: str = ""
    finetune: str = ""  # host that a pre-trained encoder is fine-tuned in; `small_finetune` at small scale
    small_finetune: str = ""
    finetune_recipe: str = "finetune"
    finetune_overrides: Mapping[str, Any] = field(default_factory=dict)
    theorem: str = ""
    robustness: bool = False
    finetuned: bool = False  # arms start from a trained host
    groups: Sequence[PublishedGroup] = ()
    full: Scale = field(default_factory=Scale)
    small: Scale = field(default_factory=Scale)
    differs: str = ""  # how a full-scale run differs from the paper

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.name}"

    def fingerprint(self) -> str:
        """Hash of everything that decides what a small run measures. It tells recorded runs of older files apart."""
        measured = {
            "kind": self.kind, "measures": self.measures, "curves": self.curves, "vitals": self.vitals,
            "blocks": self.blocks, "task": self.task, "theorem": self.theorem, "robustness": self.robustness,
            "finetuned": self.finetuned, "finetune": self.small_finetune, "claims": [
                (claim.curve, claim.metric, claim.arm, claim.test, claim.than, claim.tolerance) for claim in self.claims
            ],
            "counted": [_texts(group, False) for group in self.groups] if set(COUNTED) & set(self.measures) else [],
            "specs": [(_texts(group, True), group.small_overrides) for group in self.groups], "small": self.small,
            "recipe": load_recipe(self.small.recipe, self.small.overrides).to_json(),
        }  # fmt: skip
        return hashlib.sha256(repr(measured).encode()).hexdigest()[:16]

    @property
    def state(self) -> str:
        return "runnable"


@options
class UnavailableExperiment:
    """A table or figure that cannot be run, and the reason."""

    name: str
    source: str
    title: str
    why: str
    drawing: bool = False  # a diagram without measurements

    @property
    def state(self) -> str:
        return f"{'nothing to measure' if self.drawing else 'not recoverable'}: {self.why}"


@options
class Contradiction:
    """Two places of a paper that disagree, or a place that disagrees with a count of ours."""

    places: str
    printed: str
    ours: str = ""
    lines: str = ""


@options
class PrintedFact:
    """Numbers in the running text of a paper that belong to no table or figure."""

    text: str
    lines: str
    ours: str = ""


@options
class Paper:
    """A paper and its experiments."""

    id: str
    title: str
    venue: str
    link: str
    order: int
    note: str = ""
    unavailable: Sequence[UnavailableExperiment] = ()
    contradictions: Sequence[Contradiction] = ()
    printed: Sequence[PrintedFact] = ()

    def experiments(self) -> list[Experiment]:
        """The experiments that can be run: tables, then figures, then theorems."""
        names = sorted(
            p.name.removesuffix(".toml")
            for p in _folder(self.id).iterdir()
            if p.name.endswith(".toml") and p.name != "paper.toml"
        )
        experiments = [_experiment(self.id, name) for name in names]
        return sorted(experiments, key=lambda experiment: _sort_key(experiment.source, experiment.name))


def list_papers() -> list[Paper]:
    """All papers, in order of publication."""
    names = [p.name for p in files("unsmooth.papers.experiments").iterdir() if (p / "paper.toml").is_file()]
    return sorted((_paper(name) for name in names), key=lambda paper: paper.order)


def open_experiment(name: str) -> Experiment:
    """An experiment by its id, PAPER/NAME."""
    paper_id, _, experiment_name = name.replace("-", "_").partition("/")
    papers = {paper.id: paper for paper in list_papers()}
    if paper_id not in papers:
        raise unknown("paper", paper_id, list(papers))
    for unavailable in papers[paper_id].unavailable:
        if unavailable.name == experiment_name:
            raise UnsmoothError(
                f"{paper_id}/{experiment_name} ({unavailable.source}) cannot be run: {unavailable.state}"
            )
    names = [experiment.name for experiment in papers[paper_id].experiments()]
    if experiment_name not in names:
        raise unknown(f"experiment of {paper_id}", experiment_name, names)
    return _experiment(paper_id, experiment_name)


def _folder(paper: str) -> Any:
    return files("unsmooth.papers.experiments") / paper


def _read(paper: str, name: str) -> dict[str, Any]:
    return read_toml(_folder(paper) / f"{name}.toml", "experiment")


@cache
def _paper(name: str) -> Paper:
    values = _read(name, "paper")
    kinds: dict[str, type] = {
        "unavailable": UnavailableExperiment,
        "contradictions": Contradiction,
        "printed": PrintedFact,
    }
    lists: dict[str, list[Any]] = {
        key: [_build(kind, row, name) for row in _rows(values.pop(key, []), key, name)] for key, kind in kinds.items()
    }
    return _build(Paper, {"id": name, **values, **lists}, name)


@cache
def _experiment(paper: str, name: str) -> Experiment:
    values, where = _read(paper, name), f"{paper}/{name}"
    for key, kind in (("curves", Curve), ("claims", Claim)):
        values[key] = [_build(kind, row, where) for row in _rows(values.get(key, []), key, where)]
    groups = []
    for row in _rows(values.get("groups", []), "groups", where):
        arms = [
            _build(PublishedArm, {**arm, "small": _small_host(arm.get("small", ""), where)}, where)
            for arm in _rows(row.get("arms", []), "arms", where)
        ]
        small = _small_host(row.get("small", ""), where)
        groups.append(_build(PublishedGroup, {**row, "arms": arms, "small": small}, where))
    values["small_finetune"] = _small_host(values.get("small_finetune", ""), where)
    scales = {key: _build(Scale, values.get(key, {}), where) for key in ("full", "small")}
    experiment = _build(Experiment, {**values, "paper": paper, "name": name, "groups": groups, **scales}, where)
    if experiment.kind not in EXPERIMENT_KINDS:
        raise unknown(f"kind of {where}", experiment.kind, EXPERIMENT_KINDS)
    for key in (experiment.evidence, *(claim.evidence for claim in experiment.claims)):
        if key not in EVIDENCE:
            raise unknown(f"evidence of {where}", key, EVIDENCE)
    claimed = [claim.metric for claim in experiment.claims if claim.metric]
    for key in (*experiment.measures, *claimed, *_published_metrics(experiment)):
        if key not in METRICS:
            raise unknown(f"metric of {where}", key, METRICS)
    return experiment


@cache
def _small_hosts() -> dict[str, str]:
    return read_toml(files("unsmooth.papers") / "small_hosts.toml", "list of hosts")


def _small_host(name: str, where: str) -> str:
    """The spec of a small host; "" stays ""."""
    if not isinstance(name, str):
        raise UnsmoothError(f"papers/experiments/{where}.toml: small must be the name of a host (got {name!r})")
    if name and name not in _small_hosts():
        raise unknown(f"small host of papers/experiments/{where}.toml", name, _small_hosts())
    return _small_hosts().get(name, "")


def small_host_name(spec: str) -> str:
    """Name of a small host: its family and size, never the name of a published model.

    Example:
        >>> small_host_name("vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=32, num_heads=2, depth=6)")
        'small host vit (6 blocks, 32 channels)'
    """
    key = next((key for key, value in _small_hosts().items() if value == spec), "of its own")
    host = parse(spec).host
    options = {} if host is None else host.options
    sizes = [(options.get("depth"), "blocks"), (options.get("embed_dim"), "channels")]
    known = ", ".join(f"{value} {unit}" for value, unit in sizes if isinstance(value, int))
    return f"small host {key}" + (f" ({known})" if known else "")


def _published_metrics(experiment: Experiment) -> set[str]:
    return {key for group in experiment.groups for arm in group.arms for key in (*arm.published, *arm.gains)}


def _rows(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    """A list of tables of a TOML file."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise UnsmoothError(
            f"papers/experiments/{where}.toml: {key} must be a list of tables (got {str(value)[:40]!r})"
        )
    return value


def _build(cls: type[T], values: Any, where: str) -> T:
    """An instance of a class of this module, with keys and types checked."""
    if not isinstance(values, Mapping):
        raise UnsmoothError(f"papers/experiments/{where}.toml: expected a table (got {str(values)[:40]!r})")
    return read_options(cls, values, f"papers/experiments/{where}.toml")


def _sort_key(source: str, name: str) -> tuple[int, int, str]:
    """Tables first, then figures, then theorems, each by number."""
    digits = "".join(letter if letter.isdigit() else " " for letter in source).split()
    rank = next((i for i, word in enumerate(("Table", "Figure", "Theorem", "Prop")) if source.startswith(word)), 1)
    return rank, int(digits[0]) if digits else 0, name
