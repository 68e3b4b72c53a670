"""Calibration of the verdict on untrained and trained hosts. Writes results/calibration.json.

Each function makes the rows of one group of hosts; rows that are not made again are kept.

    python benchmarks/calibration.py                        # DeiT-Ti, models of `unsmooth demo`, host of a trial
    python benchmarks/calibration.py CIFAR.npz              # also the trained host; the host of the trial on CIFAR-10
    python benchmarks/calibration.py CIFAR.npz FOLDER       # also the small hosts (an hour); FOLDER keeps their models
"""

# mypy: disable-error-code="index"
# (torch types what a module holds as Tensor | Module)

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import unsmooth
from unsmooth.cli import demo

HOST = "vit_tiny_patch16_224(img_size=32, patch_size=4, embed_dim=64, num_heads=4, depth={depth}, num_classes=10)"
TRAINED = "cct_12_3x2_32"
STEPS = {6: 600, 12: 500, 24: 350, 48: 250}
ARMS = {"": "with skips", "+no_skip(branch=attn)": "no attention skip"}
TRIAL = "cct_12_3x2_32(embed_dim=32, num_heads=2, mlp_ratio=2)"  # of results/trials/no_skip.toml
TRIAL_STEPS = 200
DEIT, DEPTHS = "deit_tiny_patch16_224(depth={depth})", (6, 12, 24, 48)
DEMO = {demo.HOST: "with skips", demo.ILL: "no attention skip", demo.TREATED: "no attention skip, treated"}
IMAGES = 32
SHOWN = (
    ("token_cosine", ""), ("effective_rank", "share"), ("attention_entropy", "share"), ("branch_ratio", "attn"),
    ("query_sensitivity", ""), ("block_influence", ""), ("layer_cka", ""),
)  # fmt: skip
RESULT = Path(__file__).parent.parent / "results" / "calibration.json"


