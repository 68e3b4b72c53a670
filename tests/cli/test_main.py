"""The command line: output, exit codes, and errors of one line."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import unsmooth
from tests.support.small_hosts import CONVMIXER, HOSTS, host
from unsmooth.cli import demo
from unsmooth.cli import main as cli
from unsmooth.errors import LISTED, Interrupted, unknown
from unsmooth.utils.text import spans

WIDTH = 80
SMALL = "img_size=32, patch_size=8, embed_dim=48, depth=2"


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Output of a command that succeeds: nothing is cut, and every line fits 80 columns."""
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= WIDTH
    return out


def row(text: str, key: str) -> list[str]:
    """The cells of a row of a table."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [key])


@pytest.mark.parametrize("arguments", [["list"], ["list", "remedies"]])
def test_list_names_every_remedy_with_its_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    starts = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert [word for word in starts if word in unsmooth.list_remedies()] == unsmooth.list_remedies()
    assert "kind=plain|scaled|gate|hybrid" in out
    assert "rescale=true" in out


def test_check_shows_the_anatomy_and_what_each_remedy_adds(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "check", "deit_tiny_patch16_224(depth=2)")
    assert "deit_tiny_patch16_224(depth=2): 2 blocks, 196 patch tokens, 1.27 M parameters" in out
    assert row(out, "0–1") == ["0–1", "global", "(sdpa)", "197×197", "3", "197", "192", "yes"]
    assert row(out, "attn_scale") == ["attn_scale", "all", "6", "0.23", "unchanged"]
    assert row(out, "augmented_shortcut")[:3] == ["augmented_shortcut", "all", "7,680"]
    assert row(out, "token_graying")[1] == "once"
    assert [row(out, key)[0] for key in unsmooth.list_remedies()] == unsmooth.list_remedies()


@pytest.mark.parametrize(
    "spec",
    [
        HOSTS["hf_vit"],
        HOSTS["hf_swin"],
        HOSTS["swin"],
        "torchvision:swin_t(num_classes=3)",
        f"deit_tiny_patch16_224({SMALL})+attn_scale+feat_scale",
    ],
)
def test_check_takes_hosts_of_every_library(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(printed(capsys, "check", spec).split())
    assert out.startswith(spec)
    assert "attn_scale all" in out


def test_check_tries_the_remedies_of_a_spec_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "check", f"deit_tiny_patch16_224({SMALL})+context_broadcast(kind=scaled, blocks=1)")
    flat = " ".join(out.split())
    assert "context_broadcast(kind=scaled, 1 48 " in flat
    assert row(out, "feat_scale")[1] == "all"
    alone = printed(capsys, "check", f"deit_tiny_patch16_224({SMALL})")
    assert row(alone, "context_broadcast")[1:3] == ["all", "0"]


def test_check_says_why_not_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "check", HOSTS["pvt_v2"])
    assert row(out, "adder_attention")[:2] == ["adder_attention", "3"]
    notes = " ".join(out[out.index("token_graying") :].split())
    assert "adder, adder_attention, blocks 0–2: it has fewer keys than queries" in notes
    assert "use identity=false" in notes


def test_check_says_why_not_at_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.surgery.check.create_model", lambda spec: host(CONVMIXER))  # timm's own are large
    out = printed(capsys, "check", "convmixer_768_32")
    assert row(out, "attn_scale") == ["attn_scale", "none"]
    assert row(out, "no_skip")[1] == "all"
    notes = " ".join(out.split())
    (named,) = re.findall(r"([a-z0-9_, ]*attn_scale[a-z0-9_, ]*): it has no softmax attention", notes)
    assert {"attn_scale", "feat_scale", "l2_attention", "layer_scale"} <= set(named.strip().split(", "))


def test_a_block_left_out_is_a_note_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    shown = warnings.showwarning
    assert cli.main(["check", f"{HOSTS['pvt_v2']}+adder_attention"]) == 0
    assert "note: adder_attention is not applied to block 0: " in capsys.readouterr().err
    assert warnings.showwarning is shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek", "deit"], "unknown command 'chek'. Did you mean 'check'?"),
        (["check"], "Missing argument"),
        (["check", "a", "b"], "unexpected extra argument"),
        (["check", "--fast", "a"], "No such option"),
        (["list", "hosts"], "unknown listing 'hosts'. Known: recipes, remedies, vitals."),
        (["check", "deit_tiny_patch16_22"], "timm has no model 'deit_tiny_patch16_22'. Closest names: deit_tiny"),
        (["check", "timm:deit"], "timm has no model 'deit'"),
        (["check", "nowhere"], "timm has no model 'nowhere'. For other hosts"),
        (["check", "mine.pth"], "mine.pth is a file of weights, not a model. Name its model too: MODEL --checkpoint"),
        (["check", "torchvision:vit_b_17"], "unknown torchvision model 'vit_b_17'. Closest of "),
        (["check", "hf:vit(hidden_sise=3)"], "hf:vit has no option 'hidden_sise'. Did you mean 'hidden_size'?"),
        (["check", "deit_tiny_patch16_224(depht=2)"], "deit_tiny_patch16_224 has no option 'depht'."),
        (["check", "deit_tiny_patch16_224(depth=two)"], "timm cannot build deit_tiny_patch16_224(depth=two): "),
        (["check", "hf:vit(hidden_size=7)"], "hf cannot build hf:vit(hidden_size=7): "),
        (["check", "torchvision:vit_b_16(image_size=17)"], "torchvision cannot build torchvision:vit_b_16("),
        (["check", "resnet18"], "is it a vision transformer?"),
        (["check", "deit_tiny_patch16_224+atn_scale"], "Did you mean 'attn_scale'?"),
        (["check", "deit_tiny_patch16_224+adder(gain=-1)"], "gain must be above 0"),
        (
            ["check", f"deit_tiny_patch16_224({SMALL})+attn_scale(blocks=2)"],
            "there is no block 2. This model has 2 blocks",
        ),
        (["check", f"deit_tiny_patch16_224({SMALL})+adder+adder"], "adder is already applied on blocks 0, 1"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("unsmooth: ")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_mistake_in_a_spec_is_shown_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "deit(depth="]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["unsmooth: cannot read the model spec: expected a value", "  deit(depth=", " " * 13 + "^"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["check", "--help"], ["list", "--help"], ["demo", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Usage: unsmooth" in out
    assert err == ""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=120)


def test_it_runs_as_a_module() -> None:
    done = run(sys.executable, "-m", "unsmooth", "check", f"deit_tiny_patch16_224({SMALL})+attn_scale")
    assert done.returncode == 0
    assert "attn_scale" in done.stdout
    assert done.stderr == ""


def test_it_runs_as_a_script() -> None:
    done = run(str(Path(sys.executable).with_name("unsmooth")), "chekc")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("unsmooth: unknown command 'chekc'.")
    assert done.stderr.count("\n") == 1


def test_the_demo_tells_its_story(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The demo itself, shortened: two seeds, one epoch of few digits."""
    few = {"epochs": 1, "train_images": 128, "val_images": 40, "vitals_every": 0, "warmup_epochs": 0}
    for name, value in {"SEEDS": 2, "BUDGET": few}.items():
        monkeypatch.setattr(demo, name, value)
    out = printed(capsys, "demo", "--out", str(tmp_path / "trial"), "--jobs", "1")
    headings = [line for line in out.splitlines() if line[:2] in ("1.", "2.", "3.", "4.")]
    assert [heading.partition(" ")[2] for heading in headings] == [
        "A model that does not train", "Diagnosis", "Treatment, as a trial", "Diagnosis again",
    ]  # fmt: skip
    diagnosis = out[out.index(headings[1]) : out.index(headings[2])]
    assert "Tokens have collapsed" in diagnosis
    assert "Why: a skip is missing" in diagnosis
    assert f"  {demo.REMEDY}: " in diagnosis  # the treatment is one that the diagnosis proposes
    assert row(out, "arm")[-2:] == ["infer", "train"]
    block, without, treated = (row(out[out.index(headings[3]) :], name) for name in ("block", "without", "with"))
    assert len(block) == len(without) == len(treated) == 13
    assert float(without[-1]) > float(treated[-1])
    assert (tmp_path / "trial" / "report.html").exists()


