"""Calibration of the verdict: small hosts of 6 to 48 blocks, with and without the attention skip, and the trained host.

Each small host is diagnosed untrained and after a short training on CIFAR-10 (20,000 images, batch 64, AdamW, one
thread). `cct_12_3x2_32` is diagnosed untrained and with its weights. Writes results/calibration.json. Trained models
are kept in FOLDER and not trained again. About an hour. Without FOLDER, the rows of the small hosts are kept.

    python benchmarks/calibration.py CIFAR.npz [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import unsmooth

HOST = "vit_tiny_patch16_224(img_size=32, patch_size=4, embed_dim=64, num_heads=4, depth={depth}, num_classes=10)"
TRAINED = "cct_12_3x2_32"
STEPS = {6: 600, 12: 500, 24: 350, 48: 250}
ARMS = {"": "with skips", "+no_skip(branch=attn)": "no attention skip"}
SHOWN = (("token_cosine", ""), ("effective_rank", "share"), ("attention_entropy", "share"), ("branch_ratio", "attn"))
RESULT = Path(__file__).parent.parent / "results" / "calibration.json"


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, step / 50) * (1 - step / steps * 0.95)
        batch = torch.randint(len(images) - 2000, (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def row(diagnosis: unsmooth.Diagnosis, accuracy: float | None) -> dict[str, Any]:
    series = {f"{key}{'.' + part if part else ''}": diagnosis[key].part(part).mean for key, part in SHOWN}
    return {"verdict": diagnosis.verdict, "blocks": diagnosis.conclusion.blocks, "accuracy": accuracy, **series}


def trained_host(data: Any) -> dict[str, Any]:
    """The rows of the host that comes with weights, on test images in its own preprocessing."""
    rows = {}
    cfg = unsmooth.create_model(TRAINED).pretrained_cfg
    pixels = torch.from_numpy(data["x_test"][:32]).permute(0, 3, 1, 2).float() / 255
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


def small_hosts(data: Any, folder: Path) -> dict[str, Any]:
    chosen = torch.randperm(50_000, generator=torch.Generator().manual_seed(0))[:20_000]
    images = (torch.from_numpy(data["x_train"])[chosen].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    labels = torch.from_numpy(data["y_train"])[chosen].long()
    rows: dict[str, Any] = {}
    for depth, steps in STEPS.items():
        for remedy, name in ARMS.items():
            spec = HOST.format(depth=depth) + remedy
            torch.manual_seed(0)
            model = unsmooth.create_model(spec)
            start = unsmooth.diagnose(model, images[-32:], reference=False)
            rows[f"{depth} blocks, {name}, random start"] = row(start, None)
            place = folder / f"{depth}{'_noskip' if remedy else ''}"
            if place.exists():
                model = unsmooth.load(place).eval()
            else:
                train(model, images, labels, steps)
                unsmooth.save(model, place)
            with torch.no_grad():
                accuracy = (model(images[-1000:]).argmax(dim=1) == labels[-1000:]).float().mean().item()
            diagnosis = unsmooth.diagnose(model, images[-32:], reference=False)
            rows[f"{depth} blocks, {name}, {steps} steps"] = row(diagnosis, round(accuracy, 3))
            print(depth, name, start.verdict, diagnosis.verdict, f"{accuracy:.3f}", flush=True)
    return rows


def main() -> None:
    torch.set_num_threads(1)
    data = np.load(sys.argv[1])
    rows = small_hosts(data, Path(sys.argv[2])) if len(sys.argv) > 2 else json.loads(RESULT.read_text())["rows"]
    rows |= trained_host(data)
    RESULT.write_text(json.dumps({"host": HOST, "images": 32, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
