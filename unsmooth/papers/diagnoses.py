"""Figures about the inside of a model: diagnoses of given weights, or of small models that are trained first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from unsmooth import remedies
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import PLAIN, Experiment, PublishedGroup
from unsmooth.papers.curves import curve_by_block
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import published_row
from unsmooth.papers.trials import describe_data, describe_training, train_group
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.reproduction import ArmResult, GroupResult
from unsmooth.results.training import RunSettings
from unsmooth.spec import ModelSpec, parse, parse_item, parse_remedies
from unsmooth.surgery.create import create_model
from unsmooth.surgery.storage import load
from unsmooth.training.run import train
from unsmooth.training.run_dir import RunDir
from unsmooth.utils.files import write

OWN_MODEL = "your model"  # name of the group of a model that is not of the paper


@dataclass(frozen=True)
class GroupDiagnoses:
    """Diagnoses of the models of a group, or of one model of the user (`group` is None)."""

    group: PublishedGroup | None
    specs: list[ModelSpec]
    diagnoses: list[Diagnosis]
    data: str


def run_diagnoses(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    """Diagnose every group and draw its figure. Returns the groups and a description of the data."""
    if request.spec:
        diagnosed = [_diagnose_own(experiment, request)]
    elif request.checkpoints or request.pretrained or not request.small:
        diagnosed = [_diagnose_given(experiment, group, request) for group in request.groups(experiment)]
    else:
        diagnosed = [_diagnose_trained(experiment, group, request) for group in request.groups(experiment)]
    return [_group_result(experiment, group, request) for group in diagnosed], diagnosed[0].data


def _diagnose_own(experiment: Experiment, request: RunRequest) -> GroupDiagnoses:
    if len(request.checkpoints) > 1:
        raise UnsmoothError(f"spec (--spec) takes one checkpoint (got {len(request.checkpoints)}).")
    checkpoint = request.checkpoints[0] if request.checkpoints else None
    model: Any = create_model(request.spec, pretrained=True) if request.pretrained else request.spec
    diagnosis = _diagnose(experiment, request, model, checkpoint, request.data)
    return GroupDiagnoses(None, [], [diagnosis], _describe_images(diagnosis))


def _diagnose_given(experiment: Experiment, group: PublishedGroup, request: RunRequest) -> GroupDiagnoses:
    """Diagnose models with given weights."""
    specs = group.specs(request.small)
    if not request.checkpoints and not request.pretrained:
        raise UnsmoothError(
            f"{experiment.id} needs trained models ({', '.join(map(str, specs))}). Give checkpoints (--checkpoint) for "
            "each, or pretrained (--pretrained), or spec and checkpoints of your own model (--spec, --checkpoint), or "
            "small (--small) to train small ones."
        )
    treated = [arm.add for arm in group.models if arm.add and not _without_parameters(arm.add)]
    if request.pretrained and treated:
        raise UnsmoothError(
            f"there are no pretrained weights with {', '.join(treated)}. Give checkpoints (--checkpoint) for each "
            "model instead of pretrained (--pretrained)."
        )
    if request.checkpoints and len(request.checkpoints) != len(specs):
        raise UnsmoothError(f"{group.name} needs {len(specs)} checkpoints (got {len(request.checkpoints)}).")
    checkpoints: list[Path | None] = [*request.checkpoints] or [None] * len(specs)
    diagnoses = []
    for spec, checkpoint in zip(specs, checkpoints, strict=True):
        model: Any = create_model(spec, pretrained=True) if checkpoint is None else spec
        diagnoses.append(_diagnose(experiment, request, model, checkpoint, request.data))
    return GroupDiagnoses(group, specs, diagnoses, _describe_images(diagnoses[0]))


def _without_parameters(spec: str) -> bool:
    """Whether remedies have nothing to learn, so that the weights of the plain host are those of the treated one."""
    return all(remedies.get(item.name).parameters == "–" for item in parse_remedies(spec))


def _diagnose_trained(experiment: Experiment, group: PublishedGroup, request: RunRequest) -> GroupDiagnoses:
    """Train small models and diagnose them."""
    if len(group.models) == 1:
        return _diagnose_one_trained(experiment, group, request)
    trial = train_group(experiment, group, request, vitals="none")
    diagnoses = []
    for arm in trial.arms:
        folder = next((run.folder for run in arm.runs if run.top1 is not None), None)
        if folder is None:
            reason = next((run.failed for run in arm.failed_runs), "it was not trained")
            raise UnsmoothError(f"{experiment.id}: there is no trained model of {arm.name} to diagnose: {reason}")
        model = load(request.folder(group) / folder / "last")
        diagnoses.append(_diagnose(experiment, request, model, None, request.images(experiment)))
    return GroupDiagnoses(group, group.specs(request.small), diagnoses, describe_data(trial))


def _diagnose_one_trained(experiment: Experiment, group: PublishedGroup, request: RunRequest) -> GroupDiagnoses:
    """Train and diagnose the only model of a group; there is no comparison."""
    (spec,), recipe, images = group.specs(request.small), request.recipe(experiment, group), request.images(experiment)
    run = RunDir(request.folder(group))
    request.on_stage(f"{experiment.id}: training {spec}")
    train(spec, images, recipe=recipe, out=run.path, data_dir=request.data_dir, workers=request.workers,
          device=request.device, command=request.command)  # fmt: skip
    diagnosis = _diagnose(experiment, request, load(run.last), None, images)
    trained = RunSettings.from_json(run.settings_file)
    data = describe_training(trained.data, trained.images["train"], recipe.epochs)
    return GroupDiagnoses(group, [spec], [diagnosis], data)


def _diagnose(
    experiment: Experiment, request: RunRequest, model: Any, checkpoint: Path | None, images: str | None
) -> Diagnosis:
    name = type(model).__name__ if isinstance(model, nn.Module) else model
    request.on_stage(f"{experiment.id}: diagnosing {name}")
    names = [*(curve.vital for curve in experiment.curves), *experiment.vitals.split(",")]
    vitals = [name for name in dict.fromkeys(names) if name]
    return diagnose(
        model, images, vitals or None, experiment.blocks or None, checkpoint=checkpoint,
        data_dir=request.data_dir, limit=request.scale(experiment).images, reference=False,
        progress=False,
    )  # fmt: skip


def _describe_images(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.images.count} images of {Path(diagnosis.images.source).name}"


def _group_result(experiment: Experiment, diagnosed: GroupDiagnoses, request: RunRequest) -> GroupResult:
    from unsmooth.report.figures import save
    from unsmooth.report.render import diagnosis_figures

    group, rows = diagnosed.group, []
    for i, diagnosis in enumerate(diagnosed.diagnoses):
        if group is not None:
            row = published_row(group, i, diagnosed.specs[i])
        else:
            row = _own_row(request.spec, diagnosis.model.remedies)
        diagnosis.model.name = row.name if group is not None else row.spec
        shown = [curve for curve in experiment.curves if group is None or not curve.arms or row.name in curve.arms]
        curves = {curve.label: curve_by_block(diagnosis, curve) for curve in shown}
        row.curves = {label: curve for label, curve in curves.items() if curve is not None}
        row.skipped = sorted({reason for vital in diagnosis.vitals.values() for reason in vital.skipped.values()})
        rows.append(row)
    result = GroupResult(name=group.name if group is not None else OWN_MODEL, rows=rows)
    figure = diagnosis_figures(diagnosed.diagnoses).get(experiment.figure)
    if figure is not None:
        folder = request.folder(group) if group is not None else request.out
        path = folder / f"{experiment.name}.svg"
        write(path, save(figure, "svg"))
        result.picture = str(path.relative_to(request.out))
    return result


def _own_row(spec: str, remedies: list[str]) -> ArmResult:
    """The row of the user's model. Without remedies it is named "plain", so that claims about plain hosts apply.

    `remedies` are those of the model: a checkpoint may add some to the spec.
    """
    full = spec
    if not Path(spec).exists():
        given = parse(spec)
        missing = [remedy for remedy in map(parse_item, remedies) if remedy not in given.remedies]
        full = str(ModelSpec(given.host, (*given.remedies, *missing)))
    return ArmResult(name=full if remedies else PLAIN, spec=full, values={}, curves={})
