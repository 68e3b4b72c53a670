"""The published values in the data files are those that the papers print, row by row."""

from __future__ import annotations

import re
from collections import Counter
from itertools import zip_longest

import pytest

from tests.papers.transcription import GAINS, IN_TEXT, LINES, TABLES, Row
from unsmooth.papers.catalogue import Experiment, PublishedArm, PublishedGroup, list_papers, open_experiment
from unsmooth.report.metrics import METRICS

# Printed, but properties of the model rather than results: compared if there is such a metric.
OPTIONAL = {"added_flops", "layers"}
COMPARED = {key for rows in TABLES.values() for row in rows for key in row.values} - (OPTIONAL - METRICS.keys())

NamedRow = tuple[str, dict[str, float]]


@pytest.mark.parametrize("name", TABLES)
def test_a_data_file_has_the_printed_numbers(name):
    found = differences(TABLES[name], open_experiment(name), COMPARED)
    assert not found, "\n".join([f"{name} (lines {LINES[name]} of the text):", *found])


def differences(printed: list[Row], experiment: Experiment, compared: set[str]) -> list[str]:
    """How the published values of an experiment differ from the printed ones.

    First the numbers of each metric as multisets, then the first row that differs, in printed order. Names are not
    compared. Rows without numbers are left out, as are printed metrics outside of `compared`.
    """
    paper = _with_numbers((f"{row.group}, {row.arm}", _only(row.values, compared)) for row in printed)
    data = _with_numbers(
        (f"{group.name}, {arm.name or arm.add or 'plain'}", dict(arm.published))
        for group in experiment.groups
        for arm in group.arms
    )
    return [*_numbers_apart(paper, data), *_first_row_apart(paper, data)]


def _numbers_apart(paper: list[NamedRow], data: list[NamedRow]) -> list[str]:
    apart = []
    for metric in sorted({key for _, values in (*paper, *data) for key in values}):
        printed, stored = (Counter(row[metric] for _, row in rows if metric in row) for rows in (paper, data))
        if printed != stored:
            only_printed, only_stored = sorted((printed - stored).elements()), sorted((stored - printed).elements())
            apart.append(f"{metric}: only the paper has {only_printed}, only the data file {only_stored}")
    return apart


def _first_row_apart(paper: list[NamedRow], data: list[NamedRow]) -> list[str]:
    pairs = enumerate(zip_longest(paper, data, fillvalue=("no row", {})), start=1)
    apart = (
        f"row {place}: the paper has {name} {values}, the data file {stored_name} {stored}"
        for place, ((name, values), (stored_name, stored)) in pairs
        if values != stored
    )
    return [first] if (first := next(apart, "")) else []


def _only(values, keys):
    return {key: value for key, value in values.items() if key in keys}


def _with_numbers(rows):
    return [(name, values) for name, values in rows if values]


# The comparison itself.

PRINTED = [
    Row("ViT", "plain", {"top1": 80.0, "top5": 95.0, "added_flops": 1.0}),
    Row("ViT", "CB", {"top1": 81.0, "top5": 95.0, "added_flops": 2.0}),
    Row("ViT", "failed", {"added_flops": 3.0}),
    Row("Swin", "plain", {"top1": 83.0}),
]
PLAIN, CB, SWIN = {"top1": 80, "top5": 95}, {"top1": 81, "top5": 95.0}, {"top1": 83.0}
SAME = {"ViT-S": {"host": PLAIN, "cb": CB, "no result": {}}, "Swin-S": {"host": SWIN}}


def _experiment(groups):
    return Experiment(
        paper="p", name="t", title="", source="Table 1", evidence="P", shows="", kind="trial",
        groups=[
            PublishedGroup(
                name=name, host="vit", small="vit",
                arms=[PublishedArm(name=arm, published=values) for arm, values in arms.items()],
            )
            for name, arms in groups.items()
        ],
    )  # fmt: skip


