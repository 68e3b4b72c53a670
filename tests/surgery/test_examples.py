"""The examples in the docstrings of the public functions run and show what they say."""

from __future__ import annotations

import doctest
import sys

import pytest

import unsmooth

NAMES = (
    "applied", "apply", "auxiliary_loss", "create_model", "fold", "import_checkpoint", "list_remedies", "load", "parts",
    "plan", "remove", "save",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_function(name: str) -> None:
    function = getattr(unsmooth, name)
    module = sys.modules[function.__module__]
    tests = doctest.DocTestFinder(recurse=False).find(function, name, module)
    assert sum(len(test.examples) for test in tests) > 1
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
