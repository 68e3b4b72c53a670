"""When alarms are raised: a small ViT on digits, healthy and made to collapse in three ways, on several seeds.

Arms: `healthy`; `no_skip`, without the attention skip, which collapses from the start; `growing_logits`, whose query
and key weights grow by 1 % per step from step 100 on; `growing_lr`, whose learning rate grows by 3 % per step from step
100 on. All arms of a seed start from the same weights and see the same images in the same order. Accuracy shows a
collapse at the first of two successive validations that are more than three standard errors below the healthy arm.

    python benchmarks/alarms.py [--seeds 10] [--write]      # results/monitor.json, after each seed
    python benchmarks/alarms.py --figure                    # docs/images/monitor.svg, from that file
"""

# mypy: disable-error-code="union-attr"
# (torch types what a module holds as Tensor | Module)

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import unsmooth
from unsmooth.monitoring.alarms import RULES, nearest

HOST = (
    "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=32, num_heads=2, depth=4, num_classes=10, "
    "class_token=False, global_pool='avg')"
)
STEPS, WARMUP, BATCH, EVERY, LR = 360, 20, 64, 20, 3e-3
GROW_FROM, WEIGHT_GROWTH, LR_GROWTH = 100, 1.01, 1.03
VALIDATION = 597
ROOT = Path(__file__).parents[1]
RESULT, FIGURE = ROOT / "results" / "monitor.json", ROOT / "docs" / "images" / "monitor.svg"


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and validation images and labels; the split depends on the seed."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    images = ((torch.tensor(data.images).float() - 4.9) / 6.0).unsqueeze(1)[order]
    labels = torch.tensor(data.target)[order]
    return images[VALIDATION:], labels[VALIDATION:], images[:VALIDATION], labels[:VALIDATION]


