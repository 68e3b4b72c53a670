"""Entry point of the command line: the table of commands, and errors as one line on standard error."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from unsmooth._version import __version__
from unsmooth.cli.recipe_options import RecipeCommand
from unsmooth.cli.terminal import echo, escape_unencodable, keep_command_line
from unsmooth.errors import Interrupted, UnsmoothError, unknown

# The base class is click's, or typer's copy of it, depending on the version of typer.
_UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]


# Help as plain text: it fits 80 columns better than panels.
_PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}


class Entry(NamedTuple):
    """One command: its module in this package, whose function has the same name, and its summary."""

    module: str
    summary: str
    takes_recipe: bool = False


COMMANDS = {
    "demo": Entry("demo", "Diagnose, treat and compare a ViT that does not train."),
    "diagnose": Entry("diagnose", "Measure whether, where and why the tokens of a model collapse."),
    "train": Entry("train", "Train or fine-tune a model.", takes_recipe=True),
    "evaluate": Entry("evaluate", "Score a model: accuracy, robustness, tokens and throughput."),
    "compare": Entry("compare", "Train several models on the same budget and compare them.", takes_recipe=True),
    "prescribe": Entry("prescribe", "Try remedies for a model's findings; recommend one or none.", takes_recipe=True),
    "bench": Entry("bench", "Measure parameters, operations, energy and speed of models."),
    "paper": Entry("paper", "List the experiments of the papers, or run one of them.", takes_recipe=True),
    "list": Entry("list_", "List the remedies, the vitals or the fields of a recipe."),
    "check": Entry("check", "Show which remedies apply to a model, block by block."),
    "import": Entry("import_", "Convert a checkpoint of a remedy's authors."),
}


def load_command(name: str) -> Any:
    """Import the module of a command and build the command."""
    entry = COMMANDS[name]
    function = getattr(import_module(f"unsmooth.cli.{entry.module}"), entry.module)
    single = typer.Typer(**_PLAIN)
    single.command(name, cls=RecipeCommand if entry.takes_recipe else TyperCommand)(function)
    return typer.main.get_command(single)


class LazyGroup(TyperGroup):
    """Commands of the table. Only the command that runs is imported; the overview is made from the summaries."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        return name, load_command(name), rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        keep_command_line(ctx, args)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would exit without a message
            raise Interrupted("interrupted") from None


app = typer.Typer(cls=LazyGroup, **_PLAIN)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"unsmooth {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def unsmooth(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Diagnose and treat token collapse in vision transformers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after `unsmooth` (default: those of this process).

    Returns:
        The exit code: 0, 2 after a user error, 130 after an interruption.
    """
    escape_unencodable()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: echo(f"note: {message}")
        try:
            return app(args=words, prog_name="unsmooth", standalone_mode=False) or 0
        except Interrupted as error:
            if os.environ.get("RANK", "0") == "0":  # only the first of several processes prints
                echo(f"unsmooth: {error}")
            return 130
        except UnsmoothError as error:
            mistake = str(error)
        except _UsageError as error:
            mistake = _usage(error)
    echo(f"unsmooth: {mistake}")
    return 2


def _usage(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "unsmooth"
    return f"{error.format_message().rstrip('.')}. See {path} --help."
