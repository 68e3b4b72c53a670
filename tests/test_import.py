"""`import unsmooth` is light: public names are imported on first use, and nothing else is shown."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import unsmooth

OPTIONAL = {
    "matplotlib", "pandas", "plotly", "rich", "scipy", "sklearn", "tensorboardX", "transformers", "typer",
}  # fmt: skip
HEAVY = {"torch", "torchvision", "timm", "numpy", "pydantic"}


def modules_after(*steps: str) -> list[set[str]]:
    """Modules that are imported after each step of code, in one fresh process."""
    show = "\nprint(json.dumps([name for name, module in sys.modules.items() if module]))\n"
    script = "import json, sys\n" + "".join(step + show for step in steps)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return [set(json.loads(line)) for line in done.stdout.splitlines()[-len(steps) :]]


def test_import_loads_no_room_and_no_heavy_library() -> None:
    (modules,) = modules_after("import unsmooth")
    assert {name for name in modules if name.partition(".")[0] == "unsmooth"} == {
        "unsmooth",
        "unsmooth._version",
        "unsmooth.rendering",
    }
    assert not (OPTIONAL | HEAVY) & modules


def test_surgery_needs_torch_and_timm_only_and_names_load_no_report() -> None:
    """Without fcntl, as on Windows. One process for all names: each starts torch anew, which takes seconds."""
    surgery, modules = modules_after(
        "sys.modules['fcntl'] = None\n"
        "import unsmooth; unsmooth.apply, unsmooth.create_model, unsmooth.fold, unsmooth.save",
        ", ".join(f"unsmooth.{name}" for name in unsmooth.__all__),
    )
    assert {"torch", "timm"} <= surgery
    assert not OPTIONAL & surgery
    assert "unsmooth.trials.compare" in modules and "fcntl" not in modules
    assert not (OPTIONAL - {"scipy"} | {"jinja2"}) & modules


def test_settings_and_recipes_need_no_torch() -> None:
    (modules,) = modules_after(
        "import unsmooth.training.settings, unsmooth.trials.settings, unsmooth.evaluation.settings\n"
        "import unsmooth.diagnosis.settings, unsmooth.recipes.recipe"
    )
    assert not (OPTIONAL | HEAVY - {"pydantic", "numpy"}) & modules


def test_dir_shows_public_names_only() -> None:
    assert dir(unsmooth) == sorted([*unsmooth.__all__, "__version__"])


@pytest.mark.parametrize("name", unsmooth.__all__)
def test_every_public_name_is_found(name: str) -> None:
    value = getattr(unsmooth, name)
    assert value.__name__ == name
    assert value.__module__.startswith("unsmooth.")
    assert getattr(unsmooth, name) is value


@pytest.mark.parametrize("name", ["aply", "_apply", "torch"])
def test_other_names_raise(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'unsmooth' has no attribute '{name}'"):
        getattr(unsmooth, name)