def test_blocks_are_written_as_spans() -> None:
    assert spans([0, 1, 2, 5]) == "0–2, 5"
    assert spans([3]) == "3"
    assert spans([0, 2, 3]) == "0, 2–3"


@pytest.mark.parametrize(
    ("known", "tail"),
    [
        ([], " There are none."),
        (["banana", "apple"], " Did you mean 'apple'? Known: apple, banana."),
        (["xyz"], " Known: xyz."),
        ([f"apple{i}" for i in range(LISTED + 1)], f" Closest of {LISTED + 1} names: apple9, apple8, apple7."),
    ],
)
def test_unknown_names_list_what_is_known_unless_it_is_too_much(known: list[str], tail: str) -> None:
    assert str(unknown("fruit", "aple", known)) == f"unknown fruit 'aple'.{tail}"


@pytest.mark.parametrize(
    ("error", "rank", "line"),
    [
        (Interrupted("stopped after epoch 3"), "0", "unsmooth: stopped after epoch 3\n"),
        (Interrupted("stopped after epoch 3"), "1", ""),
        (KeyboardInterrupt(), "0", "unsmooth: interrupted\n"),
    ],
)
def test_an_interruption_is_one_line_of_the_first_process(
    error: BaseException, rank: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: str) -> None:
        raise error

    monkeypatch.setattr("unsmooth.surgery.check.checkup", interrupted)
    monkeypatch.setenv("RANK", rank)
    assert cli.main(["check", "deit_tiny_patch16_224"]) == 130
    assert capsys.readouterr() == ("", line)
