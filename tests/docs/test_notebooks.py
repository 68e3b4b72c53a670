"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tools.notebooks import stripped

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    """`python tools/notebooks.py` strips them."""
    text = path.read_text(encoding="utf-8")
    assert stripped(text) == text


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one epoch where it trains."""
    kernel = tmp_path / "kernels" / "current"
    kernel.mkdir(parents=True)
    arguments = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {arguments}, "display_name": "current", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(path.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell["source"] = re.sub(r"\bepochs=\d+", "epochs=1", cell["source"])
    NotebookClient(notebook, timeout=240, kernel_name="current", resources={"metadata": {"path": tmp_path}}).execute()
    assert all(cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code")
