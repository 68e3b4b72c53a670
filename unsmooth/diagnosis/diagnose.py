"""`diagnose`: measure a model on images, then reach a verdict."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unsmooth.data.image_batches import ImageBatches, ImageInput, NamedImages, image_batches
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.describe import (
    describe_broken,
    describe_images,
    describe_model,
    describe_vitals,
    describe_weights,
    digest_of_tensors,
    learned_parameters,
    rounded_series,
)
from unsmooth.diagnosis.measure import map_entries, measure, measure_model
from unsmooth.diagnosis.random_reference import RandomModel, random_reference
from unsmooth.diagnosis.rules import limits
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.diagnosis.samples import sample_maps
from unsmooth.diagnosis.settings import DiagnoseSettings
from unsmooth.diagnosis.verdict import reach_verdict
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example, batch_inputs, describes_input
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.measured import Reference
from unsmooth.results.provenance import Provenance, versions
from unsmooth.spec import ModelSpec
from unsmooth.surgery.plan import anatomy_of, fit, select_blocks
from unsmooth.surgery.storage import open_model
from unsmooth.utils.devices import choose_device
from unsmooth.utils.options import merge_options
from unsmooth.utils.processes import ALONE, Processes
from unsmooth.utils.progress import Progress, show_progress
from unsmooth.vitals.base import Vital

MAP_BYTES = 2**26  # size of one block's maps above which a batch becomes smaller
MAPS_AT_ONCE = 2**29  # bytes of maps above which images are run one by one while maps are computed
MAPS_APART = 4  # images at the start that are run one by one then, at least as many as have their maps computed
BATCH_SIZES = (4, 16)  # range of the default batch size; CKA needs four images
REFERENCE_IMAGES = 4
REFERENCE_SAMPLE = 1  # of them, whose maps and decompositions are computed
QUICK_SAMPLE = 4  # images whose maps and decompositions a quick diagnosis computes
SAMPLE_IMAGES = 2


def diagnose(
    model: nn.Module | str | Path | ModelSpec,
    images: ImageInput = None,
    vitals: str | Iterable[str] | None = None,
    blocks: str | None = None,
    *,
    settings: DiagnoseSettings | None = None,
    example: Example | None = None,
    progress: Progress | bool | None = None,
    command: str = "",
    processes: Processes = ALONE,
    **fields: Any,
) -> Diagnosis:
    """Diagnose a model: measure vitals on images, report findings and reach a verdict.

    The model is not changed: its weights and training flags stay the same, and no hooks are left.

    Args:
        model: A model, a model spec, or a folder written by `unsmooth.save`.
        images: A folder, an .npz file, a timm dataset name, a tensor (floats as the model takes them, or uint8), a
            loader, or None for photographs that come with scikit-learn.
        vitals: Names of vitals, comma-separated or as a list, or "default" or "all".
        blocks: Blocks to measure, such as "6:", "0,3" or "-1". Default: all.
        settings: Settings as one object.
        example: One input, for a model that does not accept an image of noise.
        progress: False for none. By default progress is shown on a terminal and in a notebook; with True also
            elsewhere, as lines on standard error. A function is called instead, with the name of the stage, what is
            done of it, and its total (None if unknown).
        command: Command line to record in the report.
        processes: Processes that share the images (`unsmooth.utils.processes.init_processes` under torchrun). Each of
            them makes the same call, measures every world-th batch, and returns the diagnosis of all images. Default:
            this process alone measures all images.
        **fields: Fields of `DiagnoseSettings`, such as `limit=64` or `reference=False`. They override `settings`.

    Returns:
        The diagnosis.

    Raises:
        UnsmoothError: If an argument is not valid, the images cannot be read or the model cannot be run.

    Example:
        >>> import unsmooth
        >>> model = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> diagnosis = unsmooth.diagnose(model, limit=4)
        >>> diagnosis.verdict
        'untrained'
        >>> len(diagnosis["token_cosine"])
        2
    """
    chosen = _settings(settings, vitals, blocks, fields)
    with show_progress(progress) as report:
        return _diagnose(model, images, chosen, example, report, command, processes)


def _diagnose(
    given: nn.Module | str | Path | ModelSpec,
    images: ImageInput,
    settings: DiagnoseSettings,
    example: Example | None,
    report: Progress,
    command: str,
    processes: Processes,
) -> Diagnosis:
    started = time.time()
    report("examining", 0, None)
    selected = registry.select(settings.vitals)
    requested = settings.vitals.split(",")
    opened = open_model(given, settings.checkpoint, settings.pretrained)
    model, name = opened.model, opened.name
    weights = describe_weights(given, opened, settings.checkpoint, settings.pretrained)
    if isinstance(given, nn.Module):
        if settings.device:
            raise UnsmoothError(f"a model stays on its device. Move it first: model.to({settings.device!r}).")
    else:
        model = model.to(processes.device if processes.world > 1 else choose_device(settings.device))
    if processes.world > 1:
        if isinstance(given, nn.Module):
            _check_same_model(model, processes)
        else:
            processes.share_weights(model)  # initial weights are random in each process
    if example is None and isinstance(images, Tensor) and images.is_floating_point() and not describes_input(model):
        example = batch_inputs(model, images[:1])
    anatomy = anatomy_of(model, example)
    block_indices = None if settings.blocks is None else select_blocks(settings.blocks, len(anatomy.blocks))
    batch_size = settings.batch_size or _batch_size(anatomy)
    source = image_batches(model, images, batch_size, settings.limit, settings.data_dir)
    random_model = None
    if settings.reference and not settings.quick and processes.primary:
        random_model = random_reference(model)

    counter = _Counter("images", source.count, report, processes.world)
    split = QUICK_SAMPLE if settings.quick else None
    first, batches = _peek(source, split, processes, anatomy)
    measured = measure(
        model, anatomy, batches, selected, block_indices, settings.prefix, counter.add, requested, split, processes
    )

    def conclude() -> Diagnosis:
        """Measure what needs the first images only, then derive the verdict and build the result."""
        if first is None:  # the primary process takes the first images
            raise UnsmoothError(f"all images of the first process are broken ({source.name}). Use fewer processes.")
        bounds = [vital for vital in selected if vital.of == "model"]
        if bounds:
            counter = _Counter("bounds", len(bounds), report)
            for vital in bounds:
                measure_model(model, anatomy, first.images, [vital], block_indices, measured)
                counter.add(1)
        reference = None
        if random_model is not None:
            reference = _measure_reference(
                random_model, anatomy, first.images, selected, block_indices, settings.prefix, report
            )
        samples = []
        if not settings.quick:
            report("samples", 0, None)
            samples = sample_maps(model, anatomy, source, first, SAMPLE_IMAGES)

        report("verdict", 0, None)
        about = describe_model(model, name, anatomy, weights)
        view = DiagnosisView(about, describe_vitals(selected, measured), reference, describe_broken(measured))
        about_images = describe_images(source, measured.images, settings.prefix)
        about_images.size = list(first.images.shape[1:])  # a tensor may have another size than the host's own
        findings, verdict = reach_verdict(view, lambda remedy: bool(fit(model, remedy, anatomy)), about_images)
        return Diagnosis(
            model=view.model,
            images=about_images,
            vitals=view.vitals,
            reference=reference,
            broken=view.broken,
            samples=samples,
            learned=learned_parameters(model, anatomy),
            findings=findings,
            conclusion=verdict,
            limits=limits(view),
            provenance=Provenance(**versions(), command=command, seconds=round(time.time() - started, 1)),
        )

    return processes.from_primary(conclude)


def _check_same_model(model: nn.Module, processes: Processes) -> None:
    """Raise if processes that share the images do not measure the same model."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise UnsmoothError(
            "the weights of this model are sharded over processes (FSDP), which cannot measure different images. Load "
            "the whole model in each process."
        )
    if len(set(processes.gather(digest_of_tensors(model)))) > 1:
        raise UnsmoothError("the processes have different weights. Load the same checkpoint in each of them.")