def test_equal_numbers_in_equal_order_agree_under_other_names():
    assert differences(PRINTED, _experiment(SAME), {"top1", "top5"}) == []


@pytest.mark.parametrize(
    ("groups", "messages"),
    [
        pytest.param(
            {"ViT-S": SAME["ViT-S"]},
            [r"top1: only the paper has \[83.0\], only the data file \[\]", "row 3: .* Swin, plain .* no row {}"],
            id="row lost",
        ),
        pytest.param(
            {**SAME, "PVT": {"host": SWIN}},
            [r"top1: only the paper has \[\], only the data file \[83.0\]", "row 4: .* no row {}, .* PVT, host .*"],
            id="row added",
        ),
        pytest.param(
            {**SAME, "Swin-S": {"host": {**SWIN, "miou": 40.0}}},
            [r"miou: only the paper has \[\], only the data file \[40.0\]", "row 3: .* Swin-S, host .*"],
            id="metric that is not printed",
        ),
        pytest.param(
            {**SAME, "Swin-S": {"host": {**SWIN, "added_flops": 1}}},
            [r"added_flops: only the paper has \[\], only the data file \[1.0\]", "row 3: .*"],
            id="metric that is not compared",
        ),
        pytest.param(
            {"ViT-S": {"host": {"top1": 80.1, "top5": 95}, "cb": CB}, "Swin-S": {"host": SWIN}},
            [r"top1: only the paper has \[80.0\], only the data file \[80.1\]", "row 1: .*"],
            id="digit",
        ),
        pytest.param(
            {"ViT-S": {"host": {"top1": 80, "top5": 95}, "cb": {"top1": 81}}, "Swin-S": {"host": SWIN}},
            [r"top5: only the paper has \[95.0\], only the data file \[\]", "row 2: .*"],
            id="one of two equal numbers lost",
        ),
        pytest.param(
            {"ViT-S": {"cb": CB, "host": PLAIN}, "Swin-S": {"host": SWIN}},
            ["row 1: the paper has ViT, plain .*, the data file ViT-S, cb .*"],
            id="arms swapped",
        ),
        pytest.param(
            {"Swin-S": SAME["Swin-S"], "ViT-S": SAME["ViT-S"]},
            ["row 1: the paper has ViT, plain .*, the data file Swin-S, host .*"],
            id="groups swapped",
        ),
        pytest.param(
            {"ViT-S": {"host": PLAIN, "cb": {"top1": 81}, "rest": {"top5": 95}}, "Swin-S": {"host": SWIN}},
            ["row 2: the paper has ViT, CB .*, the data file ViT-S, cb .*"],
            id="row split",
        ),
    ],
)
def test_a_difference_is_found_and_named(groups, messages):
    found = differences(PRINTED, _experiment(groups), {"top1", "top5"})
    assert len(found) == len(messages), found
    for difference, message in zip(found, messages, strict=True):
        assert re.fullmatch(message, difference)


def test_an_optional_metric_is_compared_once_it_is_known():
    numbers, row = differences(PRINTED, _experiment(SAME), {"top1", "top5", "added_flops"})
    assert numbers == "added_flops: only the paper has [1.0, 2.0, 3.0], only the data file []"
    assert row.startswith("row 1: ")


# The transcription itself.


@pytest.mark.parametrize("name", GAINS)
def test_printed_gains_are_the_differences_of_printed_rows(name):
    plain = {row.group: row.values["top1"] for row in TABLES[name] if row.arm == "plain"}
    rows = [row for row in TABLES[name] if row.arm != "plain"]
    assert [round(row.values["top1"] - plain[row.group], 1) for row in rows] == GAINS[name]


def test_every_table_has_its_lines_and_every_number_its_paper():
    assert LINES.keys() == TABLES.keys()
    assert {paper for paper, _, _ in IN_TEXT} <= {paper.id for paper in list_papers()}
