"""Strip the outputs of the notebooks, or check that they have none: python tools/notebooks.py [--check] [FILE …]"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "notebooks"


def stripped(text: str) -> str:
    """The notebook without outputs, counts and metadata that depend on the machine."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook["metadata"] = {"language_info": {"name": "python"}}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    names = [argument for argument in sys.argv[1:] if argument != "--check"]
    changed = []
    for path in map(Path, names) if names else sorted(FOLDER.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        if stripped(text) != text:
            changed.append(str(path))
            if "--check" not in sys.argv:
                path.write_text(stripped(text), encoding="utf-8")
    if changed and "--check" in sys.argv:
        print("These notebooks have outputs. Run `python tools/notebooks.py`:", *changed, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
