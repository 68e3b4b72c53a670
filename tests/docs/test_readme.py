"""The README's Python runs as it stands, and its tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unsmooth
from tools import generate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    promised = re.findall(r"print\(unsmooth\.applied\(model\)\)\s*# (.*)", code)
    assert promised
    assert promised[0] in printed


def test_every_remedy_is_in_the_table() -> None:
    section = README.split("## Remedies")[1].split("## Cost")[0]
    assert set(unsmooth.list_remedies()) <= set(re.findall(r"`(\w+)`", section))


def test_links_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("page", ["remedies", "vitals", "verdict", "recipes", "trials", "gallery"])
def test_pages_made_of_registries_are_current(page: str) -> None:
    """`make docs` writes them."""
    assert (ROOT / "docs" / f"{page}.md").read_text() == getattr(generate, f"{page}_page")()


def test_the_page_of_hosts_has_every_host_and_remedy() -> None:
    page = (ROOT / "docs" / "hosts.md").read_text()
    assert all(f"| {name} |" in page for name in generate.HOSTS)
    assert all(f"`{key}`" in page for key in unsmooth.list_remedies())
