"""How much a diagnosis computes: samples, a quick diagnosis, no matrix twice, one thread for small decompositions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unsmooth
from unsmooth.diagnosis import measure as measuring
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.measure import singular_values
from unsmooth.errors import UnsmoothError
from unsmooth.utils.threads import one_thread

SPEC = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5)"


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_quick_diagnosis_reaches_a_verdict_from_few_vitals() -> None:
    torch.manual_seed(0)
    diagnosis = unsmooth.diagnose(SPEC, images(8), quick=True)
    assert diagnosis.keys() == [v.key for v in registry.select("quick")]
    assert diagnosis.verdict not in ("unknown", "broken")
    assert diagnosis.reference is None and diagnosis.samples == []
    assert diagnosis["token_cosine"].images == [8, 8]
    assert diagnosis["effective_rank"].images == [4, 4]


def test_quick_and_names_of_vitals_exclude_each_other() -> None:
    with pytest.raises(UnsmoothError, match=r"quick selects the vitals itself \(got vitals=token_cosine\)"):
        unsmooth.diagnose(SPEC, images(2), "token_cosine", quick=True)


def test_a_vital_that_is_named_is_measured_on_more_images() -> None:
    by_default = unsmooth.diagnose(SPEC, images(10), reference=False)
    by_name = unsmooth.diagnose(SPEC, images(10), "equivalent_rank", reference=False)
    assert by_default["equivalent_rank"].images == [2, 2] and by_default.vitals["equivalent_rank"].sample == 2
    assert by_name["equivalent_rank"].images == [8, 8] and by_name.vitals["equivalent_rank"].sample == 8


def test_bounds_are_measured_on_request() -> None:
    theory = {v.key for v in registry.select("theory")}
    assert theory == {"smoothing_bound", "diversity_bound", "condition_bound", "mixing_rate"}
    assert not theory & {v.key for v in registry.select("default")}
    assert theory <= {v.key for v in registry.select("default,theory")}


def test_no_matrix_is_decomposed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.extend(matrix.float().contiguous().numpy().tobytes() for matrix in x.flatten(0, -3))
        return singular_values(x)

    monkeypatch.setattr(measuring, "singular_values", counted)
    torch.manual_seed(0)
    unsmooth.diagnose(SPEC, images(6), reference=False)
    assert seen and len(seen) == len(set(seen))


def test_decompositions_run_on_one_thread_and_leave_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before, threads, eigvalsh = torch.get_num_threads(), [], torch.linalg.eigvalsh

    def watched(x: torch.Tensor, *args: Any) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return eigvalsh(x, *args)

    monkeypatch.setattr(torch.linalg, "eigvalsh", watched)
    torch.set_num_threads(2)
    try:
        singular_values(torch.eye(5))
        with pytest.raises(ZeroDivisionError), one_thread():
            _ = 1 / 0
        assert threads == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
