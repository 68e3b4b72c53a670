"""Runs a trial of results/trials/NAME.toml and writes its record and figures, for docs/trials/.

    python benchmarks/trials.py retrofit cifar10.npz [--out FOLDER] [--jobs 2]

cifar10.npz holds x_train, y_train, x_test and y_test. Runs and report are kept in FOLDER, and finished runs are not
repeated. If the plan has a pilot, that many runs of the first arm come first, and the difference that the trial can
detect is stated from them; they are runs of the trial. The record, results/trials/NAME.json, has only a summary of the
diagnoses, and no vitals during training.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from unsmooth.cli.terminal import run_bars
from unsmooth.report.trial_figures import curves, differences
from unsmooth.training.run import train
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.compare import compare
from unsmooth.trials.directory import TrialDirectory

ROOT = Path(__file__).parent.parent
TRIALS, PICTURES = ROOT / "results" / "trials", ROOT / "docs" / "images" / "trials"
VITALS = ("token_cosine", "effective_rank", "log_condition", "attention_entropy")


def slim(trial: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a trial with a summary of its diagnoses."""
    for arm in trial["arms"]:
        diagnosis = arm["diagnosis"]
        arm["diagnosis"] = None if diagnosis is None else {
            "verdict": diagnosis["verdict"],
            "vitals": {
                key: [None if spread is None else spread["mean"] for spread in parts[diagnosis["vitals"][key]["main"]]]
                for key in VITALS
                if (parts := diagnosis["vitals"].get(key, {}).get("parts"))
            },
        }  # fmt: skip
        for run in arm["runs"]:
            run["epochs"] = [{k: v for k, v in line.items() if k != "vitals"} for line in run["epochs"]]
    return trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(path.stem for path in TRIALS.glob("*.toml")))
    parser.add_argument("data")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    planned = tomllib.loads((TRIALS / f"{arguments.name}.toml").read_text(encoding="utf-8"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // arguments.jobs) if arguments.jobs > 1 else 1)
    out = arguments.out or Path(arguments.name)
    specs = [planned["host"] + (f"+{arm}" if arm else "") for arm in planned["arms"]]
    command = shlex.join(["python", "benchmarks/trials.py", *sys.argv[1:]])
    first = plan_arms(specs)[0]
    for seed in range(planned.get("pilot", 0)):
        train(first.spec, arguments.data, seed=seed, out=TrialDirectory(out).run_path(first, seed), command=command,
              **planned["recipe"])  # fmt: skip
    with run_bars() as bars:
        trial = compare(
            specs, arguments.data, out=out, jobs=arguments.jobs, **planned["settings"], **planned["recipe"],
            on_progress=bars.on_progress, on_stage=bars.on_stage, progress=bars.on_runs,
            command=command,
        )  # fmt: skip
    print(trial)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, figure in (("differences", differences(trial)), ("curves", curves(trial))):
        if figure is not None:
            figure.savefig(PICTURES / f"{arguments.name}_{name}.svg", bbox_inches="tight", metadata={"Date": None})
    path = TRIALS / f"{arguments.name}.json"
    path.write_text(json.dumps(slim(trial.to_dict()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.name}; next: make docs")


if __name__ == "__main__":
    main()
