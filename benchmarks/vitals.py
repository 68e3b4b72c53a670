"""Cost of a diagnosis: DeiT-S at 224, default vitals, compared with a plain forward pass and with plain formulas.

Interleaved in one process, median over rounds. Memory: peak of a process that diagnoses 64 images, and of one that
diagnoses 512. "Plain formulas" are the same vitals computed as printed in the papers: a full SVD for each, all pairs,
one image at a time, for every image (the library decomposes a sample); without the theory vitals. They are timed on
a few images and compared per image. "Whole diagnosis" adds the random reference, sample maps and the verdict.

Goals, as shares of a plain forward pass over the same images: a whole diagnosis at most 2.5 for 32 images and 1.8 for
128, a quick one at most 1.2; DINOv2 ViT-S/14 at 518 px on photographs at most 2.5, with a peak memory that does not
grow with their number (`--large 0` leaves it out). Shares of processor time are printed too: on a busy machine they
vary less.

`--checkpoint` and `--images` take weights and photographs of the large goal; without them it runs on weights that are
drawn at random and on the photographs of scikit-learn.

    python benchmarks/vitals.py [--rounds 3] [--goals] [--large 60] [--checkpoint FILE] [--images FOLDER]
                                [--write]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
import torch.nn.functional as F
from records import Record, machine
from torch import Tensor

from unsmooth.data.image_batches import image_batches
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.diagnosis.measure import measure, measure_model
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.token_layout import distances
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import open_model

HOST, BATCH = "deit_small_patch16_224", 16
LARGE, LARGE_BATCH, LARGE_GOAL = "vit_small_patch14_dinov2", 4, 2.5  # 518 px: maps of 1370 × 1370


def trained_like(host: str = HOST) -> torch.nn.Module:
    """A host with peaked attention; attention at random initialisation is uniform, which is not a typical input."""
    torch.manual_seed(0)
    model = timm.create_model(host).eval()
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.06)
    return model


def pictures(count: int, host: str = HOST) -> Tensor:
    images = torch.cat([batch.images for batch in image_batches(timm.create_model(host), "photographs", 16)])
    return images.repeat(-(-count // len(images)), 1, 1, 1)[:count]


@torch.no_grad()
def plain(model: Any, images: Tensor, batch: int = BATCH) -> None:
    for part in images.split(batch):
        model(part)


def streaming(model: Any, images: Tensor) -> None:
    anatomy, chosen = anatomy_of(model), vitals.select("default")
    measured = measure(model, anatomy, image_batches(model, images, BATCH, None), chosen)
    measure_model(model, anatomy, images, chosen, None, measured)


def whole(model: Any, images: Tensor) -> None:
    diagnose(model, images, limit=None, batch_size=BATCH)


def quick(model: Any, images: Tensor) -> None:
    diagnose(model, images, limit=None, batch_size=BATCH, quick=True)


# The same vitals from their formulas. Each is the direct implementation, in a few lines.


def pairs_cosine(rows: Tensor) -> float:
    total, count = 0.0, 0
    for i in range(len(rows) - 1):
        cosine = F.cosine_similarity(rows[i : i + 1], rows[i + 1 :], dim=-1)
        total, count = total + cosine.abs().sum().item(), count + len(cosine)
    return total / count


def token_formulas(x: Tensor, before: Tensor, first: Tensor) -> None:
    n = len(x)
    mean = torch.ones(n, n) / n
    high = x - mean @ x
    pairs_cosine(x)
    (high.norm() / x.norm()).item(), torch.log(high.norm() / (first - mean @ first).norm()).item()
    (torch.linalg.matrix_norm(high, 1) * torch.linalg.matrix_norm(high, torch.inf)).sqrt().item()
    norms = x.norm(dim=1)
    (norms > norms.median() + 10 * (norms - norms.median()).abs().median()).sum().item()
    F.cosine_similarity(before, x, dim=1).mean().item()
    grid = x[1:].view(14, 14, -1)
    (grid.diff(dim=0).square().sum() + grid.diff(dim=1).square().sum()).item()
    for _ in range(3):  # effective rank, stable rank, condition number: each by its own SVD
        torch.linalg.svd(x)


def map_formulas(a: Tensor, distances: Tensor) -> None:
    n = len(a)
    pairs_cosine(a.T)
    -(a * a.clamp_min(1e-30).log()).sum(-1).mean().item()
    mean = a.mean(0)
    for row in a:
        middle = (row + mean) / 2
        sum((p * (p.clamp_min(1e-30) / middle.clamp_min(1e-30)).log()).sum().item() for p in (row, mean))
    (a[1:, 1:] / a[1:, 1:].sum(-1, keepdim=True) * distances).sum(-1).mean().item()
    torch.linalg.svd(a)
    torch.linalg.eigvalsh((a + a.T) / 2)
    fourier = torch.fft.fft(torch.eye(n), norm="ortho")
    (fourier @ a.to(fourier.dtype) @ fourier.conj().T).norm(dim=1)


class Formulas:
    """One image at a time, everything for every image."""

    def __init__(self) -> None:
        self.distances = distances((14, 14), (224, 224)).float()
        self.first: Tensor | None = None

    def on_input(self, block: Any, x: Tensor) -> None:
        self.before = x[0].clone()
        self.first = self.before if block.index == 0 else self.first

    def on_tokens(self, block: Any, x: Tensor) -> None:
        assert self.first is not None
        token_formulas(x[0], self.before, self.first)

    def on_residual(self, block: Any, branch: str, x: Tensor, f: Tensor, out: Tensor) -> None:
        (f.norm() / x.norm()).item()
        torch.linalg.svd(f[0]), torch.linalg.svd(out[0])

    def on_attention(self, block: Any, attention: Any, call: Any) -> None:
        call.scores().abs().amax().item()
        for a in call.map()[0]:
            map_formulas(a, self.distances)


@torch.no_grad()
def formulas(model: Any, images: Tensor) -> None:
    formulas = Formulas()
    with probe(model, formulas.on_tokens, formulas.on_attention, None, formulas.on_input, formulas.on_residual):
        for image in images:
            model(image.unsqueeze(0))


def peak(count: int) -> None:
    """Diagnose `count` images from a generator and print this process's peak memory."""
    model = trained_like()
    images = pictures(32)

    def loader() -> Any:
        for start in range(0, count, BATCH):
            yield images[start % 32 : start % 32 + BATCH]

    diagnose(model, loader(), limit=None)
    print(memory())


