"""Bench: what models cost beside each other: parameters, operations, energy of the arithmetic, and time."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import timm
import torch
from torch import nn

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost
from unsmooth.evaluation.energy import ASSUMPTIONS, PRICES, SOURCE, energy, price
from unsmooth.evaluation.operations import Operations, Size, count_operations
from unsmooth.hosts.inputs import image_size as size_of
from unsmooth.hosts.modes import check_amp, device_of, resolve_device
from unsmooth.hosts.outputs import classes_of
from unsmooth.results.base import FORMAT
from unsmooth.results.bench import Bench
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import open_model

BATCH, ROUNDS = 8, 7

Progress = Callable[[int, int | None], None]  # steps done, steps in all
Model = nn.Module | str | Path


def bench(
    models: Sequence[Model] | Model,
    *,
    precision: str = "fp32",
    throughput: bool = True,
    training: bool = False,
    batch_size: int = BATCH,
    rounds: int = ROUNDS,
    amp: str = "none",
    image_size: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Bench:
    """Cost of each model, and the ratio to the first one. The models' weights, modes and gradients are not changed.

    `models`: specs, folders written by `save`, or models. `precision` is the one that the table shows; the result has
    all of them. `training` measures a training step too. `image_size` is for hosts that take any. Every round times
    every model once, in turn. `progress` is told steps done and steps in all.
    """
    price(precision)
    check_amp(amp)
    for name, value, least in (("batch size", batch_size, 1), ("rounds", rounds, 1), ("image size", image_size, 0)):
        if value < least:
            raise UnsmoothError(f"{name} must be at least {least}, not {value}")
    if training and not throughput:
        raise UnsmoothError("a training step is part of what is timed: leave --no-throughput out, or --training")
    chosen = [models] if isinstance(models, str | Path | nn.Module) else list(models)
    if not chosen:
        raise UnsmoothError("there is nothing to measure; name a model: unsmooth bench deit_small_patch16_224")
    begun = time.time()
    built = _open(chosen, device)
    sizes = {name: _size(model, image_size) for name, model in built.items()}
    kinds = [kind for kind, wanted in (("inference", throughput), ("training", training)) if wanted]
    for model in built.values() if kinds else ():
        classes_of(model)  # a model without a head is timed by no one
    total, done = len(built) + rounds * len(kinds), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    counted: dict[str, Operations] = {}
    for name, model in built.items():
        counted[name] = _count(name, model, sizes[name])
        advance()
    size = next(iter(sizes.values())) if image_size else None
    speeds = {
        kind: cost.throughput(
            built, batch_size, rounds, kind == "training", amp, size=size, progress=lambda _: advance()
        )
        for kind in kinds
    }
    first = next(iter(counted.values()))
    return Bench(
        {
            "format": FORMAT,
            "kind": "bench",
            "rows": [
                {
                    "name": name, "class": type(model).__name__, "size": list(sizes[name]),
                    "remedies": [str(part) for part in applied(model).remedies],
                    "parameters": cost.parameters(model),
                    "flops": 2 * counted[name].parts["products"].multiply,
                    "operations": counted[name].to_json(),
                    "energy": {
                        each: {
                            "millijoules": energy(counted[name], each),
                            "ratio": energy(counted[name], each) / energy(first, each),
                        }
                        for each in PRICES
                    },
                    **{kind: speeds[kind][name] if kind in speeds else None for kind in ("inference", "training")},
                }
                for name, model in built.items()
            ],
            "precision": precision,
            "source": SOURCE,
            "assumptions": list(ASSUMPTIONS),
            "settings": {
                "batch_size": batch_size, "rounds": rounds, "amp": amp, "threads": torch.get_num_threads(),
                "device": str(device_of(next(iter(built.values())))), "machine": platform.machine(),
            },
            "made": {
                "unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
                "command": command, "seconds": round(time.time() - begun, 1),
            },
        }
    )  # fmt: skip


def _open(chosen: Sequence[Model], device: str | torch.device | None) -> dict[str, nn.Module]:
    """Every model by a name of its own."""
    built: dict[str, nn.Module] = {}
    for one in chosen:
        model, name = open_model(one)
        if not isinstance(one, nn.Module) or device is not None:
            model.to(resolve_device(device))
        if name in built and isinstance(one, str | Path):
            raise UnsmoothError(f"{name} is given twice; give each model once")
        same = sum(other == name or other.startswith(f"{name} #") for other in built)
        built[f"{name} #{same + 1}" if same else name] = model
    return built


def _size(model: nn.Module, side: int) -> Size:
    channels, height, width = size_of(model)
    return (channels, side, side) if side else (channels, height, width)


def _count(name: str, model: nn.Module, size: Size) -> Operations:
    """Operations of one model; whether it takes such images at all is found out here, before anything is timed."""
    try:
        return count_operations(model, size)
    except UnsmoothError:
        raise
    except Exception as error:  # whatever a host makes of an image of another size
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UnsmoothError(
            f"{name} cannot take images of {size[1]} × {size[2]} pixels: {reason}; write their size into its spec, as "
            f"HOST(img_size={size[1]})"
        ) from error
