"""Settings classes as options of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from unsmooth.cli.options import takes_settings
from unsmooth.errors import UnsmoothError
from unsmooth.utils.options import FilePath, Numbers, option, options


@options
class Settings:
    label = "cook"

    count: int = option("eggs", default=3, low=1)
    salt: float = option("grams of salt", default=0.5)
    kind: Literal["fried", "boiled"] = option("kind of egg", default="fried")
    pan: FilePath | None = option("pan", default=None)
    times: Numbers = option("minutes per side", default=())
    lid: bool = option("cover the pan", default=True)
    quiet: bool = option("print nothing", default=False)
    cook: str = option("name of the cook (default: you)", default="")


def cooked(*arguments: str) -> dict[str, Any]:
    """What a command receives."""
    received: dict[str, Any] = {}

    @takes_settings(Settings, without=["cook"], names={"quiet": "silent"})
    def command(
        dish: Annotated[str, typer.Argument()],
        *,
        settings: Settings,
        json: Annotated[bool, typer.Option("--json")] = False,
    ) -> None:
        """Cook."""
        received.update(dish=dish, settings=settings, json=json)

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    app(args=list(arguments), standalone_mode=False)
    return received


def test_defaults() -> None:
    assert cooked("egg") == {"dish": "egg", "settings": Settings(), "json": False}


def test_every_kind_of_value() -> None:
    words = "egg --count 2 --salt 1e-1 --kind boiled --pan a/b --times 1,2.5 --no-lid --silent --json"
    assert cooked(*words.split()) == {
        "dish": "egg", "json": True,
        "settings": Settings(
            count=2, salt=0.1, kind="boiled", pan=Path("a/b"), times=(1.0, 2.5), lid=False, quiet=True
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--count 0", "cook: count must be at least 1 \\(got '0'\\)"),
        ("--count two", "cook: count must be a whole number \\(got 'two'\\)"),
        ("--kind poached", "cook: kind must be one of .*\\(got 'poached'\\)"),
        ("--times long", "cook: times must be numbers, separated by commas \\(got 'long'\\)"),
        ("--salt nan", "cook: salt must be finite"),
    ],
)
def test_wrong_values(words: str, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        cooked("egg", *words.split())


@pytest.mark.parametrize("option", ["--cook", "--quiet", "--no-silent"])
def test_options_that_a_command_does_not_have(option: str) -> None:
    with pytest.raises(typer.BadParameter.__base__, match="No such option"):  # type: ignore[arg-type]
        cooked("egg", option)


def test_help_shows_types_choices_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cooked("--help")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Options:") + 1
    assert lines[start : start + 9] == [
        "--count INT eggs (default: 3)",
        "--salt FLOAT grams of salt (default: 0.5)",
        "--kind TEXT kind of egg: fried or boiled (default: fried)",
        "--pan PATH pan",
        "--times NUMBERS minutes per side",
        "--lid / --no-lid cover the pan (default: on)",
        "--silent print nothing",
        "--json",
        "--help Show this message and exit.",
    ]
