"""One page per trial of results/trials/, and a page that lists them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tools.markdown import DOCS, RESULTS, facts, page, section, table, whole
from unsmooth.report.trial_design import design, interval_level
from unsmooth.report.trial_rows import correction
from unsmooth.report.trial_values import decimals
from unsmooth.results.trial import Arm, DiagnosisSummary, Trial
from unsmooth.spec import parse

COLUMNS = (
    "arm", "top-1, %", "points", "published", "parameters", "MFLOPs", "inference", "training", "diagnosis",
    "similarity", "rank",
)  # fmt: skip
INTRODUCTION = """
Each trial trains several models on one budget and compares them with the first one. Every page has the question, the
difference that the trial can detect, stated before the first run, the result with intervals, and the command that
repeats it. Budgets are those of two CPU cores, far from the budgets of the papers. The runs of a long trial were made
in several sessions, between which the code changed; a run that is repeated may differ by rounding.
"""
LEGEND = """
- *top-1*: accuracy after the last epoch, mean ± standard deviation over seeds.
- *points*: difference from the first arm, paired by seed and image, with a {level} interval over both; p-values as
  measured and after Holm's correction for the number of arms.
- *published*: difference in the paper, for other hosts, data and budgets.
- *inference*, *training*: images per second as a ratio to the first arm, measured interleaved. Python overhead is
  visible on hosts this small.
- *diagnosis*, *similarity* (mean |cosine| of tokens), *rank* (effective rank): of the first seed's final model on 64
  test images, first block → last block.
"""
PREDICTION = """
A verdict is about tokens. Whether a model that is said to collapse gains from a remedy is another question, which these
trials can answer. Each row counts the arms with a remedy by the verdict on the model that they are compared with: its
first seed, after training without the remedy. Controls, and arms that only take something away, are not counted.
"""
OUTCOMES = ("better", "no difference shown", "worse")
HARMFUL = "no_skip"


def recorded_trials() -> dict[str, tuple[dict[str, Any], Trial]]:
    """The plan and the record of every trial that was run, by name."""
    records = {path.stem: path for path in sorted((RESULTS / "trials").glob("*.json"))}
    return {name: (_plan(path), Trial.from_json(path)) for name, path in records.items()}


def _plan(record: Path) -> dict[str, Any]:
    return tomllib.loads(record.with_suffix(".toml").read_text(encoding="utf-8"))


def pages() -> dict[str, str]:
    trials = recorded_trials()
    rows = [
        (f"[{plan['title']}]({name}.md)", len(trial.arms), len(trial.seeds), trial.verdict.text)
        for name, (plan, trial) in trials.items()
    ]
    index = [
        "# Trials", "", INTRODUCTION.strip(), "", *table(("trial", "arms", "seeds", "result"), rows),
        "## Does the verdict predict the outcome?", "", PREDICTION.strip(), "",
        *table(("verdict", *OUTCOMES, "arms"), _outcomes(trials)),
    ]  # fmt: skip
    return {
        "trials/index.md": page(index),
        **{f"trials/{name}.md": _page(name, plan, trial) for name, (plan, trial) in trials.items()},
    }


def _outcomes(trials: dict[str, tuple[dict[str, Any], Trial]]) -> list[tuple[str, ...]]:
    """Numbers of treated arms by the verdict on the first arm and by outcome."""
    counts = dict[str, dict[str, int]]()
    for _, trial in trials.values():
        first, *others = trial.arms
        if first.diagnosis is None:
            continue
        verdict = first.diagnosed.verdict if first.diagnosed else first.diagnosis.verdict
        state = verdict if isinstance(verdict, str) else verdict.state
        already = [str(item) for item in parse(first.spec).remedies]
        for arm in others:
            added = [item.name for item in parse(arm.spec).remedies if str(item) not in already]
            if arm.difference is None or not added or HARMFUL in added:
                continue
            outcome = OUTCOMES[1] if not arm.difference.decided else OUTCOMES[0 if arm.difference.mean > 0 else 2]
            by_outcome = counts.setdefault(state, dict.fromkeys(OUTCOMES, 0))
            by_outcome[outcome] += 1
    return [
        (state, *(str(by_outcome[outcome]) for outcome in OUTCOMES), str(sum(by_outcome.values())))
        for state, by_outcome in sorted(counts.items())
    ]


def _page(name: str, plan: dict[str, Any], trial: Trial) -> str:
    data, made, published = trial.data, trial.provenance, plan.get("published", {})
    budget = ", ".join(f"{key} = {value}" for key, value in plan["recipe"].items())
    hours = sum(run.seconds or 0 for arm in trial.arms for run in arm.runs) / 3600
    lines = [
        f"# {plan['title']}", "", *([plan["question"], ""] if "question" in plan else []),
        f"**{trial.verdict.text}**", "",
        *facts({
            "Host": f"`{plan['host']}`",
            "Data": f"{data.name}, {data.train:,} training and {data.val:,} test images",
            "Budget": f"{budget}; {len(trial.seeds)} seeds",
            "Computing": f"{hours:.1f} hours, threads per run: {made.threads}, torch {made.torch}",
            "Repeat it": f"`python benchmarks/trials.py {name} cifar10.npz`",
        }),
        *(line for text in design(trial) for line in (text, "")),
        *table(COLUMNS, (_row(arm, published, decimals(trial)) for arm in trial.arms)),
        LEGEND.format(level=interval_level(trial)).strip(), "",
        *_pictures(name),
        *section("Reading", [plan["reading"].strip()] if "reading" in plan else []),
    ]  # fmt: skip
    return page(lines)


def _pictures(name: str) -> list[str]:
    titles = {"differences": "Differences from the first arm", "curves": "Learning curves"}
    return [
        line
        for key, title in titles.items()
        if (DOCS / "images" / "trials" / f"{name}_{key}.svg").is_file()
        for line in (f"![{title}](../images/trials/{name}_{key}.svg)", "")
    ]


def _row(arm: Arm, published: dict[str, str], digits: int) -> list[str]:
    accuracy = "failed" if arm.top1.mean is None else f"{100 * arm.top1.mean:.{digits}f}"
    accuracy += "" if arm.top1.sd is None else f" ± {100 * arm.top1.sd:.{digits}f}"
    gain = "" if arm.difference is None else arm.difference.text.replace(" points", "") + correction(arm.difference)
    if "(" in gain:  # a line break may only precede the interval
        text, _, interval = gain.partition("(")
        gain = f"{text}({whole(interval)}"
    summary = arm.diagnosis if isinstance(arm.diagnosis, DiagnosisSummary) else None

    def ends(key: str, digits: int) -> str:
        values = [v for v in (summary.vitals.get(key, []) if summary else []) if v is not None]
        return whole(f"{values[0]:.{digits}f} → {values[-1]:.{digits}f}") if values else ""

    return [
        f"`{arm.name}`", whole(accuracy), gain, published.get(arm.name, ""),
        "" if arm.parameters is None else f"{arm.parameters:,}", "" if arm.flops is None else f"{arm.flops / 1e6:.1f}",
        *("" if speed is None else f"{speed.ratio.median:.2f}" for speed in (arm.inference, arm.training)),
        summary.verdict.state if summary else "", ends("token_cosine", 2), ends("effective_rank", 1),
    ]  # fmt: skip
