"""The tables of the context broadcasting supplement: recipes of single arms, sizes, and what its Section 2.6 says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unsmooth
from unsmooth.papers.catalogue import PublishedArm, PublishedGroup, list_papers, open_experiment
from unsmooth.papers.claims import check_claims
from unsmooth.papers.counts import counts
from unsmooth.papers.theorems import THEOREMS
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.results.reproduction import GroupResult
from unsmooth.spec import parse
from unsmooth.theory.context_broadcasting import PRINTED_OPERATIONS

(PAPER,) = (paper for paper in list_papers() if paper.id == "context_broadcasting")
TRIALS = [experiment for experiment in PAPER.experiments() if experiment.kind == "trial"]


def recipe_of(name: str, group: PublishedGroup, arm: PublishedArm) -> Recipe:
    full = open_experiment(name).full
    return load_recipe(group.recipe or full.recipe, {**full.overrides, **group.overrides, **arm.overrides})


@pytest.mark.parametrize("experiment", TRIALS, ids=lambda one: one.name)
def test_only_arms_with_cb_leave_the_recipe_of_deit(experiment: Any) -> None:
    """Lines 42 to 48: no repeated augmentation for Ti and S with CB; warm-up of 10 epochs and more drop path for B."""
    deit = load_recipe("deit")
    for group in experiment.groups:
        plain, *treated = (recipe_of(experiment.id, group, arm) for arm in group.models)
        fields = ("repeated_augmentation", "warmup_epochs", "drop_path")
        assert all(getattr(plain, field) == getattr(deit, field) for field in fields), group.name
        for recipe in treated:
            found = tuple(getattr(recipe, field) for field in fields)
            if group.host.startswith("deit_base"):
                assert found == (3, 10, 0.2)
            elif group.host.startswith("deit_"):
                assert found == (0, 5, 0.1)
            else:  # the text says nothing about other hosts
                assert found == (3, 5, 0.1)


def test_the_epochs_of_table_s3() -> None:
    groups = open_experiment("context_broadcasting/table_s3").groups
    epochs = {group.name: recipe_of("context_broadcasting/table_s3", group, group.arms[0]).epochs for group in groups}
    assert epochs == {"PVT-S": 120, "LocalViT-Ti": 150, "PVTv2": 120, "Swin-Ti": 120}
    assert list(epochs) == ["PVT-S", "LocalViT-Ti", "PVTv2", "Swin-Ti"]
    assert load_recipe("deit").epochs == 300


@pytest.mark.parametrize("index", range(3), ids=["Ti", "S", "B"])
def test_the_sizes_of_table_s1_are_those_that_we_count(index: int) -> None:
    group = open_experiment("context_broadcasting/table_s1").groups[index]
    for arm in group.models:
        counted = counts(group.spec(arm, small=False))
        assert round(counted["parameters"] / 1e6, 1) == arm.published["parameters"]
        assert counted["macs"] / 1e9 == pytest.approx(arm.published["macs"], abs=0.06)


@pytest.mark.parametrize("table", ["table_s5", "table_s6"])
def test_printed_operations_are_ours_by_a_known_factor(table: str) -> None:
    """We count 3 (CB), 2 (gate) and 5 (hybrid) operations per token and channel; the tables count 1, 1 and 2."""
    ours = {"plain": 3, "gate": 2, "hybrid": 5}
    (group,) = open_experiment(f"context_broadcasting/{table}").groups
    assert len(group.models) == 10
    with torch.device("meta"):
        host = unsmooth.create_model(group.host)
    for arm in group.models[1:]:
        kind = str(dict(parse(f"x+{arm.add}").remedies[0].options).get("kind", "plain"))
        counted = unsmooth.plan(host, arm.add).flops / 1e6
        printed = counted * PRINTED_OPERATIONS[kind] / ours[kind]
        assert round(printed, 1) == arm.published["added_flops"], arm.name


def test_every_form_stands_at_every_site_and_position() -> None:
    sites = {arm.name for arm in open_experiment("context_broadcasting/table_s5").groups[0].arms[1:]}
    positions = {arm.name for arm in open_experiment("context_broadcasting/table_s6").groups[0].arms[1:]}
    forms = ("CB", "gate", "hybrid")
    assert sites == {f"{form} at {site}" for form in forms for site in ("MLP", "MSA", "both")}
    assert positions == {f"{form} at {position}" for form in forms for position in ("Front", "Mid", "End")}


def test_the_failed_cell_of_table_s5_has_no_value() -> None:
    (group,) = open_experiment("context_broadcasting/table_s5").groups
    failed = [arm for arm in group.arms if "top1" not in arm.published]
    assert [(arm.name, dict(arm.gains)) for arm in failed] == [
        ("hybrid at both", {"top1": "failed", "top5": "failed"}),
    ]


def test_contradictions_are_listed() -> None:
    """Each from the published values themselves, so that none is listed that the data do not have."""
    places = " ".join(item.places for item in PAPER.contradictions)
    assert all(f"Table S{i}" in places or f"S{i}" in places for i in (1, 2, 5, 6))
    s5, s6 = (
        {arm.add: arm.published for arm in open_experiment(f"context_broadcasting/{name}").groups[0].arms}
        for name in ("table_s5", "table_s6")
    )
    apart = {add for add in s5.keys() & s6.keys() if s5[add] != s6[add]}
    assert apart == {"context_broadcast(kind=hybrid)"}
    plain, scaled, cb = (arm.published for arm in open_experiment("context_broadcasting/table_s2").groups[0].arms)
    gains = [[round(arm[key] - plain[key], 1) for key in ("occlusion", "imagenet_a", "fgsm")] for arm in (scaled, cb)]
    assert gains == [[0.5, 1.1, 1.2], [0.5, 2.1, 3.7]]  # the text has 2.2 and 4.7 for the last ones


def test_section_2_6() -> None:
    """Case 1 as printed is contradicted. What is true of it, case 2, and that Mid equals End, are confirmed."""
    rows = THEOREMS["broadcast_gradients"](True)
    results = check_claims(open_experiment("context_broadcasting/section2_6"), [GroupResult(name="g", rows=rows)])
    states = [[check.state for check in result.checks] for result in results]
    assert states == [["contradicted"], ["contradicted"], ["confirmed"], ["confirmed"], ["confirmed"]]
    front, mid, end = (row.curves for row in rows)
    assert min(front["distance to End"].mean) > 0.1
    assert min(end["distance to averaged inputs"].mean) > 0.1
    assert mid["gradient of fc1"].mean == pytest.approx(end["gradient of fc1"].mean)


def test_pit_takes_cb() -> None:
    """PiT is among the models of Section 1.2."""
    model = unsmooth.create_model("pit_ti_224+context_broadcast", num_classes=10)
    assert len(unsmooth.plan(unsmooth.create_model("pit_ti_224"), "context_broadcast").blocks) == 12
    assert unsmooth.applied(model).remedies
