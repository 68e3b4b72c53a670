"""docs/architecture.md: the rooms, the imports between them (from the import contract), and three traced walks."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import grimp

from tools.markdown import ROOT, page, table

PACKAGE = ROOT / "unsmooth"
DEPTH = 4
HOST = "vit_tiny_patch16_224(img_size=8, patch_size=4, depth=2, embed_dim=16, num_heads=2, in_chans=1)"
ROOMS = {
    "utils": "options, file writing, text, precision; nothing about models",
    "models": "hosts that are not in timm, registered with timm",
    "seam": "torch functions of a forward pass become events; modules that apply what is attached to them",
    "hosts": "build a host, trace one forward pass, derive blocks and branches from it",
    "remedies": "one file per remedy, their base classes and kernels",
    "surgery": "plan, apply, remove, fold, save, load; the authors' checkpoints",
    "data": "image sources, splits, transforms, sampling, batches",
    "vitals": "one file per vital: pure functions of tokens, maps or scores",
    "theory": "the theorems of the papers, one file per paper: pure functions",
    "results": "what commands return, as types that are written to JSON",
    "report": "tables, pages and figures, made from results only",
    "diagnosis": "probe, measure, bounds, rules, verdict",
    "monitoring": "vitals, alarms and records of a model while any loop trains it",
    "integrations": "callbacks for the trainers of other libraries",
    "recipes": "all hyper-parameters of a training run, as data",
    "tasks": "classification, segmentation, VQA, MAE: loaders, models, losses, scores",
    "evaluation": "accuracy, robustness, operations, energy, speed",
    "training": "trainer, run, checkpoints, processes",
    "trials": "several models on one budget, and their differences",
    "papers": "tables, figures and theorems of the papers, as data and as runs",
    "cli": "one file per command; reads arguments, calls public functions, prints",
}
WALK_ROOMS = {"apply": "surgery", "diagnose": "diagnosis", "train": "training"}  # where the drawing of a walk begins
INTRO = """
A room is a package in `unsmooth/`. The table starts with the lowest room. A room imports only from rooms listed before
it, lazy imports and those for type checkers included; `make lint` checks this with import-linter. Tests mirror the
rooms: `tests/ROOM/`.

The root of the package holds what every room may use: `errors`, `spec` (model specs), `bands` (mean token and rest),
`_version`, and `__init__` with the public names, which are imported on first use. Results that are printed or saved ask
`rendering` for a renderer; `__init__` connects that of the room `report`.
"""
SEAM = """
## Attention is intercepted at the function

No host is reimplemented or wrapped. While a module runs, a `TorchFunctionMode` sees
`F.scaled_dot_product_attention`, `F.multi_head_attention_forward` and softmax, so one piece of code serves timm,
Hugging Face and torchvision.

A `TorchFunctionMode` is called for every torch function, which is slow for small hosts. If the first pass has shown
that it suffices, eager passes take a short path instead: the forward function of the module sees our attention in
`torch.nn.functional` (`seam/functional_view.py`), and residual sums are intercepted by a tensor subclass that
overrides addition (`seam/residual_sums.py`).
Compiled and exported passes use the mode. Both paths count what they reach: a pass that misses a patch raises.

| a remedy acts on | how it is attached |
|---|---|
| attention | a dynamic subclass of the module, whose `forward` applies a child with the parameters |
| tokens at an input or output | the child module itself is the hook; never a closure, so `deepcopy` and EMA work |
| a linear layer | the same subclass replaces the call of `F.linear` |
| a residual sum | the sum is recognised when it is computed; its skip is scaled |
| the loss | a buffer keeps the tokens of a training pass for `unsmooth.auxiliary_loss` |

## Laws

Each is a test over the whole registry.

1. The host's `state_dict` keys never change; a remedy only adds keys.
2. Where the paper allows it, `apply` leaves the outputs equal. The other remedies declare that they change them.
3. `remove` restores the host bit for bit. Applying twice, or where nothing matches, raises and says why.
4. Check everything, then change: a failed `apply` leaves the model as it was.
5. Observing changes nothing: same logits, same training flags, no hook left, also after an exception.
6. A treated model is saved as safetensors and `recipe.json`. Nothing is pickled or evaluated.
7. Memory does not grow with the number of images.
8. Name = file = registry key. Lists and tables in the docs are generated.
"""
WALKS = """
## Three walks

Each tree is a trace of real calls on a ViT of two blocks. Private helpers are left out, repeated calls are counted, a
function is shown where it is first called, and only the upper levels are shown. The column on the right is the room.
"""
EXPLANATIONS = {
    "apply": "One forward pass on a noise image shows where the blocks, branches and attention calls are (the anatomy, "
    "which is cached on the model). The remedy names a place for each of its parts and changes nothing. Only after the "
    "whole plan has been checked are the parts attached and recorded on the model.",
    "diagnose": "The model runs once per batch. A probe passes the tokens and effective attention maps of each block "
    "to the vitals, which keep running means. Rules derive findings from the means, and the verdict from the findings.",
    "train": "The spec is built into a treated model, the images come from a sampler that depends only on seed, epoch "
    "and position, and one optimizer step is taken. The run directory holds checkpoints, metrics and the final model.",
}


@dataclass
class Call:
    """One call of a traced walk."""

    module: str
    function: str
    count: int = 1
    calls: list[Call] = field(default_factory=list)

    @property
    def room(self) -> str:
        return self.module.partition(".")[0]


@cache
def rooms() -> tuple[str, ...]:
    """The rooms from the import contract, lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return tuple(reversed(layers))