def held_out(images: torch.Tensor) -> int:
    """How many of the last images are not trained on."""
    return min(2000, len(images) // 3)


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, step / 50) * (1 - step / steps * 0.95)
        batch = torch.randint(len(images) - held_out(images), (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def row(diagnosis: unsmooth.Diagnosis, accuracy: float | None) -> dict[str, Any]:
    series = {f"{key}{'.' + part if part else ''}": diagnosis[key].part(part).mean for key, part in SHOWN}
    return {"verdict": diagnosis.verdict, "blocks": diagnosis.conclusion.blocks, "accuracy": accuracy, **series}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Scanned digits as images of 3 × 32 × 32 pixels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    pixels = ((torch.tensor(data.images).float() - 4.9) / 6.0).unsqueeze(1)[order]
    return F.interpolate(pixels, size=32, mode="nearest").expand(-1, 3, -1, -1), torch.tensor(data.target)[order]


def untrained_deit() -> dict[str, Any]:
    """DeiT-Ti of 6 to 48 blocks, on photographs."""
    rows = {}
    for depth in DEPTHS:
        torch.manual_seed(0)
        model = unsmooth.create_model(DEIT.format(depth=depth))
        diagnosis = unsmooth.diagnose(model, limit=IMAGES, reference=False, progress=False)
        rows[f"DeiT-Ti, {depth} blocks, random start"] = row(diagnosis, None)
        print("DeiT-Ti", depth, diagnosis.verdict, flush=True)
    return rows


def demo_models() -> dict[str, Any]:
    """The models of `unsmooth demo` at the end of training, first seed."""
    rows = {}
    for spec, name in DEMO.items():
        with tempfile.TemporaryDirectory() as out:
            result = unsmooth.train(spec, "digits", recipe="small", out=out, seed=0, **demo.BUDGET)
            model = unsmooth.load(Path(out) / "last")
            diagnosis = unsmooth.diagnose(model, "digits", limit=IMAGES, reference=False, progress=False)
        rows[f"demo on digits, {name}, {demo.BUDGET['epochs']} epochs"] = row(diagnosis, round(result["top1"], 3))
        print("demo", name, diagnosis.verdict, result["top1"], flush=True)
    return rows


def trial_hosts(name: str, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """The host of the trial without skips, untrained and after a short training."""
    rows = {}
    for remedy, arm in ARMS.items():
        torch.manual_seed(0)
        model = unsmooth.create_model(f"{TRIAL[:-1]}, num_classes=10){remedy}")
        made: dict[str, Any] = {
            "random start": (unsmooth.diagnose(model, images[-IMAGES:], reference=False, progress=False), None)
        }
        train(model, images, labels, TRIAL_STEPS)
        score = round(accuracy(model, images[-held_out(images) :], labels[-held_out(images) :]), 3)
        diagnosis = unsmooth.diagnose(model, images[-IMAGES:], reference=False, progress=False)
        made[f"{TRIAL_STEPS} steps"] = (diagnosis, score)
        for state, (found, top1) in made.items():
            rows[f"trial host on {name}, {arm}, {state}"] = row(found, top1)
            print("trial host", name, arm, state, found.verdict, top1, flush=True)
    return rows


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def cifar(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.randperm(50_000, generator=torch.Generator().manual_seed(0))[:20_000]
    images = (torch.from_numpy(data["x_train"])[chosen].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    return images, torch.from_numpy(data["y_train"])[chosen].long()


def trained_host(data: Any) -> dict[str, Any]:
    """The rows of the host that comes with weights, on test images in its own preprocessing."""
    rows = {}
    cfg = unsmooth.create_model(TRAINED).pretrained_cfg
    pixels = torch.from_numpy(data["x_test"][:IMAGES]).permute(0, 3, 1, 2).float() / 255
    images = (pixels - torch.tensor(cfg["mean"]).view(3, 1, 1)) / torch.tensor(cfg["std"]).view(3, 1, 1)
    scores = json.loads((RESULT.parent / TRAINED / "scores.json").read_text())
    for spec, name, accuracy in (
        (TRAINED, "random start", None),
        (f"{TRAINED}(pretrained=true)", "20 epochs", round(scores["top1"], 3)),
    ):
        torch.manual_seed(0)
        diagnosis = unsmooth.diagnose(unsmooth.create_model(spec), images, reference=False)
        rows[f"{TRAINED}, {name}"] = row(diagnosis, accuracy)
        print(TRAINED, name, diagnosis.verdict, flush=True)
    return rows


def small_hosts(images: torch.Tensor, labels: torch.Tensor, folder: Path) -> dict[str, Any]:
    """Hosts of 6 to 48 blocks, with and without the attention skip, untrained and after a short training."""
    rows: dict[str, Any] = {}
    for depth, steps in STEPS.items():
        for remedy, name in ARMS.items():
            spec = HOST.format(depth=depth) + remedy
            torch.manual_seed(0)
            model = unsmooth.create_model(spec)
            start = unsmooth.diagnose(model, images[-IMAGES:], reference=False)
            rows[f"{depth} blocks, {name}, random start"] = row(start, None)
            place = folder / f"{depth}{'_noskip' if remedy else ''}"
            if place.exists():
                model = unsmooth.load(place).eval()
            else:
                train(model, images, labels, steps)
                unsmooth.save(model, place)
            score = accuracy(model, images[-1000:], labels[-1000:])
            diagnosis = unsmooth.diagnose(model, images[-IMAGES:], reference=False)
            rows[f"{depth} blocks, {name}, {steps} steps"] = row(diagnosis, round(score, 3))
            print(depth, name, start.verdict, diagnosis.verdict, f"{score:.3f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.is_file() else {}

    def keep(made: dict[str, Any]) -> None:
        rows.update(made)
        RESULT.write_text(json.dumps({"host": HOST, "images": IMAGES, "rows": rows}, indent=1) + "\n")

    keep(untrained_deit())
    keep(demo_models())
    if given.data is None:
        keep(trial_hosts("digits", *digits()))
        return
    data = np.load(given.data)
    images, labels = cifar(data)
    keep(trial_hosts("CIFAR-10", images, labels))
    keep(trained_host(data))
    if given.folder is not None:
        keep(small_hosts(images, labels, given.folder))


if __name__ == "__main__":
    main()
