"""Runs an experiment of results/experiments.toml and writes results/NAME.json, which the docs use.

    python benchmarks/recorded.py cifar10_depth12 cifar10.npz [--out FOLDER] [--jobs 2]

Runs and report are kept in FOLDER. The JSON has only a summary of the diagnoses, and no vitals during training.
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
from unsmooth.trials.compare import compare

RESULTS = Path(__file__).parent.parent / "results"
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
    experiments = tomllib.loads((RESULTS / "experiments.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=experiments)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    experiment = experiments[arguments.name]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // arguments.jobs) if arguments.jobs > 1 else 1)
    with run_bars() as bars:
        trial = compare(
            [experiment["host"] + (f"+{arm}" if arm else "") for arm in experiment["arms"]], arguments.data, seeds=3,
            recipe=RESULTS / "cifar10.toml", out=arguments.out or Path(arguments.name), jobs=arguments.jobs,
            on_progress=bars.on_progress, on_stage=bars.on_stage,
            command=shlex.join(["python", "benchmarks/recorded.py", *sys.argv[1:]]),
        )  # fmt: skip
    print(trial)
    path = RESULTS / f"{arguments.name}.json"
    path.write_text(json.dumps(slim(trial.to_dict()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.name}; next: make docs")


if __name__ == "__main__":
    main()
