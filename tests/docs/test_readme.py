"""The README is short, its Python prints what it says, its commands run, and its tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unsmooth
from unsmooth.cli.main import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def check_printed(printed: str, promised: str) -> None:
    """Words are equal; numbers may differ a little between versions of torch."""
    assert NUMBER.sub("N", printed) == NUMBER.sub("N", promised)
    for number, expected in zip(NUMBER.findall(printed), NUMBER.findall(promised), strict=True):
        assert float(number) == pytest.approx(float(expected), abs=0.03)


def test_it_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


@pytest.mark.slow
def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (promised,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    check_printed(capsys.readouterr().out, promised)


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (unsmooth .*)$", README.split("## Command line")[1].split("##")[0], flags=re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        arguments = shlex.split(line)[1:]
        if "--epochs" in arguments:
            arguments[arguments.index("--epochs") + 1] = "1"
        assert main(arguments) == 0, line


def test_every_remedy_is_in_the_table() -> None:
    section = README.split("## Remedies")[1].split("## Models")[0]
    assert set(unsmooth.list_remedies()) == set(re.findall(r"\(docs/remedies/(\w+)\.md\)", section))


def test_the_number_of_vitals_is_right() -> None:
    assert f"[{len(unsmooth.list_vitals())} vitals]" in README
