"""Compare: token scores of the final models, their paired differences, and hosts and data that cannot be scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import unsmooth
from tests.support.runs import HOST, SMALL
from tests.support.scenes import write_scenes
from unsmooth import UnsmoothError
from unsmooth.evaluation.resampling import draw_weights, image_values, resampled_miou
from unsmooth.evaluation.token_scores import token_scores
from unsmooth.results.trial import Trial

SPECS = [HOST, HOST + "+context_broadcast", "test_resnet(in_chans=1)"]
PROBE = {"mask_classes": 5, "memory_tokens": 60}
SEEDS = 2


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"), train=10, val=6, size=(32, 32))


def small_trial(out: Path, scenes: Path, specs=SPECS, **options):
    usual = {
        "epochs": 1,
        "train_images": 64,
        "image_size": 8,
        "lr": 0.02,
        "seeds": SEEDS,
        "costs": False,
        "vitals": "none",
        **PROBE,
    }
    return unsmooth.compare(specs, "digits", out=out, **{**SMALL, "tokens": scenes, **usual, **options})


@pytest.fixture(scope="module")
def trial(tmp_path_factory, scenes):
    out = tmp_path_factory.mktemp("trials") / "trial"
    return out, small_trial(out, scenes)


def test_every_run_is_scored_once_and_reported(trial, scenes, monkeypatch):
    out, actual = trial
    tokens = actual.tokens
    plain, treated, other = actual.keys()
    assert tokens.keys() == [("patch", "knn"), ("patch", "linear")]
    assert (tokens.images, tokens.memory_images, tokens.memory_tokens) == (6, 10, 60)
    for probe in tokens.probes:
        assert [arm.arm for arm in probe.arms] == [plain, treated]
        assert [[one.block for one in arm.blocks] for arm in probe.arms] == [[0, 1], [0, 1]]
        assert probe[plain][probe.best].score.mean == max(one.score.mean for one in probe[plain].blocks)
        assert probe[plain].last is None and probe[treated].last is not None and probe[treated].best is not None
    assert "ran no attention" in tokens.missing[other]
    assert Trial.from_json(out / "trial.json") == actual
    page, text = (out / "report.html").read_text(), str(actual)
    assert 'id="tokens"' in page and "patch tokens, linear" in page and "ran no attention" in page
    assert text.count("patch tokens") == 2 and "ran no attention" in text

    scored = []
    monkeypatch.setattr(
        "unsmooth.trials.tokens._score", lambda model, *_: scored.append(type(model).__name__) or refuse()
    )
    assert small_trial(out, scenes).tokens.probes == tokens.probes
    assert scored == ["ResNet"] * SEEDS  # nothing was stored for it
    assert small_trial(out, scenes, neighbours=5).tokens.missing[plain] == "scored again"


def refuse():
    raise UnsmoothError("scored again")


def miou(weights, correct, predicted, labelled):
    hits, unions = weights @ correct, weights @ (predicted + labelled - correct)
    return np.mean([h / u for h, u in zip(hits, unions, strict=True) if u])


def test_differences_are_paired_by_seed_and_image(trial, scenes):
    out, actual = trial
    values, scores = [], []
    for arm in actual.arms[:2]:
        for run in arm.runs:
            counts = token_scores(unsmooth.load(out / run.folder / "last"), scenes, **PROBE).per_image[
                "patch", "knn", 1
            ]
            counts = [one.astype(float) for one in counts]
            one, images = np.ones(6), np.eye(6)
            scores.append(miou(one, *counts))
            slopes = [(miou(one + 1e-4 * e, *counts) - miou(one - 1e-4 * e, *counts)) / 2e-4 for e in images]
            values.append(scores[-1] + 6 * np.array(slopes))
    plain, treated = np.array(values).reshape(2, SEEDS, 6)
    d = treated - plain
    assert np.ptp(d) > 0  # otherwise this test compares zeros
    # Two-way analysis of variance without replication, seeds × images (Hillis 2007).
    mean, seeds, images = d.mean(), d.mean(1), d.mean(0)
    of_seeds = 6 * ((seeds - mean) ** 2).sum() / (SEEDS - 1)
    of_images = SEEDS * ((images - mean) ** 2).sum() / 5
    rest = ((d - seeds[:, None] - images + mean) ** 2).sum() / ((SEEDS - 1) * 5)
    total = of_seeds + max(of_images - rest, 0)
    freedom = (SEEDS - 1) * (total / of_seeds) ** 2
    half = max(
        stats.t.ppf(0.975, freedom) * np.sqrt(total / (6 * SEEDS)),
        stats.t.ppf(0.975, SEEDS - 1) * np.sqrt(of_seeds / (6 * SEEDS)),
    )
    found = actual.tokens["patch", "knn"][actual.arms[1].name]
    assert found[1].score.runs == pytest.approx(scores[SEEDS:], abs=1e-9)
    assert found.last.by_seed == pytest.approx(np.subtract(scores[SEEDS:], scores[:SEEDS]), abs=1e-9)
    assert found.last.mean == pytest.approx(np.mean(found.last.by_seed), abs=1e-9)
    assert (found.last.low, found.last.high) == pytest.approx((mean - half, mean + half), abs=1e-6)


def test_values_per_image_have_the_spread_of_a_bootstrap():
    rng = np.random.default_rng(0)
    labelled = rng.poisson(rng.gamma(1, 40, (300, 5)))
    correct = rng.binomial(labelled, rng.beta(4, 2, (300, 1)))
    predicted = correct + rng.poisson(10, (300, 5))
    values = image_values(correct, predicted, labelled)
    drawn = resampled_miou(draw_weights(300), correct, predicted, labelled)
    assert values.mean() == pytest.approx(drawn[0], abs=1e-12)
    assert values.std(ddof=1) / np.sqrt(300) == pytest.approx(drawn[1:].std(), rel=0.06)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "nowhere/"}, "nowhere"),
        ({"mask_classes": 3}, "has the value [45], but 3 classes have values 1 to 3"),
        ({"neighbours": 0}, r"compare: neighbours must be at least 1 \(got 0\)"),
    ],
)
def test_data_that_cannot_be_scored_are_an_error_before_any_work(tmp_path, scenes, options, message):
    with pytest.raises(UnsmoothError, match=message):
        small_trial(tmp_path / "trial", **{"scenes": scenes, **options})
    assert not (tmp_path / "trial").exists()