def pages() -> dict[str, str]:
    rows = [(i, f"`{room}`", ROOMS[room]) for i, room in enumerate(rooms(), 1)]
    lines = ["# Architecture", "", INTRO.strip(), "", "## Rooms, from the lowest to the highest", "",
             *table(("", "room", "holds"), rows),
             "![Which room imports from which](images/rooms.svg)", "", SEAM.strip(), "", WALKS.strip(), ""]  # fmt: skip
    for name, (title, run) in _walks().items():
        lines += [
            f"### {title}",
            "",
            EXPLANATIONS[name],
            "",
            "```text",
            *_tree(_from_room(_trace(run), WALK_ROOMS[name])),
            "```",
            "",
        ]
    return {"architecture.md": page(lines), "images/rooms.svg": _matrix()}


def _matrix() -> str:
    """Who imports whom: a row per room, a dot for each room it imports from."""
    graph = grimp.build_graph("unsmooth", include_external_packages=False, exclude_type_checking_imports=False)
    names = list(reversed(rooms()))
    imports = {(a, b) for a in names for b in names if a != b and _imports_directly(graph, a, b)}
    cell, left, top = 22, 100, 84
    width, height = left + cell * len(names) + 10, top + cell * len(names) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" role="img" '
        'aria-label="Import matrix: each row is a room, each dot a room that it imports from">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, name in enumerate(names):
        y, x = top + i * cell, left + i * cell
        shade = "#f4f6fa" if i % 2 == 0 else "#ffffff"
        parts.append(f'<rect x="{left}" y="{y}" width="{cell * len(names)}" height="{cell}" fill="{shade}"/>')
        parts.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="#d5dbe6"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end" fill="#1c2740">{name}</text>')
        parts.append(f'<text transform="translate({x + 15} {top - 6}) rotate(-60)" fill="#1c2740">{name}</text>')
    for a, b in sorted(imports):
        x, y = left + names.index(b) * cell + cell // 2, top + names.index(a) * cell + cell // 2
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#33415c"><title>{a} imports {b}</title></circle>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _imports_directly(graph: Any, importer: str, imported: str) -> bool:
    inside = {f"unsmooth.{imported}", *graph.find_descendants(f"unsmooth.{imported}")}
    modules = {f"unsmooth.{importer}", *graph.find_descendants(f"unsmooth.{importer}")}
    return any(graph.find_modules_directly_imported_by(module) & inside for module in modules)


def _walks() -> dict[str, tuple[str, Callable[[], object]]]:
    """The title of each walk, and what is traced. Everything that happens once per process is done before."""
    import torch

    import unsmooth
    from unsmooth.cli.main import main

    def model() -> Any:
        torch.manual_seed(0)
        return unsmooth.create_model(HOST)

    def diagnose() -> None:
        unsmooth.diagnose(diagnosed, images, ["token_cosine", "effective_rank", "attention_entropy"], reference=False)

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            sizes = ["--epochs", "1", "--train-images", "16", "--val-images", "16", "--batch-size", "16"]
            main(["train", f"{HOST}+attn_scale", "--data", "digits", "--out", f"{folder}/run", *sizes])

    treated, diagnosed, images = model(), model().eval(), torch.rand(1, 1, 8, 8)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        unsmooth.apply(model(), "attn_scale")
        diagnose()
        train()
    return {
        "apply": ('`apply(model, "attn_scale")`', lambda: unsmooth.apply(treated, "attn_scale")),
        "diagnose": ("One image of `diagnose`", diagnose),
        "train": ("One batch of `train SPEC+attn_scale`", train),
    }


def _trace(run: Callable[[], object]) -> list[Call]:
    """The public functions of unsmooth that `run` calls, as a tree."""
    top = Call("", "")
    stack: list[tuple[FrameType, Call]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call":
            parent = stack[-1][1] if stack else top
            call = parent
            if not any(part.startswith(("_", "<")) for part in code.co_qualname.split(".")):
                module = ".".join(Path(code.co_filename).relative_to(PACKAGE).with_suffix("").parts)
                call = Call(module.removesuffix(".__init__"), code.co_qualname)
                parent.calls.append(call)
            stack.append((frame, call))
        elif event == "return" and stack and stack[-1][0] is frame:
            stack.pop()

    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        sys.setprofile(profile)
        try:
            run()
        finally:
            sys.setprofile(None)
    return _merged(top.calls)


def _merged(calls: list[Call]) -> list[Call]:
    """Calls of one function under one parent become one entry with a count."""
    merged: dict[tuple[str, str], Call] = {}
    for call in calls:
        key = (call.module, call.function)
        if key in merged:
            merged[key].count += call.count
            merged[key].calls += call.calls
        else:
            merged[key] = call
    for call in merged.values():
        call.calls = _merged(call.calls)
    return list(merged.values())


def _from_room(calls: list[Call], room: str) -> list[Call]:
    """The first calls of a room, from the top."""
    return [call for call in calls if call.room == room] or _from_room([c for call in calls for c in call.calls], room)


def _tree(calls: list[Call]) -> list[str]:
    """Lines of text: each function once, where it is first called, if the call leaves its caller's module."""
    rows = list(_rows(calls, 0, "", set()))
    width = max(len(label) for _, label in rows)
    return [f"{label:<{width}}  {room}" for room, label in rows]


def _rows(calls: list[Call], depth: int, caller: str, seen: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for call in calls:
        key = (call.module, call.function)
        if call.module == caller:
            yield from _rows(call.calls, depth, caller, seen)
        elif key not in seen and depth < DEPTH and call.room in (*rooms(), "spec"):
            seen.add(key)
            times = f" ×{call.count}" if call.count > 1 else ""
            yield call.room, f"{'    ' * depth}{call.module}.{call.function}{times}"
            yield from _rows(call.calls, depth + 1, call.module, seen)