def _settings(
    settings: DiagnoseSettings | None, vitals: str | Iterable[str] | None, blocks: str | None, fields: dict[str, Any]
) -> DiagnoseSettings:
    """The settings with all other arguments applied to them."""
    if vitals is not None:
        fields["vitals"] = vitals if isinstance(vitals, str) else ",".join(vitals)
    if blocks is not None:
        fields["blocks"] = blocks
    settings = merge_options(DiagnoseSettings, settings, fields, DiagnoseSettings.label)
    if settings.quick and settings.vitals not in ("default", "quick"):
        raise UnsmoothError(f"quick selects the vitals itself (got vitals={settings.vitals}). Use one of the two.")
    return replace(settings, vitals="quick") if settings.quick else settings


class _Counter:
    """Counts what is done of a stage, by processes that proceed alike."""

    def __init__(self, stage: str, total: int | None, report: Progress, world: int = 1) -> None:
        self.stage, self.total, self.report, self.world, self.done = stage, total, report, world, 0
        self.add(0)

    def add(self, count: int) -> None:
        self.done += count * self.world
        if self.total is not None:
            self.done = min(self.done, self.total)
        self.report(self.stage, self.done, self.total)


def _batch_size(anatomy: Anatomy) -> int:
    """The largest batch size in the default range that keeps one block's maps small."""
    return max(BATCH_SIZES[0], min(BATCH_SIZES[1], MAP_BYTES // _map_bytes(anatomy)))


def _map_bytes(anatomy: Anatomy) -> int:
    """Size of the largest maps of one image, in single precision."""
    return max((4 * map_entries(a) for block in anatomy.blocks for a in block.attentions), default=1)


def _spaced(batch: NamedImages, anatomy: Anatomy, sample: int) -> list[NamedImages]:
    """A batch whose first `sample` images, of which maps are computed, are apart if their maps are large."""
    count = len(batch.images)
    if _map_bytes(anatomy) * count <= MAPS_AT_ONCE:
        return [batch]
    singles = [batch.part(slice(i, i + 1)) for i in range(min(sample, count))]
    return [*singles, batch.part(slice(sample, None))] if count > sample else singles


def _peek(
    source: ImageBatches, split: int | None, processes: Processes, anatomy: Anatomy
) -> tuple[NamedImages | None, Iterator[NamedImages]]:
    """The first batch of this process, and all of its batches. The first of all is split after a quick sample.

    Large maps are computed of the first images only.
    """
    batches = source.share(processes)
    first = next(batches, None)
    if first is None:
        return None, iter(())
    parts = [first]
    if split is not None and not first.before:
        parts = [first.part(slice(split)), first.part(slice(split, None))]
    if not first.before:
        parts = [*_spaced(parts[0], anatomy, MAPS_APART), *parts[1:]]
    return first, itertools.chain([part for part in parts if len(part.images)], batches)


def _measure_reference(
    random: RandomModel,
    anatomy: Anatomy,
    images: Tensor,
    vitals: list[Vital],
    blocks: list[int] | None,
    prefix: bool,
    report: Progress,
) -> Reference:
    """All vitals of the random reference except bounds and those that need labels."""
    streaming = [vital for vital in vitals if vital.family not in ("theory", "function")]
    batch = NamedImages(images[:REFERENCE_IMAGES])
    counter = _Counter("random reference", len(batch.images), report)
    batches = _spaced(batch, anatomy, REFERENCE_SAMPLE)
    measured = measure(random.model, anatomy, batches, streaming, blocks, prefix, counter.add, most=REFERENCE_SAMPLE)
    values = rounded_series(measured, curves=False)
    return Reference(random.how, measured.images, values, bool(random.kept))
