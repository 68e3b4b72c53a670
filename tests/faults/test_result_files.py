"""Result files with missing, retyped or extreme values: read and shown, or refused in one line."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unsmooth
from tests.support.trial_example import trial
from unsmooth.errors import UnsmoothError
from unsmooth.report.page import page
from unsmooth.report.trial_page import trial_page
from unsmooth.results.trial import Trial

VIT = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8, embed_dim=12, num_heads=3)+attn_scale"
OTHER = (None, "x", "", -1, 10**400, float("nan"), float("inf"), [], {}, [None], True)


def mutations(value: Any, others: tuple[Any, ...] = OTHER) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Places in nested values (of a list, the first and the last), and what to put there."""

    def places(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        keys = list(node) if isinstance(node, dict) else [] if not isinstance(node, list) else [0, len(node) - 1]
        for key in dict.fromkeys(keys if node else []):
            yield (*path, key)
            yield from places(node[key], (*path, key))

    for i, path in enumerate(places(value, ())):
        changes = ["missing", *others]
        for change in (changes[i % len(changes)], changes[(i * 7 + 3) % len(changes)]):
            yield path, change


def mutate(value: Any, path: tuple[Any, ...], change: Any) -> Any:
    mutated = copy.deepcopy(value)
    parent = mutated
    for key in path[:-1]:
        parent = parent[key]
    if change == "missing":
        del parent[path[-1]]
    else:
        parent[path[-1]] = change
    return mutated


def check(kind: Any, values: dict[str, Any], show: Any, every: int) -> None:
    """Apply every so many mutations, read the result and show it."""
    read, broken = 0, []
    for path, change in itertools.islice(mutations(values), 0, None, every):
        what = f"{'.'.join(map(str, path))}: {str(change)[:20]}"
        try:
            result = kind.from_dict(mutate(values, path, change))
            show(result)
            read += 1
        except UnsmoothError as error:
            if len(str(error)) > 1000:
                broken.append(f"{what}: a long message")
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__}: {error}")
    assert not broken, "\n".join(broken)
    assert read


@pytest.fixture(scope="module")
def diagnosis() -> dict[str, Any]:
    vitals = "token_cosine,effective_rank,max_logit"
    return unsmooth.diagnose(VIT, limit=2, vitals=vitals, reference=False).to_dict()


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_a_mutated_diagnosis_is_shown_or_refused(diagnosis: dict[str, Any], every: int) -> None:
    check(unsmooth.Diagnosis, diagnosis, str, every)


@pytest.mark.full
def test_a_mutated_diagnosis_has_a_page_or_is_refused(diagnosis: dict[str, Any]) -> None:
    check(unsmooth.Diagnosis, diagnosis, lambda result: page([result]), 1)


@pytest.mark.parametrize("every", [80, pytest.param(1, marks=pytest.mark.full)])
def test_a_mutated_trial_is_shown_or_refused(every: int) -> None:
    check(Trial, trial(epochs=1), str, every)


@pytest.mark.full
def test_a_mutated_trial_has_a_page_or_is_refused() -> None:
    check(Trial, trial(epochs=1), trial_page, 5)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"kind": ' * 50_000, "NaN", "1e999", "", "\x00", '{"kind":"diagnosis","format":1}', "9" * 5000],
)
def test_a_file_of_anything_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UnsmoothError) as raised:
        unsmooth.Diagnosis.from_json(path)
    assert len(str(raised.value).splitlines()) == 1
    json.dumps(str(raised.value))


def test_a_series_has_a_value_for_each_block(diagnosis: dict[str, Any]) -> None:
    mutated = copy.deepcopy(diagnosis)
    del mutated["vitals"]["token_cosine"]["parts"][""][0]
    with pytest.raises(UnsmoothError, match=r"token_cosine has 1 values for 2 blocks"):
        unsmooth.Diagnosis.from_dict(mutated)


def test_no_number_is_too_large(diagnosis: dict[str, Any]) -> None:
    mutated = copy.deepcopy(diagnosis)
    mutated["vitals"]["token_cosine"]["parts"][""][0]["images"] = 10**400
    with pytest.raises(UnsmoothError, match=r"a number has 1329 bits"):
        unsmooth.Diagnosis.from_dict(mutated)
