"""Control arms: the first spec with more parameters, and the first spec with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import parameters
from unsmooth.recipes.recipe import Recipe
from unsmooth.spec import ModelSpec, SpecItem
from unsmooth.tasks.model_factory import build
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.runs import TrialRuns
from unsmooth.trials.start import start_of

OTHER_SEEDS = 1000  # first seed of the control; a trial has fewer seeds
WIDTH = "mlp_ratio"
STEPS = 256  # ratios are multiples of 1 / STEPS


def control_arms(runs: TrialRuns) -> list[PlannedArm]:
    """The control arms that the settings of a trial ask for."""
    wanted, arms = runs.settings.controls, []
    if wanted in ("parameters", "all"):
        if start_of(runs) is not None:
            raise UnsmoothError(
                "the control of parameters is a wider host, which cannot start from trained weights. Use "
                "controls='seeds' (--controls)."
            )
        arms.append(parameter_control(runs.arms, runs.splits.classes, runs.recipe))
    if wanted in ("seeds", "all"):
        arms.append(seed_control(runs.arms[0]))
    return arms


def seed_control(first: PlannedArm) -> PlannedArm:
    """The first arm again, with other initial weights, order and augmentation: there is no difference to show."""
    return replace(first, name=f"{first.name}, other seeds", first_seed=OTHER_SEEDS, control="seeds")


def parameter_control(arms: Sequence[PlannedArm], classes: int, recipe: Recipe) -> PlannedArm:
    """The first arm with wider MLPs, so that it has at least as many parameters as any other arm."""
    first = arms[0]
    own, *sizes = (_parameters(arm.spec, classes, recipe) for arm in arms)
    if max(sizes) <= own:
        raise UnsmoothError(
            f"no arm has more parameters than {first.name} ({own:,}), so it needs no control of parameters. Use "
            "controls='seeds' (--controls)."
        )
    spec = widen(first.spec, max(sizes), classes, recipe)
    return replace(first, spec=spec, name=f"{first.name}, more parameters", control="parameters")


def widen(spec: ModelSpec, target: int, classes: int, recipe: Recipe) -> ModelSpec:
    """The spec with the smallest `mlp_ratio` that gives at least `target` parameters.

    Args:
        spec: Model spec of a timm host with the option `mlp_ratio`.
        target: Number of parameters.
        classes: Number of classes.
        recipe: Recipe of the trial.

    Raises:
        UnsmoothError: If the host has no such option.
    """
    host = spec.host
    assert host is not None

    def at(step: int) -> ModelSpec:
        return ModelSpec(SpecItem(host.name, {**host.options, WIDTH: step / STEPS}), spec.remedies)

    def size(step: int) -> int:
        try:
            return _parameters(at(step), classes, recipe)
        except UnsmoothError as error:
            raise UnsmoothError(_no_width(host.name)) from error

    low, high = 0, STEPS
    while size(high) < target:
        low, high = high, 2 * high
        if size(high) == size(low):  # the host ignores the option
            raise UnsmoothError(_no_width(host.name))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if size(middle) >= target else (middle, high)
    return at(high)


def _no_width(host: str) -> str:
    return (
        f"{host} has no option {WIDTH}, so it cannot be given more parameters. Use controls='seeds' (--controls), or "
        "add a larger host as a spec of its own."
    )


def _parameters(spec: ModelSpec, classes: int, recipe: Recipe) -> int:
    return parameters(build(spec, classes, recipe, 0))
