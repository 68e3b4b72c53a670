"""Retrofit trials: all arms start from one trained host."""

from __future__ import annotations

import pytest

from tests.support.runs import HOST, SMALL, small_run
from tests.trials.test_compare import small_trial
from unsmooth import UnsmoothError
from unsmooth.cli import main as cli
from unsmooth.spec import parse
from unsmooth.trials.start import inexact_remedies

SPECS = [HOST, HOST + "+attn_scale", HOST + "+layer_scale(init=0.1)"]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    return folder / "last", small_run(folder, fields={"epochs": 30, "lr": 8e-3, "hflip": 0.0, "crop_scale": (1.0, 1.0)})


@pytest.fixture(scope="module")
def retrofit(host, tmp_path_factory):
    out = tmp_path_factory.mktemp("retrofit") / "trial"
    return out, small_trial(out, SPECS, seeds=1, checkpoint=host[0])


def test_exact_arms_start_at_the_accuracy_of_the_host(host, retrofit):
    out, trial = retrofit
    plain, exact, inexact = (arm.start for arm in trial.arms)
    assert plain.top1 == exact.top1 == host[1]["top1"] > 0.2
    assert plain.inexact == exact.inexact == [] and inexact.inexact == ["layer_scale(init=0.1)"]
    assert trial.start == str(host[0])
    text, html = " ".join(str(trial).split()), (out / "report.html").read_text()
    for shown in (text, html):
        assert "Not an exact start: layer_scale" in shown and "Top-1 before the first step" in shown
    assert "not the start of plain" in next(line for line in trial.verdict.lines if line.startswith("layer_scale"))


def test_a_measured_start_is_kept(host, retrofit, monkeypatch):
    out, trial = retrofit
    monkeypatch.setattr("unsmooth.trials.start.score", None)
    again = small_trial(out, SPECS, seeds=1, checkpoint=host[0])
    assert [arm.start for arm in again.arms] == [arm.start for arm in trial.arms]


def test_from_is_the_option_of_the_command(host, tmp_path, capsys):
    arguments = ["compare", *SPECS[:2], "--data", "digits", "--seeds", "1", "--from", str(host[0]), "--out",
                 str(tmp_path / "t"), "--vitals", "none", "--no-costs"]  # fmt: skip
    arguments += [word for name in SMALL for word in (f"--{name.replace('_', '-')}", str(SMALL[name]))]
    assert cli.main([*arguments, "--epochs", "1"]) == 0
    assert "every remedy starts exactly" in " ".join(capsys.readouterr().out.split())
    assert cli.main([*arguments, "--from", "none.pth", "--out", str(tmp_path / "other")]) == 2
    assert "none.pth does not exist" in capsys.readouterr().err


def test_a_spec_can_be_the_start(tmp_path, monkeypatch):
    """`pretrained=true` in the spec: the library's weights, which are replaced by a constant here."""
    from unsmooth.hosts import build

    original, asked = build._LIBRARIES["timm"], []

    def weights(name, pretrained, network, options):
        model = original(name, False, network, options)
        asked.append(pretrained)
        if pretrained:
            for parameter in model.parameters():
                parameter.data.fill_(0.01)
        return model

    monkeypatch.setitem(build._LIBRARIES, "timm", weights)
    pretrained = HOST.replace("(", "(pretrained=true, ")
    trial = small_trial(tmp_path, [pretrained, pretrained + "+attn_scale"], seeds=1)
    assert asked[0] and trial.start == "pretrained weights"
    scratch = small_trial(tmp_path / "random", [HOST, HOST + "+attn_scale"], seeds=1)
    assert trial.arms[0].start.top1 == trial.arms[1].start.top1
    assert trial.arms[0].runs[0].loss != scratch.arms[0].runs[0].loss


def test_random_weights_are_no_start(tmp_path):
    trial = small_trial(tmp_path, SPECS[:2], seeds=1)
    assert trial.start is None and all(arm.start is None for arm in trial.arms)
    assert "start" not in trial.to_dict() and "start" not in trial.to_dict()["arms"][0]


def test_remedies_say_whether_their_start_is_exact():
    assert inexact_remedies(parse("a+attn_scale+layer_scale")) == []
    assert inexact_remedies(parse("a+attn_scale+no_skip")) == ["no_skip"]


def test_a_wider_control_cannot_start_from_the_host(host, tmp_path):
    with pytest.raises(UnsmoothError, match="cannot start from trained weights"):
        small_trial(tmp_path / "t", SPECS, checkpoint=host[0], controls="parameters")
