"""Runs one experiment of a paper: published values next to measured ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Experiment, open_experiment, small_host_name
from unsmooth.papers.claims import check_claims
from unsmooth.papers.costs import run_costs
from unsmooth.papers.diagnoses import run_diagnoses
from unsmooth.papers.request import RunRequest, distinct_groups
from unsmooth.papers.rows import published_row, with_printed_rows
from unsmooth.papers.task_runs import run_tasks
from unsmooth.papers.theorems import run_theorem
from unsmooth.papers.trials import run_trials
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.provenance import Provenance, versions
from unsmooth.results.reproduction import GroupResult, Reproduction, ReproductionScale
from unsmooth.utils.files import write

# Every runner returns the groups with their rows, and a description of the data.
RUNNERS: dict[str, Callable[[Experiment, RunRequest], tuple[list[GroupResult], str]]] = {
    "trial": run_trials, "diagnosis": run_diagnoses, "bench": run_costs, "task": run_tasks, "theorem": run_theorem,
}  # fmt: skip


def reproduce(name: str, request: RunRequest) -> Reproduction:
    """Run an experiment of a paper, and write paper.json, paper.md and figures to a directory.

    The same call resumes an interrupted run.

    Args:
        name: PAPER/EXPERIMENT, such as "anti_oversmoothing/table1".
        request: Scale, data, models and directory of the run.

    Returns:
        Published and measured values, and the claims of the paper with their checks.

    Raises:
        UnsmoothError: If the experiment is not known or cannot be run, or if the request does not fit it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from unsmooth.papers.request import RunRequest
        >>> request = RunRequest(out=Path(tempfile.mkdtemp()), small=True)
        >>> reproduction = reproduce("anti_oversmoothing/theorem1", request)
        >>> all(check.state == "confirmed" for claim in reproduction.claims for check in claim.checks)
        True
    """
    from unsmooth.papers.figures import gain_figure
    from unsmooth.report.figures import save

    experiment = open_experiment(name)
    if request.out.exists() and not request.out.is_dir():
        raise UnsmoothError(f"{request.out} is a file. Use a directory as out (--out).")
    _check_request(experiment, request)
    started = time.time()
    groups, data = RUNNERS[experiment.kind](experiment, request)
    groups = _with_equal_groups(experiment, request, groups)
    name_small_hosts(experiment, request, groups)
    _draw_curves(experiment, request, groups)
    reproduction = Reproduction(
        id=experiment.id, title=experiment.title, source=experiment.source, evidence=experiment.evidence,
        shows=experiment.shows, lines=experiment.lines, fingerprint=experiment.fingerprint(),
        scale=ReproductionScale(request.small, data, differences(experiment, request, data)),
        groups=groups, claims=check_claims(experiment, groups),
        provenance=Provenance(**versions(), command=request.command, seconds=round(time.time() - started, 1)),
    )  # fmt: skip
    figure = gain_figure(reproduction)
    if figure is not None:
        reproduction.picture = f"{experiment.name}.svg"
        write(request.out / reproduction.picture, save(figure, "svg"))
    reproduction.write(request.out)
    return reproduction


# Fields of the request that a kind of experiment does not use. They raise, rather than being ignored.
UNUSED = {
    "trial": ("spec",),
    "diagnosis": ("seeds",),
    "bench": ("spec", "data", "checkpoints", "pretrained", "seeds", "overrides"),
    "task": ("spec",),
    "theorem": ("spec", "data", "only", "checkpoints", "pretrained", "seeds", "overrides"),
}  # fmt: skip
UNUSED_WITH_SPEC = ("only", "overrides")
OPTIONS = {"checkpoints": "checkpoints (--checkpoint)", "overrides": "a recipe field"}


def _check_request(experiment: Experiment, request: RunRequest) -> None:
    for field in (*UNUSED[experiment.kind], *(UNUSED_WITH_SPEC if request.spec else ())):
        if getattr(request, field):
            option = OPTIONS.get(field, f"{field} (--{field.replace('_', '-')})")
            own = " with spec (--spec)" if request.spec and field in UNUSED_WITH_SPEC else ""
            raise UnsmoothError(
                f"{experiment.id} is a {experiment.kind}, which does not support {option}{own}. Leave it out."
            )
    if experiment.kind in ("trial", "task") and len(request.checkpoints) > 1:
        raise UnsmoothError(
            f"all arms of {experiment.id} start from the same checkpoint. Give one (got {len(request.checkpoints)})."
        )


def _with_equal_groups(experiment: Experiment, request: RunRequest, groups: list[GroupResult]) -> list[GroupResult]:
    """All groups in the order of the paper. At small scale, groups equal to another one have no measured values."""
    if not request.small or request.only or request.spec or not experiment.groups:
        return groups
    by_name = {group.name: group for group in groups}
    by_specs = {tuple(group.specs(small=True)): group.name for group in distinct_groups(experiment.groups)}
    results = []
    for group in experiment.groups:
        specs = group.specs(small=True)
        rows = with_printed_rows(group, [published_row(group, i, spec) for i, spec in enumerate(specs)])
        equal = GroupResult(name=group.name, rows=rows, like=by_specs[tuple(specs)])
        results.append(by_name.get(group.name, equal))
    return results


def name_small_hosts(experiment: Experiment, request: RunRequest, groups: list[GroupResult]) -> None:
    """Say of each group what ran, if it was not the published host."""
    published = {group.name: group for group in experiment.groups}
    for result in groups:
        group = published.get(result.name)
        if request.small and not request.spec and group is not None and group.small and group.small != group.host:
            result.ran = small_host_name(group.small)


def _draw_curves(experiment: Experiment, request: RunRequest, groups: list[GroupResult]) -> None:
    """Draw the curves of each group that has no figure yet."""
    from unsmooth.papers.figures import curve_figure
    from unsmooth.report.figures import save

    for i, group in enumerate(groups):
        figure = curve_figure(group) if group.picture is None else None
        if figure is not None:
            group.picture = f"{experiment.name}-{i + 1}.svg"
            write(request.out / group.picture, save(figure, "svg"))


def differences(experiment: Experiment, request: RunRequest, data: str) -> list[str]:
    """Differences from the paper."""
    lines = [experiment.differs] if experiment.differs else []
    if request.spec:
        trained = request.pretrained or request.checkpoints or Path(request.spec).exists()
        random = [] if trained else ["the weights are random: give --checkpoint or --pretrained"]
        return [*lines, f"the model is {request.spec}, on {data}; published: {experiment.full.data}", *random]
    if experiment.kind == "theorem":
        return lines
    if data != experiment.full.data:
        lines.append(f"data: {data}; published: {experiment.full.data}")
    if experiment.kind in ("trial", "task"):
        group, full = experiment.groups[0], replace(request, small=False, overrides={})
        ours = _budget(request.scale(experiment).recipe, request.recipe(experiment, group))
        theirs = _budget(group.recipe or experiment.full.recipe, full.recipe(experiment, group))
        lines += [f"budget: {ours}; at full scale: {theirs}"] if ours != theirs else []
    if request.small:
        hosts = [f"{group.small} for {group.host}" for group in request.groups(experiment) if group.small != group.host]
        lines += [f"hosts: {'; '.join(dict.fromkeys(hosts))}"] if hosts else []
    return lines


def _budget(name: str, recipe: Recipe) -> str:
    return f"{recipe.epochs} epoch{'s' if recipe.epochs != 1 else ''} in batches of {recipe.batch_size} (recipe {name})"
