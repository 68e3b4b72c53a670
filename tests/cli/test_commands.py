"""The table of commands: their options and summaries, and what is imported for help, versions and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from unsmooth._version import __version__
from unsmooth.cli.main import COMMANDS, load_command, main

# Scripts rely on these names.
OPTIONS = {
    "bench": "--amp --batch-size --device --image-size --json --no-throughput --out --precision --rounds --throughput "
    "--training",
    "check": "--device",
    "compare": "--cluster --confidence --controls --costs --data --data-dir --device --from --jobs --json "
    "--mask-classes --memory-images --memory-tokens --neighbours --no-costs --no-reduce-zero-label --out --power "
    "--pretrained --recipe --reduce-zero-label --robustness --run-cpus --run-gpus --seeds --strict-data --sweep "
    "--sweep-epochs --tokens --until --val-data --vitals --workers",
    "demo": "--jobs --out",
    "diagnose": "--batch-size --blocks --checkpoint --data-dir --device --format --images --json --limit --no-prefix "
    "--no-reference --out --prefix --pretrained --quick --reference --vitals",
    "evaluate": "--amp --batch-size "
    "--checkpoint --corrupted --data --data-dir --device --fgsm --image-size --imagenet-a "
    "--imagenet-r --imagenet-v2 --json --limit --mask-classes --memory-images --memory-tokens --neighbours "
    "--no-reduce-zero-label --occlusion --out --real --reduce-zero-label --strict-data --throughput --tokens --workers",
    "import": "--doubled --entry --no-doubled --out --source --spec",
    "list": "",
    "paper": "--checkpoint --data --data-dir --device --jobs --json --only --out --pretrained --seeds --small --spec "
    "--workers",
    "prescribe": "--budget --candidates --confidence --costs --data --data-dir --device --factor --finalists --from "
    "--jobs --json --no-costs --out --pretrained --recipe --seeds --strict-data --val-data --workers",
    "train": "--checkpoint --data --data-dir --device --option --out --pretrained --recipe --save-every --seed "
    "--shard --strict-data --task --val-data --workers",
}
HEAVY = {"torch", "timm", "torchvision", "numpy", "sklearn", "matplotlib", "plotly", "transformers"}
LIGHT = {"unsmooth", "unsmooth._version", "unsmooth.errors", "unsmooth.rendering", "unsmooth.cli", "unsmooth.cli.main",
         "unsmooth.cli.recipe_options", "unsmooth.cli.terminal"}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command(name: str) -> None:
    command = load_command(name)
    names = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    assert sorted(word for word in names if word.startswith("-")) == OPTIONS[name].split()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_its_first_line(name: str) -> None:
    assert load_command(name).help.split("\n")[0] == COMMANDS[name].summary


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.replace("]...", "").replace("}...", "")  # nothing is cut
    flat = " ".join(out.split())
    assert f"unsmooth {name} " in flat and COMMANDS[name].summary in flat
    assert all(option in flat for option in OPTIONS[name].split())


def test_the_overview_shows_every_summary(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert {f"{name:<9}  {entry.summary}" for name, entry in COMMANDS.items()} <= lines


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    """Exit code of a command line, and the modules that it imported, in a fresh process."""
    script = (
        "import json, sys\n"
        "from unsmooth.cli.main import main\n"
        f"code = main({list(arguments)!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 0), (["--help"], 0), (["--version"], 0), (["trian", "deit"], 2), (["--fast"], 2)],
)
def test_help_version_and_wrong_commands_import_no_room(arguments: list[str], code: int) -> None:
    returned, modules = modules_after(*arguments)
    assert returned == code
    assert {name for name in modules if name.partition(".")[0] == "unsmooth"} == LIGHT
    assert not HEAVY & modules


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_settings_only(name: str) -> None:
    returned, modules = modules_after(name, "--help")
    assert returned == 0
    assert not HEAVY & modules
    rooms = {name for name in modules if name.startswith("unsmooth.") and name.count(".") > 1}
    light = ("unsmooth.cli.", "unsmooth.utils.options", "unsmooth.utils.files", "unsmooth.report.terminal")
    settings = {f"unsmooth.{room}.settings" for room in ("diagnosis", "evaluation", "training", "trials")}
    if name == "train":
        settings |= {"unsmooth.tasks.table"}
    if name == "paper":  # a request refers to the catalogue and to recipes
        settings |= {"unsmooth.papers.request", "unsmooth.papers.catalogue", "unsmooth.recipes.recipe"}
        settings |= {"unsmooth.report.metrics"}
    assert {room for room in rooms if not room.startswith(light)} <= settings


def test_wrong_options_are_found_before_torch_is_imported() -> None:
    returned, modules = modules_after("bench", "deit_tiny_patch16_224", "--bath-size", "3")
    assert returned == 2
    assert not HEAVY & modules


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unsmooth {__version__}\n"
