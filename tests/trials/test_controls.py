"""Control arms: a host with as many parameters as the treated ones, and the plain host with other seeds."""

from __future__ import annotations

import pytest

import unsmooth
from tests.support.runs import HOST, SMALL
from tests.trials.test_compare import small_trial
from unsmooth import UnsmoothError
from unsmooth.evaluation.cost import parameters
from unsmooth.recipes.recipe import load_recipe
from unsmooth.spec import parse
from unsmooth.trials.controls import STEPS, widen

SPECS = [HOST, HOST + "+augmented_shortcut", HOST + "+attn_scale"]
WIDER, OTHER = "plain, more parameters", "plain, other seeds"


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    out = tmp_path_factory.mktemp("controls") / "trial"
    return out, small_trial(out, SPECS, controls="all", costs=True)


def test_the_wider_host_has_at_least_the_parameters_of_the_largest_arm(controlled):
    _, trial = controlled
    assert trial.keys() == ["plain", "augmented_shortcut", "attn_scale", WIDER, OTHER]
    largest = max(arm.parameters for arm in trial.arms if arm.control is None)
    assert largest <= trial[WIDER].parameters < 1.02 * largest and trial[WIDER].control == "parameters"
    for name in ("augmented_shortcut", "attn_scale"):
        own, wide = trial[name].top1.mean, trial[WIDER].top1.mean
        assert trial[name].beyond_parameters.mean == pytest.approx(own - wide)
    assert trial[WIDER].beyond_parameters is None and trial[OTHER].beyond_parameters is None


def test_the_negative_control_is_the_plain_host_with_other_seeds(controlled, tmp_path):
    _, trial = controlled
    other = trial[OTHER]
    assert other.spec == trial["plain"].spec and [run.seed for run in other.runs] == [1000, 1001]
    assert other.parameters == trial["plain"].parameters
    alone = unsmooth.train(HOST, "digits", out=tmp_path, seed=1000, **{**SMALL, "epochs": 1})
    assert (alone["top1"], alone["loss"]) == (other.runs[0].top1, other.runs[0].loss)


def test_controls_are_no_claims_of_the_verdict(controlled):
    out, trial = controlled
    assert "other seeds" not in trial.verdict.text and "more parameters" not in trial.verdict.text
    assert "corrected for 3 comparisons" in trial.verdict.text  # the negative control is not one
    assert trial[OTHER].difference.p_holm is None
    lines = {line.partition(":")[0]: line for line in trial.verdict.lines}
    assert "negative control" in lines[OTHER] and "wider host" in lines[WIDER]
    assert "compared with the control of parameters" in lines["attn_scale"]
    for text in (" ".join(str(trial).split()), (out / "report.html").read_text()):
        assert OTHER in text and f"Compared with {WIDER}: augmented_shortcut" in text


def test_widening_is_the_smallest_step_that_suffices():
    recipe, spec = load_recipe("small"), parse(HOST)

    def size(text):
        return parameters(unsmooth.create_model(text, num_classes=10))

    own = size(HOST)
    for target in (own, own + 1, 2 * own):
        wide = widen(spec, target, 10, recipe)
        ratio = wide.host.options["mlp_ratio"]
        less = str(wide).replace(f"mlp_ratio={ratio}", f"mlp_ratio={ratio - 1 / STEPS}")
        assert size(less) < target <= size(wide)


def test_controls_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UnsmoothError, match="no arm has more parameters than plain"):
        small_trial(tmp_path / "t", [HOST, HOST + "+context_broadcast"], controls="parameters")
    assert not (tmp_path / "t").exists()
    with pytest.raises(UnsmoothError, match="has no option mlp_ratio"):
        widen(parse("convmixer_768_32"), 10**9, 10, load_recipe("small"))
