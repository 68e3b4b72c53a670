"""`bench`: parameters, operations, energy of the arithmetic, and throughput of several models."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.evaluation import cost
from unsmooth.evaluation.energy import ASSUMPTIONS, PRICES, SOURCE, energy
from unsmooth.evaluation.operations import Size, count_operations
from unsmooth.evaluation.settings import BenchSettings
from unsmooth.hosts.inputs import input_shape
from unsmooth.hosts.modes import device_of
from unsmooth.hosts.outputs import classes_of
from unsmooth.results.bench import Bench, BenchRow, Energy, Operations, Throughput, TimingConditions
from unsmooth.results.provenance import Provenance, versions
from unsmooth.spec import ModelSpec
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import open_model
from unsmooth.utils.devices import choose_device
from unsmooth.utils.options import merge_options

Progress = Callable[[int, int | None], None]  # steps done, total
Model = nn.Module | str | Path | ModelSpec


def bench(
    models: Sequence[Model] | Model,
    *,
    settings: BenchSettings | None = None,
    progress: Progress | None = None,
    command: str = "",
    **fields: Any,
) -> Bench:
    """Measure the cost of models, and its ratio to that of the first one.

    Timing rounds are interleaved: each round times every model once. The weights, modes and gradients of the models are
    not changed.

    Args:
        models: One or more models, model specs, or folders written by `save`.
        settings: Settings of the measurement. Default: `BenchSettings()`.
        progress: Called with the number of steps done and the total.
        command: Command line to record in the result.
        **fields: Fields of `BenchSettings`, such as `training`, `batch_size` or `precision`. They replace those of
            `settings`.

    Returns:
        One row per model. Energies are given for every precision.

    Raises:
        UnsmoothError: If a setting is not valid, or if a model does not accept images of the given size.

    Example:
        >>> import unsmooth
        >>> spec = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> result = unsmooth.bench([spec, spec + "+adder"], throughput=False)
        >>> result[spec].parameters
        1123624
        >>> result[spec + "+adder"].energy["fp32"].ratio < 1
        True
    """
    settings = merge_options(BenchSettings, settings, fields, BenchSettings.label)
    if settings.training and not settings.throughput:
        raise UnsmoothError(
            "training=True needs throughput=True. Leave out "
            "throughput=False (--no-throughput), or training (--training)."
        )
    models = [models] if isinstance(models, str | Path | ModelSpec | nn.Module) else list(models)
    if not models:
        raise UnsmoothError("there are no models to measure. Pass at least one, such as deit_small_patch16_224.")
    started = time.time()
    hosts = _open(models, settings.device)
    sizes = {name: _size(model, settings.image_size) for name, model in hosts.items()}
    modes = ["inference"] * settings.throughput + ["training"] * settings.training
    for model in hosts.values() if modes else ():
        classes_of(model)  # timing needs a classification head
    total, done = len(hosts) + settings.rounds * len(modes), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    operations: dict[str, Operations] = {}
    for name, model in hosts.items():
        operations[name] = _count(name, model, sizes[name])
        advance()
    common_size = next(iter(sizes.values())) if settings.image_size else None
    timed = {
        mode: cost.throughput(
            hosts, settings.batch_size, settings.rounds, mode == "training", settings.amp, size=common_size,
            progress=lambda _: advance(),
        )
        for mode in modes
    }  # fmt: skip
    first = next(iter(operations.values()))
    return Bench(
        rows=[
            _row(name, model, sizes[name], operations[name], first, {mode: by[name] for mode, by in timed.items()})
            for name, model in hosts.items()
        ],
        precision=settings.precision,
        source=SOURCE,
        assumptions=list(ASSUMPTIONS),
        settings=TimingConditions(
            batch_size=settings.batch_size, rounds=settings.rounds, amp=settings.amp, threads=torch.get_num_threads(),
            device=str(device_of(next(iter(hosts.values())))), machine=platform.machine(),
        ),
        provenance=Provenance(**versions(), command=command, seconds=round(time.time() - started, 1)),
    )  # fmt: skip


def _row(
    name: str, model: nn.Module, size: Size, operations: Operations, first: Operations, timed: dict[str, Throughput]
) -> BenchRow:
    return BenchRow(
        name=name, class_name=type(model).__name__, size=size,
        remedies=[str(remedy) for remedy in applied(model).remedies], parameters=cost.parameters(model),
        flops=2 * operations.parts["products"].multiply, operations=operations,
        energy={
            precision: Energy(energy(operations, precision), energy(operations, precision) / energy(first, precision))
            for precision in PRICES
        },
        inference=timed.get("inference"), training=timed.get("training"),
    )  # fmt: skip


def _open(models: Sequence[Model], device: str | None) -> dict[str, nn.Module]:
    """Every model under a unique name."""
    hosts: dict[str, nn.Module] = {}
    for source in models:
        model, name, _ = open_model(source)
        if not isinstance(source, nn.Module) or device is not None:
            model.to(choose_device(device))
        if name in hosts and not isinstance(source, nn.Module):
            raise UnsmoothError(f"{name} is given twice. Pass each model once.")
        namesakes = sum(other == name or other.startswith(f"{name} #") for other in hosts)
        hosts[f"{name} #{namesakes + 1}" if namesakes else name] = model
    return hosts


def _size(model: nn.Module, side: int) -> Size:
    shape = input_shape(model)
    return (*shape[:-2], side, side) if side else shape


def _count(name: str, model: nn.Module, size: Size) -> Operations:
    """Operations of one model. This also checks that the model accepts the image size, before anything is timed."""
    try:
        return count_operations(model, size)
    except UnsmoothError:
        raise
    except Exception as error:  # hosts raise errors of any kind for images of the wrong size
        reason = first_line(error).rstrip(".")
        raise UnsmoothError(
            f"{name} does not accept images of {size[1]} × {size[2]} pixels: {reason}. Set the size in its spec: "
            f"HOST(img_size={size[1]})."
        ) from error
