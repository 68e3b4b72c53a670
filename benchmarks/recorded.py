"""Runs a recorded experiment (results/experiments.toml) and writes results/NAME.json, which the docs are made from.

    python benchmarks/recorded.py cifar10_depth12 cifar10.npz [--out FOLDER] [--jobs 2]

FOLDER keeps the runs and the report. The JSON leaves out what is large: whole diagnoses and learning curves.
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
    """A trial without what is large."""
    for arm in trial["arms"]:
        found = arm["diagnosis"]
        arm["diagnosis"] = None if found is None else {
            "verdict": found["verdict"],
            "vitals": {
                key: [None if spread is None else spread["mean"] for spread in parts[found["vitals"][key]["main"]]]
                for key in VITALS
                if (parts := found["vitals"].get(key, {}).get("parts"))
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
    given = parser.parse_args()
    wanted = experiments[given.name]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // given.jobs) if given.jobs > 1 else 1)
    with run_bars() as bars:
        trial = compare(
            [wanted["host"] + (f"+{arm}" if arm else "") for arm in wanted["arms"]], given.data, seeds=3,
            recipe=RESULTS / "cifar10.toml", out=given.out or Path(given.name), jobs=given.jobs, told=bars.told,
            stage=bars.stage, command=shlex.join(["python", "benchmarks/recorded.py", *sys.argv[1:]]),
        )  # fmt: skip
    print(trial)
    path = RESULTS / f"{given.name}.json"
    path.write_text(json.dumps(slim(trial.data), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.name}; now: make docs")


if __name__ == "__main__":
    main()
