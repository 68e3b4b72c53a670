"""A few pairs of docs/compositions.md; `make compositions` runs all of them."""

from __future__ import annotations

import pytest

from tools.compositions import COMPOSITIONS, OK, TOGETHER, outcome, read_record, run_pair
from unsmooth.remedies.base import REGISTRY

# One remedy of each kind: of the map, of a linear layer, of tokens, of a residual sum, of weights, between blocks.
REMEDIES = ("attn_scale", "adder", "augmented_shortcut", "no_skip", "sigma_reparam", "registers", "value_anchor")
QUICK = ("weight norm", "spectral norm", "dynamic int8", "checkpointing", "deepcopy", "float16", "meta")


def test_the_record_has_every_pair() -> None:
    pairs = read_record()["pairs"]
    assert sorted(pairs) == sorted(REGISTRY)
    for remedy, outcomes in pairs.items():
        assert set(outcomes) == {*COMPOSITIONS, *TOGETHER}, remedy


def test_nothing_is_silently_wrong() -> None:
    """A pair works or says why not."""
    wrong = [(key, name, text) for key, pairs in read_record()["pairs"].items() for name, text in pairs.items()
             if text != OK and not text.startswith("refused: ")]  # fmt: skip
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("remedy", REMEDIES)
def test_pairs_are_as_recorded(remedy: str) -> None:
    recorded = read_record()["pairs"][remedy]
    for name in QUICK:
        actual = outcome(lambda name=name: run_pair(remedy, name))
        assert actual.partition(":")[0] == recorded[name].partition(":")[0], (name, actual, recorded[name])


@pytest.mark.full
@pytest.mark.parametrize("remedy", sorted(REGISTRY))
@pytest.mark.parametrize("name", sorted(COMPOSITIONS))
def test_every_pair_is_as_recorded(remedy: str, name: str) -> None:
    actual = outcome(lambda: run_pair(remedy, name))
    assert actual.partition(":")[0] == read_record()["pairs"][remedy][name].partition(":")[0], actual