GOALS: list[tuple[str, Callable[..., None], int, float]] = [
    ("whole diagnosis", whole, 32, 2.5),
    ("whole diagnosis", whole, 128, 1.8),
    ("quick diagnosis", quick, 32, 1.2),
]


def goals(rounds: int, record: Record) -> list[list[str]]:
    """Diagnoses as shares of a forward pass, interleaved: medians over rounds of wall clock and of processor time."""
    model, rows = trained_like(), []
    for name, run, count, goal in GOALS:
        images = pictures(count)
        plain(model, images[:BATCH])
        shares: list[tuple[float, float]] = []
        for _ in range(rounds):
            (wall, cpu), (base_wall, base_cpu) = timed(run, model, images), timed(plain, model, images)
            shares.append((wall / base_wall, cpu / base_cpu))
        wall, cpu = (statistics.median(share) for share in zip(*shares, strict=True))
        reached = record.goal(f"{name}, {count} images, forward passes in processor time", cpu, goal, at_most=True)
        rows.append([name, f"{count}", f"{cpu:.2f}", f"{wall:.2f}", reached.cell, ""])
    return rows


def large_images(count: int, checkpoint: str | None, folder: str | None, record: Record) -> list[str]:
    """Large images: the share of a forward pass, and the peak memory of this process for half and for all."""
    model = trained_like(LARGE) if checkpoint is None else open_model(LARGE, checkpoint)[0].eval()
    images = pictures(count, LARGE)
    if folder is not None:
        images = torch.cat([batch.images for batch in image_batches(model, folder, LARGE_BATCH, count)])
    plain(model, images[:1], LARGE_BATCH)
    base_wall, base_cpu = timed(partial(plain, batch=LARGE_BATCH), model, images)
    diagnose(model, images[: count // 2], limit=None)
    half = memory()
    wall, cpu = timed(partial(diagnose, limit=None), model, images)
    reached = record.goal(f"{LARGE} at 518 px, {count} images, forward passes in processor time", cpu / base_cpu,
                          LARGE_GOAL, at_most=True)  # fmt: skip
    return [f"`{LARGE}` at 518 pixels", f"{count}", f"{cpu / base_cpu:.2f}", f"{wall / base_wall:.2f}", reached.cell,
            f"{half:,} MB for {count // 2} images, {memory():,} MB for {count}"]  # fmt: skip


def memory() -> int:
    """Peak memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def timed(run: Callable[..., Any], model: Any, images: Tensor) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run(model, images)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--goals", action="store_true", help="only the goals of a diagnosis")
    parser.add_argument("--large", type=int, default=60, help="images of 518 px (default: 60)")
    parser.add_argument("--checkpoint", help="weights of the large host")
    parser.add_argument("--images", help="folder of large photographs")
    parser.add_argument("--write", action="store_true", help="record the table for docs/")
    parser.add_argument("--peak", type=int)
    given = parser.parse_args()
    if given.peak:
        peak(given.peak)
        return
    record = Record("vitals", f"{HOST}, batch {BATCH}, fp32, {torch.get_num_threads()} thread(s) of {machine()}; "
                    f"{given.rounds} round(s).")  # fmt: skip
    rows = goals(given.rounds, record)
    if given.large:
        rows.append(large_images(max(2, given.large), given.checkpoint, given.images, record))
    head = ("", "images", "forward passes, processor time", "wall clock", "goal", "peak memory")
    record.table("diagnosis", head, rows)
    if not given.goals:
        formulas_and_memory(given.rounds, record)
    if given.write:
        record.write()


def formulas_and_memory(rounds: int, record: Record) -> None:
    model, images = trained_like(), pictures(128)
    few = images[:4]
    arms: dict[str, tuple[Callable[..., None], Tensor]] = {
        "plain forward pass": (plain, images),
        "default vitals": (streaming, images),
        "plain formulas": (formulas, few),
    }
    plain(model, images[:BATCH])
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, (run, data) in arms.items():
            begun = time.perf_counter()
            run(model, data)
            times[name].append(time.perf_counter() - begun)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in times.items():
        print(f"{name:<30} {median[name]:7.2f} s  ({min(seconds):.2f}–{max(seconds):.2f})  {len(arms[name][1])} images")
    record.goal(
        "default vitals, forward passes", median["default vitals"] / median["plain forward pass"], 3, at_most=True
    )
    each = {name: median[name] / len(data) for name, (_, data) in arms.items()}
    record.goal(
        "plain formulas, times the default vitals, per image", each["plain formulas"] / each["default vitals"], 5
    )
    small, large = (
        int(
            subprocess.run(
                [sys.executable, __file__, "--peak", str(n)], capture_output=True, text=True, check=True
            ).stdout
        )
        for n in (64, 512)
    )
    record.goal(
        f"peak memory for 512 images beside 64 ({small} MB)", 100 * (large / small - 1), 5, at_most=True, unit=" %"
    )


if __name__ == "__main__":
    main()
