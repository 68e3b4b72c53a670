"""Runs a trial of results/trials/NAME.toml and writes its record and figures, for docs/trials/.

    python benchmarks/trials.py retrofit cifar10.npz [--out FOLDER] [--jobs 2] [--resume]

cifar10.npz holds x_train, y_train, x_test and y_test. Runs and report are kept in FOLDER, and finished runs are not
repeated. If the plan has a pilot, that many seeds of its first arm, or of its first `pilot_arms` arms, come first, and
the difference that the trial can detect is stated from them; they are runs of the trial. The record,
results/trials/NAME.json, has only a summary of the diagnoses, and no vitals during training. The scores of finished
runs, image by image and without weights, are kept in results/trials/NAME.zip, also when the trial is interrupted;
--resume starts from them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import tomllib
import zipfile
from collections.abc import Iterator
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
OF_TRIAL = ("power.json", "start.json", "diagnosis.json")
OF_RUN = ("run.json", "metrics.jsonl", "scores.npz", "tokens.npz", "result.json")
VITALS = ("token_cosine", "effective_rank", "log_condition", "attention_entropy")


def slim(trial: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a trial with a summary of its diagnoses, and its data by name."""
    trial["data"]["name"] = Path(trial["data"]["name"]).name
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


def pack(folder: Path, archive: Path) -> None:
    """Write what finished runs measured to an archive. Equal files give equal bytes."""
    files = sorted({*_of_runs(folder), *(path for name in OF_TRIAL for path in folder.rglob(name))})
    if files:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in files:
                content = _without_paths(path) if path.name == "run.json" else path.read_bytes()
                packed.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), content, zipfile.ZIP_DEFLATED)


def _without_paths(path: Path) -> bytes:
    """A run.json in which absolute paths are names."""
    run = json.loads(path.read_bytes())
    run["data"] = Path(run["data"]).name
    words = shlex.split(run["command"])
    run["command"] = shlex.join(Path(word).name if Path(word).is_absolute() else word for word in words)
    return json.dumps(run, indent=1).encode()


def _of_runs(folder: Path) -> Iterator[Path]:
    for result in folder.rglob("result.json"):
        yield from (path for name in OF_RUN if (path := result.with_name(name)).exists())


def unpack(archive: Path, folder: Path) -> None:
    """Restore the files of an archive that the folder does not have."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if not (folder / name).exists()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(path.stem for path in TRIALS.glob("*.toml")))
    parser.add_argument("data")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="start from the finished runs in results/trials/NAME.zip")
    arguments = parser.parse_args()
    planned = tomllib.loads((TRIALS / f"{arguments.name}.toml").read_text(encoding="utf-8"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // arguments.jobs) if arguments.jobs > 1 else 1)
    out = arguments.out or Path(arguments.name)
    specs = [planned["host"] + (f"+{arm}" if arm else "") for arm in planned["arms"]]
    command = shlex.join(["python", "benchmarks/trials.py", arguments.name, Path(arguments.data).name])
    archive = TRIALS / f"{arguments.name}.zip"
    if arguments.resume and archive.exists():
        unpack(archive, out)
    pilot = plan_arms(specs)[: planned.get("pilot_arms", 1)]
    try:
        for seed in range(planned.get("pilot", 0)):
            for arm in pilot:
                train(arm.spec, arguments.data, seed=seed, out=TrialDirectory(out).run_path(arm, seed), command=command,
                      **planned["recipe"])  # fmt: skip
        with run_bars() as bars:
            trial = compare(
                specs, arguments.data, out=out, jobs=arguments.jobs, **planned["settings"], **planned["recipe"],
                on_progress=bars.on_progress, on_stage=bars.on_stage, progress=bars.on_runs,
                command=command,
            )  # fmt: skip
    finally:
        pack(out, archive)
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
