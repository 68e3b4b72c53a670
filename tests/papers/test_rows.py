"""Printed rows without a model, and counts on hosts of published size."""

from __future__ import annotations

import pytest

from unsmooth.papers.catalogue import PublishedArm, PublishedGroup
from unsmooth.papers.counts import counts
from unsmooth.papers.rows import published_row, with_printed_rows
from unsmooth.spec import parse

GROUP = PublishedGroup(
    name="g",
    host="deit_tiny_patch16_224",
    arms=[
        PublishedArm(name="lost", why="no code", published={"top1": 70.0}),
        PublishedArm(published={"top1": 72.2}),
        PublishedArm(add="attn_scale", published={"top1": 73.0}),
    ],
)


def test_printed_rows_keep_their_place_and_gains_are_relative_to_the_first_model() -> None:
    assert list(map(str, GROUP.specs(small=False))) == ["deit_tiny_patch16_224", "deit_tiny_patch16_224+attn_scale"]
    assert GROUP.names() == ["plain", "attn_scale"]
    rows = with_printed_rows(GROUP, [published_row(GROUP, i, spec) for i, spec in enumerate(GROUP.specs(False))])
    assert [row.name for row in rows] == ["lost", "plain", "attn_scale"]
    assert [row.why for row in rows] == ["no code", None, None]
    gains = [row.values["top1"].published_gain for row in rows]
    assert gains[:2] == [None, None]
    assert gains[2] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("spec", "parameters", "macs", "layers"),
    [
        ("deit_small_patch16_224", 22.0, 4.57, 12),
        ("deit_small_24_patch16_224+attn_scale", 43.3, 9.10, 24),
        ("swin_small_patch4_window7_224", 49.6, 8.74, 24),
    ],
)
def test_counts_agree_with_the_printed_sizes(spec: str, parameters: float, macs: float, layers: int) -> None:
    counted = counts(parse(spec))
    assert counted["parameters"] / 1e6 == pytest.approx(parameters, abs=0.06)
    assert counted["macs"] / 1e9 == pytest.approx(macs, rel=0.01)
    assert counted["layers"] == layers


def test_counts_of_a_convolutional_network_have_no_layers() -> None:
    assert counts(parse("resnet18")).keys() == {"parameters", "macs", "added_flops"}
    assert counts(parse("deit_tiny_patch16_224"))["added_flops"] == 0
    assert counts(parse("deit_tiny_patch16_224+context_broadcast"))["added_flops"] > 0
