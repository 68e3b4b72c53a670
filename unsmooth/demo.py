"""Every remedy on a small host and real images: what it adds, what it changes, and that it comes off again.

The images are scikit-learn's digits, 1,797 scans of 8 × 8 pixels that its wheel contains.
"""

from __future__ import annotations

import copy
import warnings

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.bands import split
from unsmooth.create import create_model
from unsmooth.folding import fold
from unsmooth.probe import probe
from unsmooth.surgery import apply, remove

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=48, depth=8, num_classes=10)"
STEPS = 20


def main() -> None:
    """Train the host for a moment, then put each remedy on it, train that for a moment, and take it off."""
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    console = Console()
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
    labels = torch.from_numpy(digits.target)
    torch.manual_seed(0)
    host = create_model(HOST)
    console.print(f"Host: {HOST}")
    console.print(f"Data: {len(images)} digits of 8 × 8 pixels. The host is trained for {STEPS} steps first.\n")
    _train(host, images, labels)
    host.eval()
    test = images[:256]
    plain, ratio = _look(host, test)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)  # fits 80 columns
    table.add_column("remedy", no_wrap=True)
    for heading in ("new", "at once", "trained", "high", "folded", "undone"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("(plain host)", "", "", "", f"{ratio:.3f}", "", "")
    for key in remedies.list_remedies():
        table.add_row(key, *_row(key, host, plain, test, images, labels))
    console.print(table)
    console.print(
        "new      parameters that it adds\n"
        "at once  largest change of a logit over 256 digits when applied; 0 is exact\n"
        f"trained  the same, after {STEPS} more steps\n"
        "high     ‖HC[X]‖/‖X‖ of the last block: the share of tokens beside their mean\n"
        "folded   largest change of a logit when folded for inference; kept: not folded\n"
        "undone   largest change of a logit when removed again\n\n"
        "Next: unsmooth list remedies",
        style="dim",
        highlight=False,
    )


def _row(key: str, host: nn.Module, plain: Tensor, test: Tensor, images: Tensor, labels: Tensor) -> list[str]:
    model = copy.deepcopy(host)
    plan = apply(model, key)
    start, _ = _look(model, test)
    torch.manual_seed(0)
    host_weights = {name: value.clone() for name, value in host.state_dict().items()}
    _train(model, images, labels)
    model.eval()
    trained, ratio = _look(model, test)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        folded, _ = _look(fold(model), test)
    stays = any("stays as it is" in str(note.message) for note in notes)
    remove(model)
    model.load_state_dict(host_weights)
    removed, _ = _look(model, test)
    return [
        f"{plan.parameters:,}", f"{_far(start, plain):.2g}", f"{_far(trained, plain):.2g}", f"{ratio:.3f}",
        "kept" if stays else f"{_far(folded, trained):.1e}", f"{_far(removed, plain):.2g}",
    ]  # fmt: skip


def _far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def _train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        batch = torch.randint(len(images), (32,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _look(model: nn.Module, images: Tensor) -> tuple[Tensor, float]:
    """The logits, and ‖HC[X]‖/‖X‖ of the last block's tokens, averaged over images."""
    seen: dict[int, Tensor] = {}
    with probe(model, on_tokens=lambda block, x: seen.update({block.index: x})) as anatomy:
        logits: Tensor = model(images)
    tokens = seen[len(anatomy.blocks) - 1]
    high = split(tokens)[1].flatten(1).norm(dim=1) / tokens.flatten(1).norm(dim=1)
    return logits, high.mean().item()
