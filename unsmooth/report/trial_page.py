"""The page of a trial: the values of its templates."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unsmooth.report import formatting as words
from unsmooth.report import trial_rows, trial_values
from unsmooth.report.charts import curves, models
from unsmooth.report.page import STATES, assets, by_family, by_reason, environment
from unsmooth.report.trial_design import design, interval_level, untuned_fields
from unsmooth.report.trial_tokens import token_note, token_tables
from unsmooth.report.values import merged

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.trial import Arm, Trial

FILES = ("report.css", "trial.css", "core.js", "curves.js", "training.js", "cost.js")
NO_DIAGNOSIS = "No final model was diagnosed."


def trial_page(trial: Trial) -> str:
    """The HTML page of a trial."""
    diagnoses = trial_values.as_diagnoses(trial)
    names = words.unique_names(arm.name for arm in trial.arms)
    data: dict[str, Any] = {
        "models": models(diagnoses, names),
        "curves": curves(diagnoses),
        "learning": [asdict(chart) for chart in trial_values.learning(trial)],
        "during": [asdict(chart) for chart in trial_values.during(trial)],
        "cost": asdict(trial_values.cost(trial)),
    }
    few = len(names) <= trial_values.FEW
    return environment().get_template("trial.html.j2").render(
        trial=trial,
        models=[
            _arm(i, name, d, arm, trial_values.decimals(trial))
            for i, (name, d, arm) in enumerate(zip(names, diagnoses, trial.arms, strict=True))
        ],
        common=_common_host(trial.arms),
        several=len(names) > 1,
        forest=trial_rows.forest(trial),
        results=trial_rows.results(trial),
        flop_unit=trial_rows.flop_unit(trial)[0],
        robustness=trial_rows.robustness(trial),
        tokens=token_tables(trial),
        token_note=token_note(trial),
        design=design(trial),
        level=interval_level(trial),
        untuned={arm.name: fields for arm in trial.arms if (fields := untuned_fields(arm))},
        families=by_family(data["curves"]),
        definitions=merged(diagnoses),
        images_skipped=by_reason(trial.data.skipped),
        shown_first={"spread": few, "random": few},
        empty={"vitals": NO_DIAGNOSIS},
        data=data,
        data_json=words.script_json(data),
        **assets(*FILES),
    )  # fmt: skip


def _common_host(arms: list[Arm]) -> str:
    """The spec of the first arm if the others are that spec plus their name, else ""."""
    host = arms[0].spec
    return host if len(arms) > 1 and all(arm.spec == f"{host}+{arm.name}" for arm in arms[1:]) else ""


def _arm(index: int, name: str, diagnosis: Diagnosis | None, arm: Arm, digits: int) -> dict[str, Any]:
    state = diagnosis.verdict if diagnosis is not None else ""
    runs = [
        {"seed": run.seed, "folder": run.folder, "failed": run.failed, "time": words.duration(run.seconds),
         "top1": trial_rows.percent(run.top1, digits)}
        for run in arm.runs
    ]  # fmt: skip
    return {
        "index": index, "letter": words.letter(index), "name": name, "spec": arm.spec,
        "runs": runs, "reference": diagnosis.reference if diagnosis is not None else None,
        "marks": [] if diagnosis is None else sorted({b for finding in diagnosis.findings for b in finding.blocks}),
        "state": state if state in STATES else "unknown", "said": state,
        "text": diagnosis.verdict_text if diagnosis is not None else "",
    }  # fmt: skip