def grow_logits(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step >= GROW_FROM:
        with torch.no_grad():
            for block in model.blocks:
                width = block.attn.qkv.weight.shape[1]
                block.attn.qkv.weight[: 2 * width] *= WEIGHT_GROWTH


def grow_lr(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.param_groups[0]["lr"] *= LR_GROWTH ** max(0, step - GROW_FROM)


ARMS: dict[str, tuple[str, Callable[..., None] | None]] = {
    "healthy": ("", None),
    "no_skip": ("+no_skip", None),
    "growing_logits": ("", grow_logits),
    "growing_lr": ("", grow_lr),
}


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def run(arm: str, seed: int, steps: int = STEPS, every: int = EVERY, **options: Any) -> dict[str, Any]:
    """Train one arm under a monitor. Accuracy and vitals by step, and the alarms."""
    remedy, change = ARMS[arm]
    torch.manual_seed(seed)
    model = unsmooth.create_model(HOST + remedy).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
    x, y, val_x, val_y = digits(seed)
    chance = torch.Generator().manual_seed(seed)
    scores = {}
    with unsmooth.Monitor(model, every=every, on_alarm="ignore", **options) as monitor:
        for step in range(steps):
            if step % every == 0:
                scores[step] = accuracy(model, val_x, val_y)
            optimizer.param_groups[0]["lr"] = LR * min(1, (step + 1) / WARMUP)
            if change is not None:
                change(model, optimizer, step)
            batch = torch.randint(len(x), (BATCH,), generator=chance)
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"accuracy": scores, "history": monitor.history, "alarms": monitor.alarms}


def shown_at(arm: dict[int, float], healthy: dict[int, float]) -> int | None:
    """The first of two successive validations that are lower than the healthy arm's by three standard errors."""
    low = [
        step
        for step, score in arm.items()
        if healthy[step] - score
        > 3 * math.sqrt((healthy[step] * (1 - healthy[step]) + score * (1 - score)) / VALIDATION)
    ]
    return next((step for step in low if step + EVERY in low), None)


def extremes(history: list[Any]) -> dict[str, float]:
    """The value of each alarm's vital that is nearest to its limit, over blocks and steps; of the rank, its fall."""
    made = {}
    for kind, rule in RULES.items():
        by_step = [[nearest(value, rule.above) for value in record.vitals.get(rule.curve, [])] for record in history]
        values = [v for row in by_step for v in row if v is not None]
        if rule.since == "highest":
            columns = [[v for v in column if v is not None] for column in zip(*by_step, strict=True)]
            values = [v / max(column[: i + 1]) for column in columns for i, v in enumerate(column)]
        made[kind] = (max if rule.above else min)(values)
    return made


def study(seeds: int) -> Iterator[dict[str, Any]]:
    """The results so far, after each seed."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in range(seeds):
        made = {arm: run(arm, seed) for arm in ARMS}
        for arm, result in made.items():
            runs[arm].append({
                "seed": seed,
                "accuracy": list(result["accuracy"].values()),
                "shown_at": shown_at(result["accuracy"], made["healthy"]["accuracy"]),
                "alarms": [[alarm.step, alarm.kind, alarm.block] for alarm in result["alarms"]],
                "extremes": {kind: round(value, 3) for kind, value in extremes(result["history"]).items()},
                "vitals": {kind: [_nearest(r, kind) for r in result["history"]] for kind in RULES} if seed == 0 else {},
            })  # fmt: skip
            last = runs[arm][-1]
            print(
                seed,
                f"{arm:15}",
                f"{last['accuracy'][-1]:.3f}",
                last["shown_at"],
                last["alarms"],
                last["extremes"],
                flush=True,
            )
        yield {"steps": list(range(0, STEPS, EVERY)), "host": HOST, "runs": runs}


def _nearest(record: Any, kind: str) -> float | None:
    """The value of an alarm's vital over blocks that is nearest to its limit."""
    rule = RULES[kind]
    values = [v for value in record.vitals.get(rule.curve, []) if (v := nearest(value, rule.above)) is not None]
    return round((max if rule.above else min)(values), 4) if values else None


def figure(result: dict[str, Any]) -> None:
    """Accuracy and a vital of the first seed, of the healthy arm and of two that collapse."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "monitor"
    columns = (("growing_logits", "max_logit", "largest logit"), ("no_skip", "falling_rank", "lowest effective rank"))
    _, axes = plt.subplots(2, 2, figsize=(9, 4.8), sharex=True, layout="constrained")
    for column, (arm, kind, title) in enumerate(columns):
        above, below = axes[:, column]
        for name, colour in (("healthy", "#4c78a8"), (arm, "#d6604d")):
            first = result["runs"][name][0]
            above.plot(result["steps"], first["accuracy"], color=colour, label=name)
            below.plot(result["steps"], first["vitals"][kind], color=colour, label=name)
        first = result["runs"][arm][0]
        alarm, shown = first["alarms"][0][0], first["shown_at"]
        for axis in (above, below):
            axis.axvline(alarm, color="#d6604d", linestyle="--", linewidth=1)
            axis.axvline(shown, color="#555555", linestyle=":", linewidth=1)
            axis.grid(alpha=0.2)
        above.set_title(f"{arm}: alarm at step {alarm}, accuracy shows it at step {shown}", fontsize=9)
        below.axhline(RULES[kind].level, color="#999999", linewidth=0.8)
        below.set(ylabel=title, xlabel="step", yscale="log" if kind == "max_logit" else "linear")
        above.set(ylabel="validation accuracy", ylim=(0, 1))
        above.legend(loc="center right", fontsize=8, frameon=False)
    plt.savefig(FIGURE, metadata={"Date": None})


def summary(result: dict[str, Any]) -> None:
    """Per arm: when alarms were raised and when accuracy showed it."""
    for arm, runs in result["runs"].items():
        firsts = [run["alarms"][0][0] for run in runs if run["alarms"]]
        shown = [run["shown_at"] for run in runs if run["shown_at"] is not None]
        early = sum(1 for r in runs if r["alarms"] and r["shown_at"] and r["alarms"][0][0] < r["shown_at"])
        print(
            f"{arm:15} {len(runs)} seeds, alarms in {len(firsts)} at {firsts}, accuracy at {shown}; earlier in {early}"
        )
        for kind, rule in RULES.items():
            values = [run["extremes"][kind] for run in runs]
            worst = (max if rule.above else min)(values)
            print(f"    {kind:17} nearest to the limit: {worst:g}, median of seeds: {statistics.median(values):g}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--figure", action="store_true")
    given = parser.parse_args()
    if given.figure:
        recorded = json.loads(RESULT.read_text())
        summary(recorded)
        figure(recorded)
        return
    torch.set_num_threads(1)
    for result in study(given.seeds):
        if given.write:
            RESULT.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
