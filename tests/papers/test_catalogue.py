"""The papers as data: nothing without a state, nothing that names what does not exist, and records of what is there."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import timm
import torch

import unsmooth
import unsmooth.models
from tools.records import RECORDS, read_record
from unsmooth.cli.main import main
from unsmooth.diagnosis import registry as vitals
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.papers.catalogue import Experiment, PublishedArm, Scale, _build, list_papers, open_experiment
from unsmooth.papers.claims import METRIC_TESTS, TESTS
from unsmooth.papers.curves import REDUCTIONS
from unsmooth.papers.rows import add_measured, published_row
from unsmooth.papers.theorems import THEOREMS
from unsmooth.recipes.recipe import load_recipe
from unsmooth.report.reproduction_table import agreement
from unsmooth.results.reproduction import Reproduction
from unsmooth.spec import parse
from unsmooth.tasks.model_factory import _host_options
from unsmooth.tasks.table import CLASSIFICATION, TASKS

EXPERIMENTS = {
    "anti_oversmoothing": {
        "table1", "table2", "table3", "theorem1", "section2_2", "mixing", *(f"figure{i}" for i in range(1, 13)),
    },
    "augmented_shortcuts": {"table1", "ablations", "theorem2", "theorem_s1", "recursion", "figure1"},
    "always_skip_attention": {
        "no_skip", "convmixer", "epsilon", "cost", "jacobian", "mae", "imagenet", "proposition4_1", "proposition4_2",
        "constant", "convolution", "figures_2_to_5",
    },
    "adder_attention": {
        "theorem1", "proposition1", "figure1", "figure2", "figure3", "singular_values", "energy", "accuracy",
    },
    "context_broadcasting": {
        *(f"table_s{i}" for i in range(1, 7)), "figure_s1", "figure_s2", "section2_6", "entropy", "segmentation", "vqa",
    },
}  # fmt: skip
ALL = [experiment for paper in list_papers() for experiment in paper.experiments()]
FIGURES = {
    "", "depth", "similarity", "spectrum", "first_head_spectrum", "rank", "bounds", "jacobian", "maps",
    "first_head_maps", "learned", "learned_by_head",
}  # fmt: skip


def experiments(test):
    return pytest.mark.parametrize("experiment", ALL, ids=lambda one: one.id)(test)


def test_every_experiment_of_every_paper_is_listed_with_a_state() -> None:
    found = {paper.id: [*paper.experiments(), *paper.unavailable] for paper in list_papers()}
    assert {paper: {one.name for one in every} for paper, every in found.items()} == EXPERIMENTS
    states = ("runnable", "measured here", "not recoverable: ", "nothing to measure: ")
    assert all(one.state.startswith(states) for every in found.values() for one in every)


@experiments
def test_the_data_of_an_experiment_fit_together(experiment: Experiment) -> None:
    labels = {curve.label for curve in experiment.curves}
    for claim in experiment.claims:
        assert bool(claim.curve) != bool(claim.metric)
        assert (claim.test in METRIC_TESTS) == bool(claim.metric)
        if experiment.kind != "theorem":
            assert claim.metric in experiment.measures if claim.metric else claim.curve in labels
            arms = {name for group in experiment.groups for name in group.names()}
            assert claim.arm in {"", *arms}
            assert claim.than in {"", *labels, *arms} or float(claim.than) is not None
        assert claim.test in TESTS
        assert claim.lines or claim.evidence != "P", f"{claim.text}: a printed claim has lines"
    assert experiment.lines or experiment.evidence != "P", "what is printed has lines"
    assert all(bool(curve.vital) + bool(curve.metric) + bool(curve.learned) == 1 for curve in experiment.curves)
    assert all(curve.reduce in {"", *REDUCTIONS} for curve in experiment.curves)
    vitals.select([name for name in (*(c.vital for c in experiment.curves), *experiment.vitals.split(",")) if name])
    assert experiment.figure in FIGURES
    assert (experiment.kind == "theorem") == (experiment.theorem in THEOREMS)
    assert (experiment.kind == "task") == (experiment.task in {*TASKS} - {CLASSIFICATION})
    assert len({group.name for group in experiment.groups}) == len(experiment.groups)
    for scale in (experiment.full, experiment.small):
        load_recipe(scale.recipe, scale.overrides)
    for group in experiment.groups:
        assert len(group.arms) >= (1 if experiment.kind == "diagnosis" else 2)
        assert all(set(curve.arms) <= set(group.names()) for curve in experiment.curves)
        assert len(set(group.names())) == len(group.models)
        for arm in group.models:
            fields = {**experiment.full.overrides, **group.overrides, **arm.overrides}
            load_recipe(group.recipe or experiment.full.recipe, fields)


@experiments
def test_published_models_exist(experiment: Experiment) -> None:
    for spec in (spec for group in experiment.groups for spec in group.specs(small=False)):
        host = spec.known_host
        assert host.name.startswith("hf:") or timm.is_model(host.name), host.name


TRAINED = [one for one in ALL if one.kind in ("trial", "diagnosis")]


DEEP = {"cait_s24_224", "cait_xxs24_224", "swin_small_patch4_window7_224", "pvt_medium", "pvt_v2_b3", "t2t_vit_24"}


@pytest.fixture(scope="module")
def built() -> set[str]:
    """Hosts with their options: many tables share one."""
    return set()


@experiments
def test_published_models_can_be_built_with_their_recipes(experiment: Experiment, built: set[str]) -> None:
    """On no device, with dropout as the recipe has it: a table must not fail at its last row."""
    for group in experiment.groups if experiment.kind == "trial" else ():
        name = group.recipe or experiment.full.recipe
        for arm in group.models:
            recipe = load_recipe(name, {**experiment.full.overrides, **group.overrides, **arm.overrides})
            parsed = group.spec(arm, small=False)
            # What deep hosts get is found by running one, which takes long; the published dropout is DeiT's alone.
            assert not recipe.deep_dropout or parsed.host.name not in DEEP, parsed
            options = _host_options(parsed, 10, replace(recipe, deep_dropout=0.0))
            if (known := f"{parsed.host} {options}") not in built:
                with torch.device("meta"):
                    create_host(parsed.host, **options)
                built.add(known)


SMALL = sorted({str(spec) for one in TRAINED for group in one.groups for spec in group.specs(small=True)})


@pytest.mark.parametrize("spec", SMALL)
def test_small_models_can_be_built_with_what_is_put_on_them(spec: str) -> None:
    model = unsmooth.create_model(spec, **{"num_labels" if spec.startswith("hf:") else "num_classes": 10})
    assert unsmooth.applied(model).remedies == parse(spec).remedies
    assert sum(p.numel() for p in model.parameters()) < 1.5e6


@experiments
def test_the_record_is_of_the_current_experiment(experiment: Experiment) -> None:
    found = read_record(experiment)
    assert found is not None, f"python benchmarks/papers.py FOLDER --data cifar10.npz --only {experiment.id}"
    assert (found.id, found.title, found.shows) == (experiment.id, experiment.title, experiment.shows)
    if experiment.groups:
        specs = [[row.spec for row in group.rows if row.why is None] for group in found.groups]
        assert specs == [list(map(str, group.specs(small=True))) for group in experiment.groups]
    published = [
        {name: value.published for name, value in row.values.items() if value.published is not None}
        for group in found.groups
        for row in group.rows
    ]
    if experiment.kind != "theorem":
        assert published == [dict(arm.published) for group in experiment.groups for arm in group.arms]
    assert {claim.text for claim in found.claims} == {claim.text for claim in experiment.claims}
    assert found.fingerprint == experiment.fingerprint()
    assert "/" not in found.scale.data  # no folder of a machine
    for row in (row for group in found.groups if group.like is None for row in group.rows if row.why is None):
        for name in experiment.measures:  # convolutional networks have no layers of attention
            assert name == "layers" or row.values[name].measured is not None, (row.name, name)


def test_every_record_loads_and_is_written_as_it_was() -> None:
    paths = sorted(RECORDS.rglob("*.json"))
    assert len(paths) > 50
    for path in paths:
        values = json.loads(path.read_text())
        assert Reproduction.from_json(path).to_dict() == values, path


def test_published_beside_measured() -> None:
    """Gains in the unit of a measure: points from shares, ratios for what depends on the machine."""
    group = open_experiment("anti_oversmoothing/table1").groups[0]
    plain, treated = (published_row(group, i, spec) for i, spec in enumerate(group.specs(small=False)[:2]))
    assert plain.values["top1"].published_gain is None
    assert treated.values["top1"].published_gain == pytest.approx(0.9)
    assert treated.values["images_per_second"].published_gain == pytest.approx(1416.7 / 1589.4)
    add_measured(treated, "top1", 0.5, sd=0.01, gain=0.02, low=0.01, high=0.03)
    add_measured(treated, "images_per_second", 80.0, gain=0.8, low=0.7, high=0.9)
    value = treated.values["top1"]
    assert [value.measured, value.sd, value.gain, value.low, value.high] == pytest.approx([50, 1, 2, 1, 3])
    assert agreement("top1", value) == "same sign"
    add_measured(treated, "images_per_second", 80.0, gain=0.8, low=0.7, high=0.9, ends="quartiles")
    assert agreement("images_per_second", treated.values["images_per_second"]) == ""  # quartiles prove nothing
    add_measured(treated, "top1", 0.5, gain=-0.02, low=-0.03, high=-0.01)
    assert agreement("top1", treated.values["top1"]) == "opposite sign"
    add_measured(treated, "top1", 0.5, gain=-0.02, low=-0.03, high=0.01)
    assert agreement("top1", treated.values["top1"]) == "no difference shown"
    add_measured(treated, "top1", 0.5, gain=-0.02)
    assert agreement("top1", treated.values["top1"]) == "no interval"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("anti_oversmothing/table1", "unknown paper .*anti_oversmoothing"),
        ("anti_oversmoothing/table9", "unknown experiment of anti_oversmoothing .*table1"),
        ("anti_oversmoothing/figure3", "figure3 .*cannot be run: nothing to measure: "),
        ("augmented_shortcuts/figure1", "nothing to measure: a diagram"),
    ],
)
def test_names_that_lead_nowhere(name: str, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        open_experiment(name)


def test_the_list_shows_every_experiment(capsys) -> None:
    assert main(["paper"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out or f"\n{name} " in out for names in EXPERIMENTS.values() for name in names)
    assert main(["paper", "always-skip-attention"]) == 0
    assert "group 'ViT-Tiny'" in capsys.readouterr().out
    assert main(["paper", "nothing"]) == 2
    assert "unknown paper 'nothing'" in capsys.readouterr().err


def test_theorems_predict_what_is_drawn() -> None:
    for row in THEOREMS["score_variance"](True):
        drawn, said = (row.curves[label].mean for label in ("measured", "predicted"))
        assert drawn == pytest.approx(said, rel=0.05)
    d = 64
    assert THEOREMS["score_variance"](True)[1].curves["predicted"].mean[2] == pytest.approx(2 * d * (1 - 2 / math.pi))
    (row,) = THEOREMS["condition_cubed"](True)
    assert max(row.curves["largest excess over it"].mean) <= 0
    assert all(
        a <= b for a, b in zip(row.curves["ln κ of linear attention"].mean, row.curves["its bound"].mean, strict=True)
    )


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (PublishedArm, {"ad": "attn_scale"}, r"papers/experiments/x\.toml has no option 'ad'. Did you mean 'add'"),
        (PublishedArm, {"published": {"top1": "high"}}, r"papers/experiments/x\.toml: published must be .*'high'"),
        (Scale, {"seeds": "3"}, r"papers/experiments/x\.toml: seeds must be a whole number \(got '3'\)"),
        (Scale, 3, "expected a table"),
    ],
)
def test_mistakes_in_a_file_name_the_file_and_the_key(cls: type, values: object, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        _build(cls, values, "x")
