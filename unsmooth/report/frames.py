"""Results as tables of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unsmooth.report.values import kind, reference_series
from unsmooth.utils.notebook import data_frame

if TYPE_CHECKING:
    import pandas

    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.trial import Trial
    from unsmooth.results.verdict import Finding

MEASURED = ("vital", "part", "block", "head", "mean", "sd", "low", "high", "images", "random")
EVIDENCE = ("vital", "part", "family", "block", "value", "limit", "margin", "threshold", "source", "text")
RUN = ("arm", "seed", "top1", "top5", "loss", "seconds", "failed")
ARM = (
    "arm", "spec", "top1", "top1_sd", "difference", "low", "high", "p", "p_holm", "shown", "parameters", "flops",
    "training", "inference", "verdict",
)  # fmt: skip


def diagnosis_frame(diagnosis: Diagnosis, tidy: bool) -> pandas.DataFrame:
    """One row per block and one column per vital, or one row per measurement."""
    if tidy:
        return data_frame(_measurements(diagnosis), MEASURED)
    columns = {
        key: reading.mean
        for key, reading in diagnosis.items()
        if kind(reading.name, reading.vital.parts[reading.name]) == "line"
    }
    rows = [{"block": i} | {key: values[i] for key, values in columns.items()} for i in range(diagnosis.blocks)]
    return data_frame(rows, ("block", *columns), "block").astype(float)


def _measurements(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    rows = []
    for key, vital in diagnosis.vitals.items():
        for part, series in vital.parts.items():
            shape = kind(part, series)
            if shape not in ("line", "heads"):
                continue
            random = reference_series(diagnosis, key, part) if shape == "line" else []
            for block, spread in enumerate(series):
                if spread is None:
                    continue
                means, sds = (v if isinstance(v, list) else [v] for v in (spread.mean, spread.sd))
                for head, mean in enumerate(means):
                    rows.append({
                        "vital": key, "part": part, "block": block, "head": head if shape == "heads" else None,
                        "mean": mean, "sd": sds[head] if head < len(sds) else None,
                        "low": spread.low if shape == "line" else None,
                        "high": spread.high if shape == "line" else None,
                        "images": spread.images,
                        "random": getattr(random[block], "mean", None) if block < len(random) else None,
                    })  # fmt: skip
    return rows


def finding_frame(finding: Finding) -> pandas.DataFrame:
    """One row per piece of evidence."""
    return data_frame([{name: getattr(e, name) for name in EVIDENCE} for e in finding.evidence], EVIDENCE)


def trial_frame(trial: Trial, runs: bool) -> pandas.DataFrame:
    """One row per arm, or one row per run."""
    if runs:
        rows = [
            {"arm": arm.name} | {name: getattr(run, name) for name in RUN[1:]} for arm in trial.arms for run in arm.runs
        ]
        return data_frame(rows, RUN)
    rows = []
    for arm in trial.arms:
        difference = arm.difference
        rows.append({
            "arm": arm.name, "spec": arm.spec, "top1": arm.top1.mean, "top1_sd": arm.top1.sd,
            "difference": None if difference is None else difference.mean,
            "shown": None if difference is None else difference.decided,
            **{name: getattr(difference, name, None) for name in ("low", "high", "p", "p_holm")},
            "parameters": arm.parameters, "flops": arm.flops,
            "training": None if arm.training is None else arm.training.ratio.median,
            "inference": None if arm.inference is None else arm.inference.ratio.median,
            "verdict": None if arm.diagnosed is None else arm.diagnosed.verdict,
        })  # fmt: skip
    return data_frame(rows, ARM, "arm")
