"""The page, the figure and the text of a prescription, with invented numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.results.prescription import Budget, FinalComparison, Prescription, Rung, RungRun, TriedCandidate
from unsmooth.results.provenance import Provenance
from unsmooth.results.trial import Difference, SeedSpread, TrialData
from unsmooth.results.verdict import Verdict


def prescription(shown: bool = True, candidates: int = 3) -> Prescription:
    names = ["attn_scale", "<b>odd</b>$", "feat_scale"][:candidates]
    tried = [TriedCandidate(name, f"host+{name}", f"reason of {name}", "token_collapse") for name in names]
    runs = [RungRun(name, None if i == 2 else 0.5 + i / 10, f"rungs/{i}", "diverged" if i == 2 else None)
            for i, name in enumerate(names)]  # fmt: skip
    low = 0.02 if shown else -0.02
    difference = Difference(0.05, low, 0.1 - low, [0.05, 0.05], shown, f"+5.0 points ({100 * low:+.1f} to …)")
    spread = SeedSpread(0.6, 0.01, [0.6, 0.6])
    return Prescription(
        spec="host", data=TrialData("digits", 1000, 200, 10, None, {}), recipe_name="small", epochs=8,
        verdict=Verdict("collapsed", "Tokens have collapsed.", [0]), findings=[],
        budget=Budget(9.0, 72_000, 60_000, 60_000, "3 candidates for 2 epochs"), candidates=tried,
        rungs=[Rung(2, runs, names[:2]), Rung(4, runs[:2], names[1:2])] if candidates else [],
        evidence=[FinalComparison(names[1], 2, 0.95, spread, spread, difference, "final")] if candidates else [],
        recommendation=tried[1].spec if candidates and shown else None, text="What to do.",
        provenance=Provenance("1", "2", "3", "unsmooth prescribe host", 1.0),
    )  # fmt: skip


@pytest.mark.parametrize(("shown", "candidates"), [(True, 3), (False, 3), (False, 0)])
def test_the_page_states_recommendation_evidence_and_budget(shown: bool, candidates: int, tmp_path: Path) -> None:
    made = prescription(shown, candidates)
    made.save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert ("Recommended: &lt;b&gt;odd" in text) == shown and ("No recommendation</h1>" in text) != shown
    assert "<script" not in text and "<b>odd" not in text
    assert "72,000 training images of digits" in text and "Used: 60,000" in text
    assert ("final/report.html" in text) == ("data:image/svg+xml" in text) == bool(candidates)


def test_it_is_written_and_read_without_loss(tmp_path: Path) -> None:
    made = prescription()
    made.to_json(tmp_path / "prescription.json")
    assert Prescription.from_json(tmp_path / "prescription.json") == made


def test_the_text_shows_every_candidate_with_its_rungs() -> None:
    text = str(prescription())
    assert "50.0 %" in text and "failed" in text and "+5.0 points" in text
    assert "Trained on 60,000 images; the budget was 72,000 (9 runs)." in text


@pytest.mark.parametrize("candidates", [3, 0])
def test_the_figure_is_drawn(candidates: int, tmp_path: Path) -> None:
    prescription(False, candidates).save(tmp_path / "search.svg")
    assert (tmp_path / "search.svg").read_text().count("<path") > 4
    with pytest.raises(UnsmoothError, match="gif"):
        prescription().save(tmp_path / "search.gif")
