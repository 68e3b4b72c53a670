"""Experiments of papers, run: one of each kind, on tiny budgets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import unsmooth
from unsmooth.cli.main import main
from unsmooth.papers.small_data import NUMBERS, SPLITS, scenes, write_ade20k, write_vqa
from unsmooth.tasks.vqa.answers import normalise, soft_accuracy

TINY = ["--epochs", "1", "--warmup-epochs", "0", "--train-images", "100", "--val-images", "50", "--seeds", "1"]


def run(out, *arguments: str) -> dict:
    assert main(["paper", *arguments, "--jobs", "1", "--out", str(out)]) == 0
    assert (out / "paper.md").read_text().startswith("# ")
    return json.loads((out / "paper.json").read_text())


def refusal(capsys, *arguments: str) -> str:
    assert main(["paper", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_table_of_trained_models(tmp_path, capsys) -> None:
    found = run(tmp_path, "context_broadcasting/figure_s1", "--small", *TINY, "--validate-every", "1")
    plain, treated = found["groups"][0]["rows"]
    assert [row["name"] for row in (plain, treated)] == ["plain", "CB"]
    assert 0 <= treated["values"]["top1"]["measured"] <= 100
    assert treated["values"]["top1"]["gain"] == pytest.approx(
        treated["values"]["top1"]["measured"] - plain["values"]["top1"]["measured"]
    )
    assert plain["curves"]["training loss"]["at"] == [1]
    assert (tmp_path / found["groups"][0]["picture"]).stat().st_size > 1000
    assert any("published: ImageNet-1K" in line for line in found["scale"]["differs"])
    assert "CB" in capsys.readouterr().out
    before = (tmp_path / "ViT-S").stat().st_mtime_ns, json.dumps(found["groups"])
    again = run(tmp_path, "context_broadcasting/figure_s1", "--small", *TINY, "--validate-every", "1")
    assert json.dumps(again["groups"]) == before[1]  # nothing is trained twice


@pytest.mark.slow
def test_a_figure_of_small_models_that_are_trained_first(tmp_path) -> None:
    """Figure 4 compares three models; each panel shows two of them."""
    found = run(tmp_path, "anti_oversmoothing/figure4", "--small", *TINY[:-2])
    (group,) = found["groups"]
    assert (tmp_path / group["picture"]).stat().st_size > 1000
    maps, tokens = "similarity of maps", "similarity of tokens"
    assert [set(row["curves"]) for row in group["rows"]] == [{maps, tokens}, {maps}, {tokens}]
    assert len(group["rows"][0]["curves"][maps]["mean"]) == 12


@pytest.mark.slow
def test_a_figure_of_one_small_model_that_is_trained_first(tmp_path) -> None:
    """Figure 6 shows what models with AttnScale learned, next to nothing else."""
    found = run(tmp_path, "anti_oversmoothing/figure6", "--small", *TINY[:-2])
    for group, layers in zip(found["groups"], (6, 12), strict=True):
        (row,) = group["rows"]
        assert row["name"] == "attn_scale"
        assert (tmp_path / group["picture"]).stat().st_size > 1000
        omega = row["curves"]["ω, mean over heads"]["mean"]
        assert len(omega) == layers and any(omega)
    assert found["scale"]["data"] == "digits, 100 training images, 1 epoch"
    before = json.dumps(found["groups"])
    again = run(tmp_path, "anti_oversmoothing/figure6", "--small", *TINY[:-2])
    assert json.dumps(again["groups"]) == before  # nothing is trained twice


@pytest.mark.slow
def test_fine_tuning_starts_from_a_trained_host_and_copies_are_not_run_twice(tmp_path) -> None:
    found = run(tmp_path, "anti_oversmoothing/table3", "--small", *TINY)
    first, second = found["groups"]
    assert second["like"] == first["name"]
    assert all(value["measured"] is None for row in second["rows"] for value in row["values"].values())
    assert (tmp_path / "CaiT-XXS_24_layers" / "start" / "result.json").exists()
    runs = list((tmp_path / "CaiT-XXS_24_layers" / "runs").glob("*/seed0/run.json"))
    assert {json.loads(path.read_text())["checkpoint"] for path in runs} == {
        str(tmp_path / "CaiT-XXS_24_layers" / "start" / "last")
    }


def test_a_model_of_ones_own_under_a_figure(tmp_path) -> None:
    spec = (
        "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=3, num_classes=10)"
    )
    found = run(tmp_path, "anti_oversmoothing/figure4", "--spec", spec, "--data", "digits")
    (row,) = found["groups"][0]["rows"]
    assert row["spec"] == spec
    assert found["scale"]["differs"][-1].startswith("the weights are random")
    assert len(row["curves"]["similarity of tokens"]["mean"]) == 3
    # Claims about the plain host are held against a model without remedies, those about other arms are not.
    assert [one["arm"] for claim in found["claims"] for one in claim["checks"]] == ["plain", "plain"]
    assert (tmp_path / found["groups"][0]["picture"]).exists()


def test_a_theorem(tmp_path) -> None:
    found = run(tmp_path, "anti_oversmoothing/theorem1", "--small")
    assert all(one["state"] == "confirmed" for claim in found["claims"] for one in claim["checks"])


def test_the_energy_of_an_adder_transformer(tmp_path) -> None:
    found = run(tmp_path, "adder_attention/energy", "--small", "--only", "DeiT-Ti")
    _, adder = found["groups"][0]["rows"]
    assert 1 / 3 <= adder["values"]["energy"]["gain"] <= 1 / 2  # two to three times less, as published
    assert "Assumes: arithmetic only: memory traffic" in (tmp_path / "paper.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measure"), [("segmentation", "miou"), ("vqa", "accuracy")])
def test_tables_of_other_tasks(tmp_path, name: str, measure: str) -> None:
    found = run(
        tmp_path, f"context_broadcasting/{name}", "--small", "--epochs", "1", "--warmup-epochs", "0", "--seeds", "1"
    )
    assert all(0 <= row["values"][measure]["measured"] <= 100 for row in found["groups"][0]["rows"])


@pytest.mark.slow
def test_pre_training_then_fine_tuning(tmp_path) -> None:
    found = run(tmp_path, "always_skip_attention/mae", "--small", *TINY)
    assert all(row["values"]["top1"]["measured"] is not None for row in found["groups"][0]["rows"])
    tuned = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/seed0/finetuning/run.json")]
    assert all(run["checkpoint"].endswith("pretraining/last/encoder") for run in tuned)
    assert sorted(run["spec"].count("+token_graying") for run in tuned) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["anti_oversmoothing/table1"],
            "is published on ImageNet-1K. Give it as data (--data), or use small (--small).",
        ),
        (["anti_oversmoothing/table1", "--data", "nowhere"], "nowhere"),
        (["anti_oversmoothing/figure4"], "Give checkpoints (--checkpoint) for each, or pretrained"),
        (
            ["anti_oversmoothing/table1", "--small", "--only", "DeiT"],
            "unknown group of anti_oversmoothing/table1 'DeiT'",
        ),
        (["anti_oversmoothing/table1", "--spec", "x"], "is a trial, which does not support spec (--spec)"),
        (["anti_oversmoothing/theorem1", "--data", "digits"], "is a theorem, which does not support data (--data)"),
        (["anti_oversmoothing/theorem1", "--epochs", "3"], "does not support a recipe field"),
        (
            ["anti_oversmoothing/figure4", "--small", "--seeds", "3"],
            "is a diagnosis, which does not support seeds (--seeds)",
        ),
        (["anti_oversmoothing/figure4", "--spec", "x", "--epochs", "3"], "a recipe field with spec (--spec)"),
        (["anti_oversmoothing/figure4", "--pretrained"], "there are no pretrained weights with attn_scale, feat_scale"),
        (["adder_attention/energy", "--checkpoint", "x"], "does not support checkpoints (--checkpoint)"),
        (["anti_oversmoothing/table1", "--small", "--jobs", "-4"], "jobs must be at least 1"),
        (["context_broadcasting/segmentation", "--data", "digits"], "fine-tunes trained hosts"),
        (["anti_oversmoothing/table1", "--small", "--seeds", "0"], "seeds must be at least 1"),
        (["anti_oversmoothing/table1", "--small", "--epoch", "1"], "unknown option or recipe field '--epoch'"),
        (
            ["anti_oversmoothing/table3", "--data", "digits"],
            "fine-tunes trained hosts. Give pretrained (--pretrained) or checkpoints (--checkpoint)",
        ),
        (["anti_oversmoothing/figure3"], "cannot be run: nothing to measure: a drawing"),
    ],
)
def test_mistakes(tmp_path, capsys, monkeypatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, *arguments)
    assert words in said
    assert "Traceback" not in said


def test_made_scenes_are_in_the_format_of_ade20k(tmp_path) -> None:
    write_ade20k(tmp_path)
    for split, count in SPLITS.items():
        pictures, classes = (sorted((tmp_path / kind / split).iterdir()) for kind in ("images", "annotations"))
        assert [p.stem for p in pictures] == [p.stem for p in classes]
        assert len(pictures) == count
    labels = np.array(Image.open(tmp_path / "annotations" / "training" / "ADE_train_00000001.png"))
    picture, drawn, cells = next(scenes("training"))
    assert (labels == drawn).all()
    assert set(np.unique(labels)) == {1, *(cell + 2 for cell in cells if cell is not None)}
    assert picture[drawn > 1].mean() > picture[drawn == 1].mean()  # ink is brighter than the ground
    assert (next(scenes("training"))[0] == picture).all()


def test_made_questions_are_in_the_format_of_vqav2(tmp_path) -> None:
    write_vqa(tmp_path)
    questions = json.loads((tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json").read_text())["questions"]
    answers = json.loads((tmp_path / "v2_mscoco_val2014_annotations.json").read_text())["annotations"]
    assert [q["question_id"] for q in questions] == [a["question_id"] for a in answers]
    assert len({q["question_id"] for q in questions}) == len(questions) == 3 * SPLITS["validation"]
    for (_, _, cells), at in zip(scenes("validation"), range(0, len(questions), 3), strict=True):
        assert answers[at]["multiple_choice_answer"] == str(sum(cell is not None for cell in cells))
        wanted = NUMBERS.index(questions[at + 2]["question"].rstrip("?").split()[-1])
        assert answers[at + 2]["multiple_choice_answer"] == ("yes" if wanted in cells else "no")
        assert len(answers[at]["answers"]) == 10
        assert all(_best(answers[at + k]) == 1 for k in range(3))


def _best(annotation: dict) -> float:
    """What the right answer scores: at small scale, too, a question must have one."""
    answers = [one["answer"] for one in annotation["answers"]]
    return soft_accuracy(normalise(annotation["multiple_choice_answer"]), answers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "words"),
    [("figure8", "there is no trained model of plain to diagnose"), ("figure2", "is not finite")],
)
def test_models_that_diverge_are_reported(tmp_path, capsys, figure: str, words: str) -> None:
    said = refusal(
        capsys, f"anti_oversmoothing/{figure}", "--small", *TINY[:-2], "--lr", "1e20", "--clip-grad", "0", "--jobs",
        "1", "--out", str(tmp_path),
    )  # fmt: skip
    assert words in said


@pytest.mark.slow
def test_what_a_checkpoint_brings_along_is_named(tmp_path) -> None:
    spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
    unsmooth.save(unsmooth.create_model(spec + "+context_broadcast", num_classes=10), tmp_path / "treated")
    own = f"{spec[:-1]}, num_classes=10)"
    for given in ([own, "--checkpoint", str(tmp_path / "treated")], [str(tmp_path / "treated")]):
        found = run(tmp_path / "out", "anti_oversmoothing/figure11", "--data", "digits", "--spec", *given)
        assert found["groups"][0]["rows"][0]["name"] != "plain"
        assert all(claim["checks"] == [] for claim in found["claims"])
