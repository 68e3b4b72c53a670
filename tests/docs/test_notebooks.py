"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from tests.support.runs import ended, in_child
from tools.notebooks import stripped

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    """`python tools/notebooks.py` strips them."""
    text = path.read_text(encoding="utf-8")
    assert stripped(text) == text


def with_one_epoch(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell["source"] = re.sub(r"\bepochs=\d+", "epochs=1", cell["source"])
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path) -> None:
    """In a shell of IPython, with one epoch where it trains."""
    cells = [cell["source"] for cell in with_one_epoch(path).cells if cell["cell_type"] == "code"]

    def work() -> None:
        os.environ.update(MPLBACKEND="agg", IPYTHONDIR=str(tmp_path / "ipython"))
        os.chdir(tmp_path)
        shell = InteractiveShell()
        shell.display_formatter.active_types = shell.display_formatter.format_types  # as in a notebook
        for cell in cells:
            shell.run_cell(cell, store_history=False).raise_error()

    assert cells
    assert ended(in_child(work), 240) == 0


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_in_a_kernel(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tmp_path / "kernels" / "current"
    kernel.mkdir(parents=True)
    arguments = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {arguments}, "display_name": "current", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(path.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = with_one_epoch(path)
    NotebookClient(notebook, timeout=240, kernel_name="current", resources={"metadata": {"path": tmp_path}}).execute()
    assert all(cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code")
