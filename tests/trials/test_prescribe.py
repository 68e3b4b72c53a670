"""prescribe: it finds the planted cause, prescribes nothing to a healthy host, keeps the budget, and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unsmooth
from unsmooth.cli.main import main
from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.results.prescription import FinalComparison, Prescription
from unsmooth.results.trial import Difference, SeedSpread
from unsmooth.trials import prescribe as prescribing

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=3, mlp_ratio=2)"
ILL = f"{HOST}+no_skip(branch=attn)"
QUICK: dict[str, Any] = {
    "epochs": 2, "warmup_epochs": 0, "train_images": 128, "val_images": 64, "vitals_every": 0, "seeds": 2, "budget": 7,
    "crop_scale": (1.0, 1.0), "hflip": 0, "costs": False,
}  # fmt: skip


def prescribed(spec: str, out: Path, **changes: Any) -> Prescription:
    return unsmooth.prescribe(spec, "digits", out=out, progress=False, **{**QUICK, **changes})


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prescription, Path]:
    out = tmp_path_factory.mktemp("ill")
    return prescribed(ILL, out), out


def test_every_stage_leaves_its_evidence(ill: tuple[Prescription, Path]) -> None:
    given, out = ill
    assert given.verdict.state == "collapsed"
    assert given.candidates[0].spec == HOST and "restore the skip" in given.candidates[0].reason
    assert [rung.epochs for rung in given.rungs] == [2] and len(given.rungs[0].runs) == 2
    assert given.rungs[0].kept == [given.evidence[0].name]
    assert given.evidence[0].seeds == 2 and given.evidence[0].difference is not None
    assert {file.name for file in out.iterdir()} == {
        "diagnosed", "diagnosis.html", "diagnosis.json", "final", "prescription.json", "report.html", "rungs",
    }  # fmt: skip
    assert Prescription.from_json(out / "prescription.json") == given
    assert given.text in str(given).replace("\n", " ")


def test_the_budget_is_stated_and_kept(ill: tuple[Prescription, Path]) -> None:
    budget = ill[0].budget
    assert budget.images == 7 * 2 * 128 and budget.spent == budget.planned <= budget.images
    assert "2 candidates for 2 epochs; then a final comparison of 2 models with 2 seeds" in budget.text
    assert "the budget does not suffice for" in budget.text


def test_the_choice_and_the_comparison_share_neither_seeds_nor_images(ill: tuple[Prescription, Path]) -> None:
    _, out = ill
    runs = {path.parent: path.read_text() for path in out.glob("**/run.json")}
    chosen = [text for path, text in runs.items() if "final" not in path.parts]
    final = [text for path, text in runs.items() if "final" in path.parts]
    assert len(chosen) == 3 and all('"seed": 1000' in text and '"holdout"' in text for text in chosen)
    assert len(final) == 4 and not any('"seed": 1000' in text or '"holdout": 0.1' in text for text in final)


def test_a_search_that_is_done_is_not_repeated(ill: tuple[Prescription, Path]) -> None:
    given, out = ill
    before = {path: path.stat().st_mtime_ns for path in out.glob("**/result.json")}
    again = prescribed(ILL, out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("**/result.json")} == before
    assert again.rungs == given.rungs and again.evidence == given.evidence


@pytest.mark.slow
def test_an_interrupted_search_resumes_to_the_same_result(ill: tuple[Prescription, Path], tmp_path: Path) -> None:
    """Stopped in the diagnosed run, in a rung and in the final comparison, after the first epoch each."""
    stopped: list[str] = []

    def stop(name: str, done: int, total: int, line: Any) -> None:
        if line is not None and line.epoch == 1 and name not in stopped and len(stopped) < 3:
            stopped.append(name)
            raise Interrupted("interrupted")

    for _ in range(3):
        with pytest.raises(Interrupted):
            prescribed(ILL, tmp_path, on_progress=stop)
    resumed = prescribed(ILL, tmp_path, on_progress=stop)
    assert resumed.rungs == ill[0].rungs
    assert [e.difference for e in resumed.evidence] == [e.difference for e in ill[0].evidence]


def test_a_healthy_host_gets_no_recommendation_and_no_trial(tmp_path: Path) -> None:
    given = prescribed(HOST, tmp_path, epochs=1)
    assert given.verdict.state not in prescribing.ILL
    assert given.recommendation is None and given.rungs == [] and given.evidence == []
    assert given.text.startswith("No recommendation: the diagnosis found nothing to treat.")
    assert given.budget.spent < given.budget.images / 5
    assert "No recommendation" in (tmp_path / "report.html").read_text()


def difference(mean: float, low: float, survives: bool | None = None) -> Difference:
    return Difference(mean, low, 2 * mean - low, [mean], low > 0, f"{mean:+}", p=0.01, p_holm=0.02, survives=survives)


def test_the_best_difference_that_is_shown_is_recommended() -> None:
    spread = SeedSpread(0.5, None, [0.5])
    made = [prescribing.TriedCandidate(name, f"{HOST}+{name}", "", "") for name in ("a", "b", "c")]

    def choice(*differences: Difference | None) -> str | None:
        rows = [
            FinalComparison(c.name, 2, 0.95, spread, spread, d, "") for c, d in zip(made, differences, strict=False)
        ]
        chosen = prescribing._choose(rows, made)
        return None if chosen is None else chosen.name

    assert choice(difference(0.1, 0.05), difference(0.2, 0.1)) == "b"
    assert choice(difference(0.1, 0.05, True), difference(0.2, 0.1, False)) == "a", "the other one is not after Holm"
    assert choice(difference(0.1, -0.05)) is choice(None) is choice() is None
    assert choice(difference(-0.1, -0.2)) is None


def test_too_small_a_budget_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"a budget of 4 runs does not suffice: .* need 5"):
        prescribed(ILL, tmp_path / "new", budget=4)
    with pytest.raises(UnsmoothError, match="expected a host name"):
        prescribed("+attn_scale", tmp_path / "new")
    with pytest.raises(UnsmoothError, match="another_setting"):
        prescribed(ILL, tmp_path / "new", another_setting=1)
    assert not (tmp_path / "new").exists()


def test_a_pretrained_model_is_diagnosed_as_it_is(ill: tuple[Prescription, Path], tmp_path: Path) -> None:
    """Its own weights are the start of every run, so nothing is trained to diagnose it."""
    given = prescribed(ILL, tmp_path, checkpoint=ill[1] / "diagnosed" / "last", epochs=1, budget=4)
    assert not (tmp_path / "diagnosed").exists() and given.rungs == []
    assert [row.name for row in given.evidence] == [given.candidates[0].name] == ["without no_skip"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prescribe", ILL, "--data", "digits", "--out", str(tmp_path)]
    assert main([*words, "--budget", "2"]) == 2
    assert "a budget of 2 runs does not suffice" in capsys.readouterr().err
    (tmp_path / "report.html").write_text("mine")
    assert main([*words, "--budget", "9"]) == 2
    assert "would be overwritten" in capsys.readouterr().err


def test_findings_without_candidates_are_no_recommendation() -> None:
    class Made:
        verdict, verdict_text = "suspicious", "Only similarity is abnormal."

    made: Any = Made()
    text = prescribing._text(made, [], [], None)
    assert text == (
        "No recommendation: no finding of the diagnosis has a candidate that fits. Only similarity is abnormal."
    )


@pytest.mark.full
@pytest.mark.slow
def test_the_planted_cause_is_found(tmp_path: Path) -> None:
    """A host without the skip of its attention: the search restores it, with an interval above zero."""
    wider = ILL.replace("embed_dim=16", "embed_dim=32")
    given = prescribed(wider, tmp_path, epochs=4, train_images=1000, val_images=0, seeds=3, budget=9, lr=6e-3,
                       batch_size=32, warmup_epochs=1, validate_every=4)  # fmt: skip
    assert given.recommendation in {candidate.spec for candidate in given.candidates}
    shown = given.evidence[0].difference
    assert shown is not None and shown.decided and shown.low > 0.1
