"""Figures of what goes on inside a model: diagnoses of given weights, or of small models that are trained first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import PLAIN, Experiment, Group
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import row_of
from unsmooth.papers.trials import about_data, by_block, train_group
from unsmooth.report.figures import save
from unsmooth.report.render import diagnosis_figures
from unsmooth.report.reproduction_table import Row
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.surgery.create import create_model
from unsmooth.surgery.storage import load
from unsmooth.utils.files import write


def run_looks(experiment: Experiment, request: RunRequest) -> tuple[list[Row], str]:
    """The groups with their rows and pictures, and the data in words."""
    if request.spec:
        found = [_own(experiment, request)]
    elif request.checkpoints or request.pretrained or not request.small:
        found = [_given(experiment, group, request) for group in request.groups(experiment)]
    else:
        found = [_trained(experiment, group, request) for group in request.groups(experiment)]
    return [_group(experiment, group, specs, looks, request) for group, specs, looks, _ in found], found[0][3]


Look = tuple[Group | None, list[str], list[Diagnosis], str]


def _own(experiment: Experiment, request: RunRequest) -> Look:
    """A model of the user's under the paper's figure."""
    if len(request.checkpoints) > 1:
        raise UnsmoothError(f"one --spec and {len(request.checkpoints)} checkpoints: give one")
    path = request.checkpoints[0] if request.checkpoints else None
    model: Any = create_model(request.spec, pretrained=True) if request.pretrained else request.spec
    found = _diagnose(experiment, request, model, path, request.data)
    return None, [request.spec], [found], _about(found)


def _given(experiment: Experiment, group: Group, request: RunRequest) -> Look:
    specs = group.specs(request.small)
    if not request.checkpoints and not request.pretrained:
        raise UnsmoothError(
            f"{experiment.id} looks into trained models ({', '.join(specs)}): give --checkpoint for each, or "
            "--pretrained, or a --spec and --checkpoint of your own, or --small to train small ones"
        )
    treated = [arm.add for arm in group.arms if arm.add]
    if request.pretrained and treated:
        raise UnsmoothError(
            f"no library has weights with {', '.join(treated)}, which would start at what changes nothing: give "
            "--checkpoint for each model instead of --pretrained"
        )
    if request.checkpoints and len(request.checkpoints) != len(specs):
        raise UnsmoothError(
            f"{group.name} has {len(specs)} models and {len(request.checkpoints)} checkpoints were given"
        )
    paths: list[Path | None] = [*request.checkpoints] or [None] * len(specs)
    looks = []
    for spec, path in zip(specs, paths, strict=True):
        model: Any = create_model(spec, pretrained=True) if path is None else spec
        looks.append(_diagnose(experiment, request, model, path, request.data))
    return group, specs, looks, _about(looks[0])


def _trained(experiment: Experiment, group: Group, request: RunRequest) -> Look:
    trial = train_group(experiment, group, request, vitals="")
    looks = []
    for arm in trial["arms"]:
        done = next((run["folder"] for run in arm["runs"] if run["top1"] is not None), None)
        if done is None:
            failed = next((run["failed"] for run in arm["runs"] if run["failed"]), "it was not trained")
            raise UnsmoothError(f"{experiment.id}: there is no model of {arm['name']} to look into: {failed}")
        model = load(request.folder(group) / done / "last")
        looks.append(_diagnose(experiment, request, model, None, request.images(experiment)))
    return group, group.specs(request.small), looks, about_data(trial)


def _diagnose(
    experiment: Experiment, request: RunRequest, model: Any, path: Path | None, images: str | None
) -> Diagnosis:
    request.on_stage(f"{experiment.id}: a look at {model if isinstance(model, str) else type(model).__name__}")
    names = [*(curve.vital for curve in experiment.curves), *experiment.vitals.split(",")]
    vitals = [name for name in dict.fromkeys(names) if name]
    return diagnose(
        model, images, vitals or None, experiment.blocks or None, checkpoint=path,
        data_dir=request.data_dir, limit=request.scale(experiment).images, reference=False,
    )  # fmt: skip


def _about(found: Diagnosis) -> str:
    return f"{found.images.count} images of {Path(found.images.source).name}"


def _group(
    experiment: Experiment, group: Group | None, specs: list[str], looks: list[Diagnosis], request: RunRequest
) -> Row:
    name = group.name if group is not None else "your model"
    rows = []
    for at, (spec, look) in enumerate(zip(specs, looks, strict=True)):
        row = row_of(group, at, spec) if group is not None else _own_row(spec, look.model.remedies)
        look.model.name = row["name"] if group is not None else row["spec"]
        row["curves"] = {c.label: found for c in experiment.curves if (found := by_block(look, c)) is not None}
        row["skipped"] = sorted({r for vital in look.vitals.values() for r in vital.skipped.values()})
        rows.append(row)
    picture = diagnosis_figures(looks).get(experiment.figure)
    made: Row = {"name": name, "rows": rows}
    if picture is not None:
        folder = request.folder(group) if group is not None else request.out
        path = folder / f"{experiment.name}.png"
        write(path, save(picture, "png"))
        made["picture"] = str(path.relative_to(request.out))
    return made


def _own_row(spec: str, remedies: list[str]) -> Row:
    """A model without remedies is what the papers call plain, so that claims about that are held against it.

    What is on it was found on the model: a checkpoint brings its remedies along.
    """
    missing = [] if Path(spec).exists() else [one for one in remedies if f"+{one}" not in spec]
    whole = "+".join([spec, *missing])
    return {"name": whole if remedies else PLAIN, "spec": whole, "values": {}, "curves": {}}
