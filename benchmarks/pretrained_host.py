"""Trains `cct_12_3x2_32`, the host that comes with the package, and writes its weights, log and scores.

    python benchmarks/pretrained_host.py FOLDER --data cifar10.npz

The run is kept in FOLDER and resumed from there. Written: unsmooth/models/weights/cct_12_3x2_32.safetensors (half
precision), results/cct_12_3x2_32/metrics.jsonl and results/cct_12_3x2_32/scores.json. The scores are those of the
half-precision file, loaded as a user loads it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import unsmooth

NAME = "cct_12_3x2_32"
ROOT = Path(__file__).parent.parent
RECORD, WEIGHTS = ROOT / "results" / NAME, ROOT / "unsmooth" / "models" / "weights" / f"{NAME}.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = arguments.folder / NAME
    result = unsmooth.train(NAME, arguments.data, recipe=RECORD / "recipe.toml", out=run, seed=0)
    shutil.copyfile(run / "metrics.jsonl", RECORD / "metrics.jsonl")
    weights = {name: value.half().contiguous() for name, value in load_file(run / "last" / "model.safetensors").items()}
    WEIGHTS.parent.mkdir(exist_ok=True)
    save_file(weights, WEIGHTS, metadata={"format": "pt"})
    scored = unsmooth.evaluate(f"{NAME}(pretrained=true)", arguments.data)["validation"]
    diagnosis = unsmooth.diagnose(f"{NAME}(pretrained=true)", arguments.data, limit=512)
    images = f"On {diagnosis.images.count} test images of CIFAR-10: "
    scores = {
        "top1": scored.top1, "top1_interval": scored.top1_interval, "top1_of_the_run": result["top1"],
        "images": scored.images,
        "parameters": sum(value.numel() for value in weights.values()), "bytes": WEIGHTS.stat().st_size,
        "epochs": result.epochs, "seconds": round(result.seconds),
        "verdict": diagnosis.verdict, "diagnosis": images + diagnosis.verdict_text,
    }  # fmt: skip
    (RECORD / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
