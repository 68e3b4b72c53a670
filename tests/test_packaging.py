"""What an installation contains, and what a script next to a clone imports."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_editable, build_wheel

from unsmooth import __version__

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = set(zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path))).namelist())
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "unsmooth").rglob("*") if path.is_file()}
    assert names >= {name for name in files if "__pycache__" not in name}
    assert {name.split("/")[0] for name in names} == {"unsmooth", f"unsmooth-{__version__}.dist-info"}


def test_a_script_next_to_a_clone_imports_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone's folder has the name of the package, which Python may take for a namespace package without content."""
    monkeypatch.chdir(ROOT)
    clone = tmp_path / "home" / "unsmooth"
    clone.mkdir(parents=True)
    (clone / "unsmooth").symlink_to(ROOT / "unsmooth")
    site = tmp_path / "site"
    zipfile.ZipFile(tmp_path / build_editable(str(tmp_path))).extractall(site)
    for path in site.glob("*.pth"):
        path.write_text(path.read_text().replace(str(ROOT), str(clone)))
    script = tmp_path / "home" / "script.py"
    script.write_text(f"import site; site.addsitedir({str(site)!r}); import unsmooth; print(unsmooth.__version__)")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-S", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert run.stdout.strip() == __version__, run.stderr


def test_citation_and_changelog_have_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in citation
    assert any(line.startswith("date-released: ") for line in citation)
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    released = next(heading for heading in headings if heading != "## Unreleased")
    assert released.split()[1] == __version__
