"""A trial that has something for every section of its report, with invented numbers."""

from __future__ import annotations

import math
import statistics
from typing import Any

from tests.report.test_diagnosis_page import diagnosis
from unsmooth.results.trial import Trial

NAMES = ("plain", "attn_scale", "feat_scale", "context_broadcast")
SEEDS = (0, 1, 2)
HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=4)"


def stat(runs: list[float | None]) -> dict[str, Any]:
    """Mean and spread of the runs that came to an end."""
    there = [v for v in runs if v is not None]
    sd = statistics.stdev(there) if len(there) > 1 else None
    return {"mean": statistics.fmean(there) if there else None, "sd": sd, "runs": runs}


def difference(mean: float, half: float, seeds: int) -> dict[str, Any]:
    """A difference of shares; it is shown if its interval misses zero."""
    low, high = mean - half, mean + half
    shown = low > 0 or high < 0
    span = f"({100 * low:.1f} to {100 * high:.1f}"
    text = f"{100 * mean:+.1f} points {span})" if shown else f"no difference shown {span} points)"
    by_seed = [mean + half * 0.6 * (s - (seeds - 1) / 2) for s in range(seeds)]
    return {"mean": mean, "low": low, "high": high, "by_seed": by_seed, "shown": shown, "text": text.replace("-", "−")}


def epoch(number: int, epochs: int, top1: float, vitals: bool) -> dict[str, Any]:
    grown = 1 - math.exp(-4 * number / epochs)
    facts: dict[str, Any] = {
        "epoch": number, "lr": 0.001, "train_loss": 2.3 - 1.7 * grown, "val_loss": 2.3 - 1.4 * grown,
        "val_top1": 0.1 + (top1 - 0.1) * grown,
    }  # fmt: skip
    if vitals:
        facts["vitals"] = {
            "token_cosine": [0.2 + 0.1 * b + 0.2 * grown for b in range(4)],
            "effective_rank": [12 - b - 2 * grown if b else None for b in range(4)],
        }
    return facts


def run(arm: str, seed: int, top1: float, epochs: int) -> dict[str, Any]:
    return {
        "seed": seed, "folder": f"{arm}/seed{seed}", "top1": top1, "top5": min(1.0, top1 + 0.2), "loss": 1.1 - top1 / 2,
        "seconds": 75.25, "failed": None,
        "epochs": [epoch(e, epochs, top1, e % 2 == 1 or e == epochs) for e in range(1, epochs + 1)],
    }  # fmt: skip


def arm(index: int, name: str, seeds: tuple[int, ...], epochs: int) -> dict[str, Any]:
    gain = 0.021 * index if index < 3 else 0.004
    top1 = [0.7312941 + gain + 0.006 * s for s in range(len(seeds))]
    apart = None if index == 0 else difference(gain, 0.015, len(seeds))
    changed = {
        condition: {"top1": stat([v - less for v in top1]), "difference": apart}
        for condition, less in (("occlusion 0.25", 0.1), ("occlusion 0.5", 0.27))
    }
    ratio = {"median": 1 - 0.03 * index, "low": 1 - 0.035 * index, "high": 1 - 0.02 * index}
    return {
        "name": name, "spec": HOST if index == 0 else f"{HOST}+{name}", "folder": name,
        "parameters": 13_400 + 72 * index, "flops": 1_234_567 + 1000 * index,
        "training": {"images_per_second": 812.34567, "ratio": ratio},
        "inference": {"images_per_second": 3012.34567, "ratio": ratio},
        "top1": stat(list(top1)), "top5": stat([v + 0.2 for v in top1]), "loss": stat([1.1 - v / 2 for v in top1]),
        "difference": apart, "robustness": changed,
        "runs": [run(name, seed, v, epochs) for seed, v in zip(seeds, top1, strict=True)],
        "diagnosis": diagnosis(f"{HOST}+{name}"),
    }  # fmt: skip


def trial(
    names: tuple[str, ...] = NAMES, seeds: tuple[int, ...] = SEEDS, epochs: int = 6, **changes: Any
) -> dict[str, Any]:
    return {
        "format": 1, "kind": "trial",
        "data": {"name": "digits", "train": 1437, "val": 360, "classes": 10, "image": [1, 8, 8],
                 "skipped": {"broken.png": "cannot be read"}},
        "recipe_name": "small",
        "recipe": {"epochs": epochs, "batch_size": 64, "lr": 0.001, "crop_ratio": [0.75, 4 / 3], "min_lr": 1e-05,
                   "compile": False, "teacher": ""},
        "seeds": list(seeds), "confidence": 0.95,
        "arms": [arm(i, name, seeds, epochs) for i, name in enumerate(names)],
        "verdict": {"text": "feat_scale is better than plain on digits.", "lines": ["attn_scale too."]},
        "made": {"unsmooth": "0.1.0", "torch": "2.7", "timm": "1.0", "python": "3.11.9", "machine": "x86_64, a machine",
                 "threads": 2, "jobs": 1, "device": "cpu", "seconds": 3725.5,
                 "command": "unsmooth compare digits plain attn_scale"},
    } | changes  # fmt: skip


def typed(values: dict[str, Any]) -> Trial:
    return Trial.from_dict(values)


def fail(arm: dict[str, Any], *seeds: int, why: str = "NaN in block 3") -> dict[str, Any]:
    """An arm some of whose runs did not come to their end."""
    for one in arm["runs"]:
        if one["seed"] in seeds:
            one |= {"failed": why, "top1": None, "top5": None, "loss": None, "epochs": one["epochs"][:2]}
    for key in ("top1", "top5", "loss"):
        arm[key] = stat([one[key] for one in arm["runs"]])
    if arm["top1"]["mean"] is None:
        arm |= {"difference": None, "robustness": {}, "diagnosis": None}
    elif arm["difference"]:
        arm["difference"]["by_seed"] = arm["difference"]["by_seed"][: sum(v is not None for v in arm["top1"]["runs"])]
    return arm
