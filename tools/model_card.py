"""The model card of the trained host of the package, from its record in results/."""

from __future__ import annotations

import json
import tomllib

from tools.markdown import RESULTS, facts, page, section, table
from unsmooth.models.cct import CIFAR10_MEAN, CIFAR10_STD, TRAINED

RECORD = RESULTS / TRAINED
INTRODUCTION = f"""
A compact transformer of 12 blocks that comes with the package, so that everything can be tried on a trained ViT without
a download. It was trained by `unsmooth train` on the 50,000 training images of CIFAR-10.

    model = unsmooth.create_model("{TRAINED}(pretrained=true)")

    unsmooth diagnose {TRAINED} --pretrained
"""
LIMITS = """
- It classifies ten classes of images of 32 × 32 pixels, and was made to study token collapse and remedies. Other
  photographs are out of its domain.
- It is one run with one seed. Published models of this family are trained for 200 epochs and are better: CCT-2/3x2
  89.2 %, CCT-4/3x2 91.5 %.
- The test images were scored every second epoch for the log. The weights are those of the last epoch: none were
  selected.
- CIFAR-10 (Krizhevsky, 2009) holds photographs that were collected on the web. The weights have the license of this
  repository.
"""
SHAPE = (
    "convolutional tokenizer (two 3 × 3 convolutions with max pooling), 64 tokens, 12 blocks of 96 channels, 3 heads, "
    "no class token, sequence pooling"
)


def pages() -> dict[str, str]:
    if not (RECORD / "scores.json").is_file():
        return {}
    scores = json.loads((RECORD / "scores.json").read_text(encoding="utf-8"))
    recipe = tomllib.loads((RECORD / "recipe.toml").read_text(encoding="utf-8"))
    epochs = [json.loads(line) for line in (RECORD / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    low, high = scores["top1_interval"]
    lines = [
        f"# {TRAINED}", "", INTRODUCTION.strip(), "",
        *facts({
            "Architecture": SHAPE,
            "Parameters": f"{scores['parameters']:,}",
            "File": f"{scores['bytes'] / 1e6:.2f} MB of safetensors in half precision, inside the package",
            "Accuracy": f"{100 * scores['top1']:.2f} % of the {scores['images']:,} test images ({100 * low:.2f} to "
            f"{100 * high:.2f}), as loaded from the half-precision file",
            "Preprocessing": f"32 × 32 pixels, mean {CIFAR10_MEAN}, standard deviation {CIFAR10_STD}",
            "Training": f"{scores['epochs']} epochs, {scores['seconds'] / 3600:.1f} hours on one CPU core shared with "
            "other work",
            "Recipe": f"`results/{TRAINED}/recipe.toml`: "
            + ", ".join(f"{name} = {value}" for name, value in recipe.items()),
            "Repeat it": "`python benchmarks/pretrained_host.py FOLDER --data cifar10.npz`",
        }),
        *section("Diagnosis", [scores["diagnosis"]]),
        *section("Training log", table(
            ("epoch", "learning rate", "training loss", "test loss", "test top-1, %"),
            (_row(epoch) for epoch in epochs if "val_top1" in epoch),
        )),
        *section("Limits", [LIMITS.strip()]),
    ]  # fmt: skip
    return {f"{TRAINED}.md": page(lines)}


def _row(epoch: dict[str, float]) -> list[str]:
    values = (f"{epoch['lr']:.2e}", f"{epoch['train_loss']:.3f}", f"{epoch['val_loss']:.3f}")
    return [str(epoch["epoch"]), *values, f"{100 * epoch['val_top1']:.2f}"]
