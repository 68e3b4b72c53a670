"""Overhead of `unsmooth train` compared with a bare PyTorch loop (same model, data and loader), and cost of vitals.

Both train alternately in one process, epoch by epoch, on noise images of the host's size; ratios are per round.
The vitals are measured as often as in the recipe of the trials.

    python benchmarks/training.py [--write]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import numpy as np
import torch
from records import Record, machine, spread
from torch import nn

from unsmooth.data.batches import TrainingBatches
from unsmooth.data.images import images_from_array
from unsmooth.data.splits import Splits
from unsmooth.data.transforms import preprocessing
from unsmooth.monitoring.monitor import Monitor
from unsmooth.recipes.recipe import load_recipe
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.classification.task import Classification
from unsmooth.tasks.model_factory import build
from unsmooth.training.trainer import Trainer, make_optimizer
from unsmooth.utils.processes import Processes

HOSTS = {
    "ViT of 12 blocks, 192 channels, 64 pixels": "vit_tiny_patch16_224(img_size=64, patch_size=8)",
    "ViT of 12 blocks, 48 channels, 32 pixels": "vit_tiny_patch16_224(img_size=32, patch_size=4, embed_dim=48)",
}
IMAGES, BATCH, ROUNDS = 256, 32, 7
GOAL, VITALS_GOAL = 0.97, 0.03  # of the bare loop's images per second; of the time of a run
REAL = 50_000  # training images of a run that the cost of vitals is stated for


def bare(model: nn.Module, optimizer: torch.optim.Optimizer, loader: TrainingBatches, epoch: int) -> None:
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()
    for batch in loader.from_step(epoch, 0):
        loss = criterion(model(batch.images), batch.labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def compare(name: str, spec: str, record: Record) -> list[str]:
    recipe = load_recipe("small", {"batch_size": BATCH, "epochs": ROUNDS + 1})
    wanted = preprocessing(build(spec, 10, recipe, 0))
    chance = np.random.default_rng(0)
    pictures = chance.integers(0, 256, (IMAGES, *wanted.size[1:], 3), dtype=np.uint8)
    images = images_from_array(pictures, "noise", chance.integers(0, 10, IMAGES))
    request = TaskRequest(spec + "+attn_scale", "noise", recipe)
    task = Classification(request, Splits("noise", images, images, 10))
    task.build()
    model, loader = task.model, TrainingBatches(task.train, BATCH, 0)
    other = copy.deepcopy(model)
    trainer = Trainer(task, recipe, loader, 0, Processes())
    optimizer = make_optimizer(other, recipe)
    ratios, shares = [], []
    monitor = Monitor(model, every=None, vitals=recipe.vitals, on_alarm="ignore")
    monitor_images = torch.randn(recipe.vitals_images, *wanted.size)
    for turn in range(ROUNDS + 1):
        begun = time.perf_counter()
        bare(other, optimizer, loader, turn)
        middle = time.perf_counter()
        trainer.run_epoch(lambda step: True)
        trainer.next_epoch()
        end = time.perf_counter()
        monitor.measure(monitor_images)
        watched = time.perf_counter() - end
        if turn:  # the first is a warm-up
            ratios.append((middle - begun) / (end - middle))
            shares.append(watched / (end - middle))
    share_of_epoch = statistics.median(shares)
    # An epoch of a real run is longer than this one, and vitals are measured every `vitals_every` epochs.
    share = share_of_epoch * IMAGES / REAL / recipe.vitals_every
    speed = record.goal(f"train, {name}, share of the bare loop's images/s", statistics.median(ratios), GOAL)
    cost = record.goal(f"vitals, {name}, share of a run on {REAL:,} images", 100 * share, 100 * VITALS_GOAL,
                       at_most=True, unit=" %")  # fmt: skip
    return [name, spread(ratios), speed.cell, f"{share_of_epoch * IMAGES:.0f} images", f"{share:.2%}", cost.cell]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table for docs/")
    given = parser.parse_args()
    record = Record("training", f"{ROUNDS} interleaved rounds of {IMAGES} images, batch size {BATCH}; {machine()}.")
    head = ("host", "images/s, share of a bare loop", "goal", "vitals take as long as training on",
            f"share of a run on {REAL:,} images", "goal")  # fmt: skip
    record.table("training", head, [compare(title, host, record) for title, host in HOSTS.items()])
    if given.write:
        record.write()


if __name__ == "__main__":
    main()
