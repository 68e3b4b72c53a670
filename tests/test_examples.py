"""The examples in the docstrings of all public functions and classes run and print what they say."""

from __future__ import annotations

import doctest
import inspect
import sys
from typing import Any

import pytest
import torch

import unsmooth
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.results.bench import Bench
from unsmooth.results.diagnosis import Reading
from unsmooth.results.evaluation import Evaluation
from unsmooth.results.trial import Trial

FUNCTIONS = [getattr(unsmooth, name) for name in unsmooth.__all__]
RETURNED = [Bench, Evaluation, Reading, Recipe, Trial, load_recipe]


@pytest.mark.parametrize("public", [*FUNCTIONS, *RETURNED], ids=lambda public: public.__name__)
def test_the_example_runs(public: Any) -> None:
    torch.manual_seed(0)
    module = sys.modules[public.__module__]
    tests = doctest.DocTestFinder(recurse=False).find(public, public.__name__, module)
    assert sum(len(test.examples) for test in tests) > 1
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("public", FUNCTIONS, ids=lambda public: public.__name__)
def test_docstrings_have_google_sections(public: Any) -> None:
    text = inspect.getdoc(public) or ""
    if inspect.isclass(public):
        return
    signature = inspect.signature(public)
    assert ("Args:" in text) == bool(signature.parameters)
    for name in signature.parameters:
        assert f"{name}: " in text, name
    assert ("Returns:" in text or "Yields:" in text) == (signature.return_annotation != "None")
