"""The examples in all docstrings run and print what they say. Public functions and classes have one."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth

PACKAGE = Path(unsmooth.__file__).parent
FUNCTIONS = [getattr(unsmooth, name) for name in unsmooth.__all__]
FILES = sorted(file for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8"))
MODULES = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES]


@pytest.mark.parametrize("name", [name.removesuffix(".__init__") for name in MODULES])
def test_the_examples_run(name: str) -> None:
    torch.manual_seed(0)
    failures, tried = doctest.testmod(import_module(name))
    assert tried > 0 and failures == 0


@pytest.mark.parametrize("public", FUNCTIONS, ids=lambda public: public.__name__)
def test_public_names_have_an_example(public: Any) -> None:
    assert (inspect.getdoc(public) or "").count(">>> ") > 1


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
