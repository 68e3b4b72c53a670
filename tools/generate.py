"""Writes the generated parts of the docs: `make docs`.

docs/remedies.md    every remedy, from the registry
docs/vitals.md      every vital, from the registry
docs/verdict.md     how a verdict is reached: thresholds and candidates, from their tables
docs/trials.md      the recorded trials, from results/*.json
docs/recipes.md     every recipe, field by field
docs/hosts.md       hosts × remedies, by running every pair: applied, run, removed, folded
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

import unsmooth
from tools.gallery_pages import gallery_page
from tools.training_pages import NOTE, recipes_page, trials_page
from unsmooth import remedies
from unsmooth.diagnosis import prescriptions, rules, verdict
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis.prescriptions import is_safe
from unsmooth.diagnosis.rules import RULES, THRESHOLDS
from unsmooth.hosts.inputs import example_input, first_tensor, run
from unsmooth.vitals.base import FAMILIES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

HOSTS = {
    "DeiT": "deit_tiny_patch16_224(depth=2)",
    "DeiT distilled": "deit_tiny_distilled_patch16_224(depth=2)",
    "DeiT-III": "deit3_small_patch16_224(depth=2)",
    "DINOv2": "vit_small_patch14_dinov2(depth=2, img_size=224, num_classes=10)",
    "DINOv2 + registers": "vit_small_patch14_reg4_dinov2(depth=2, img_size=224, num_classes=10)",
    "CaiT": "cait_xxs24_224(depth=2)",
    "Swin": "swin_tiny_patch4_window7_224(depths=[2, 2])",
    "PVT v2": "pvt_v2_b0(depths=[1, 1, 1, 1])",
    "PVT": "pvt_tiny(depths=[1, 1, 1, 1])",
    "LocalViT": "localvit_tiny_patch16_224(depth=2)",
    "T2T-ViT": "t2t_vit_14(depth=2)",
    "DeepViT": "deepvit_small(depth=2, re_attention=1)",
    "BEiT": "beit_base_patch16_224(depth=2)",
    "EVA-02": "eva02_tiny_patch14_224(depth=2)",
    "ConvMixer": "convmixer_1024_20_ks9_p14",
    "HF ViT": "hf:vit(num_hidden_layers=2)",
    "HF DeiT": "hf:deit(num_hidden_layers=2)",
    "HF DINOv2": "hf:dinov2(num_hidden_layers=2)",
    "HF CLIP vision": "hf:clip_vision_model(num_hidden_layers=2)",
    "HF Swin": "hf:swin(depths=[2, 2], num_heads=[3, 6])",
    "HF ViLT": "hf:vilt(num_hidden_layers=2)",
    "torchvision ViT": "torchvision:vit_b_32",
    "torchvision Swin": "torchvision:swin_t",
}


def outputs(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        out = first_tensor(run(model, example_input(model)))
    assert out is not None
    return out


def pair(model: nn.Module, plain: torch.Tensor, key: str, reasons: dict[str, str]) -> str:
    """Run one pair: ● works on all blocks, ◐ on some, · refused; f where it folds. Anything else is an error."""
    try:
        plan = unsmooth.apply(model, key)
    except unsmooth.UnsmoothError as error:
        return f"·{note(str(error).partition(': ')[2], reasons)}"
    treated = outputs(model)
    assert treated.isfinite().all(), key
    assert torch.allclose(treated, plain, atol=1e-3) or not plan.exact, key
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        folded = unsmooth.fold(model)
    assert torch.allclose(outputs(folded), treated, atol=1e-3 * float(treated.abs().max())), key
    unsmooth.remove(model)
    assert torch.equal(outputs(model), plain), key
    mark = "●" if not plan.refused else "◐" + "".join(note(why, reasons) for why in sorted(set(plan.refused.values())))
    return mark + ("" if any("stays" in str(n.message) for n in notes) else " f")


def note(reason: str, reasons: dict[str, str]) -> str:
    """The number of a reason below the table."""
    return f"[^{reasons.setdefault(reason, str(len(reasons) + 1))}]"


def hosts_page() -> str:
    keys = unsmooth.list_remedies()
    reasons: dict[str, str] = {}
    lines = ["| host | " + " | ".join(f"`{key}`" for key in keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for name, spec in HOSTS.items():
        torch.manual_seed(0)
        model = unsmooth.create_model(spec).eval()
        plain = outputs(model)
        cells = [pair(model, plain, key, reasons) for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(name, *cells, file=sys.stderr)  # noqa: T201
    legend = (
        "● works on every block · ◐ on some · · makes no sense, for the reason in the note · f folds for inference.\n\n"
        "Each pair was run with default options on a shallow instance at its usual width and resolution: applied "
        "(outputs equal where the remedy claims it), folded (outputs equal), removed (outputs bit-equal)."
    )
    notes = [f"[^{number}]: {reason}" for reason, number in reasons.items()]
    specs = ["| host | spec |", "|---|---|", *(f"| {name} | `{spec}` |" for name, spec in HOSTS.items())]
    text = ["# Hosts × remedies", "", legend, "", *lines, "", *notes, "", "## What was run", "", *specs, ""]
    return NOTE + "\n".join(text)


def remedies_page() -> str:
    lines = ["# Remedies", "", "Each takes `blocks` too (`6:`, `:-2`, `'0,3,5'`), except where it acts once.", ""]
    for key in unsmooth.list_remedies():
        remedy = remedies.get(key)
        module = sys.modules[type(remedy).__module__]
        lines += [f"## `{key}`", "", "```text", inspect.getdoc(module) or "", "```", ""]
        if remedy.options:
            lines += ["| option | default | meaning |", "|---|---|---|"]
            for name, option in remedy.options.items():
                default = "chosen" if option.default is None else str(option.default).lower()
                choices = f" ({', '.join(option.choices)})" if option.choices else ""
                lines.append(f"| `{name}` | {default} | {option.help}{choices} |")
            lines.append("")
        facts = {k: v for k, v in remedies.facts(remedy).items() if k not in ("options", "paper")}
        lines += [f"- {label}: {text}" for label, text in facts.items()] + [""]
    return NOTE + "\n".join(lines)


def vitals_page() -> str:
    intro = (
        "What `unsmooth diagnose` measures, block by block. Values are means over images with their spread; `.heads` "
        "parts have one value a head. A vital that cannot be measured on a block says why in its place."
    )
    lines = ["# Vitals", "", intro, ""]
    for family in FAMILIES:
        chosen = [v for v in vitals.REGISTRY.values() if v.family == family]
        lines += [f"## {family.capitalize()}", ""]
        for vital in sorted(chosen, key=lambda v: v.key):
            lines += [f"### `{vital.key}`", "", "```text", vital.help, "```", ""]
            facts = {
                "accepts": f"attention that is {', '.join(vital.accepts)}" if vital.accepts else "",
                "images": f"at most {vital.sample}" if vital.sample is not None else "all",
                "asked for": "" if vital.default else "on request only",
            }
            lines += [f"- {label}: {text}" for label, text in facts.items() if text] + [""]
    return NOTE + "\n".join(lines)


def calibration_table() -> list[str]:
    rows = json.loads((ROOT / "results" / "calibration.json").read_text())["rows"]

    def ends(values: list[float]) -> str:
        return f"{values[0]:.2f} → {values[-1]:.2f}"

    return [
        "| model | accuracy | token similarity | effective rank, share | map entropy, share | verdict |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {'' if row['accuracy'] is None else row['accuracy']} | {ends(row['token_cosine'])} | "
            f"{ends(row['effective_rank.share'])} | {ends(row['attention_entropy.share'])} | {row['verdict']} |"
            for name, row in rows.items()
        ),
    ]


def verdict_page() -> str:
    texts = [inspect.getdoc(rule) or "" for rule in RULES]
    assert all(texts)
    lines = [
        "# How a verdict is reached", "", inspect.getdoc(verdict) or "", "",
        "A verdict is one of `healthy` (no action needed), `untrained`, `suspicious`, `collapsing`, `collapsed`, "
        "`broken` (NaN or Inf) and `unknown` (too little was measured).", "",
        "## Findings", "", *(f"- **{rule.__name__}**: {text}" for rule, text in zip(RULES, texts, strict=True)), "",
        "## Thresholds", "", inspect.getdoc(rules) or "", "",
        "| name | value | of what | tried on |", "|---|---|---|---|",
        *(f"| `{name}` | {t.value:g} | {t.meaning} | {t.source} |" for name, t in THRESHOLDS.items()), "",
        "## What they were tried on", "",
        "A verdict for each model that the thresholds were chosen on, beside the saliency fine-tune "
        "(`benchmarks/calibration.py`: hosts of width 64 with 65 tokens, 32 images of CIFAR-10). First block → last "
        "block; accuracy says how far the training came.", "",
        *calibration_table(), "",
        "## Candidate remedies", "", inspect.getdoc(prescriptions) or "", "",
        "| finding | remedy | why | on pretrained weights |", "|---|---|---|---|",
        *(
            f"| `{finding}` | `{spec}` | {why} | {'safe' if is_safe(spec) else 'changes outputs at once'} |"
            for finding, rows in prescriptions.CANDIDATES.items()
            for spec, why in rows
        ), "",
    ]  # fmt: skip
    return NOTE + "\n".join(lines)


def main() -> None:
    warnings.simplefilter("ignore")
    (DOCS / "gallery.md").write_text(gallery_page())
    (DOCS / "trials.md").write_text(trials_page())
    (DOCS / "recipes.md").write_text(recipes_page())
    (DOCS / "remedies.md").write_text(remedies_page())
    (DOCS / "vitals.md").write_text(vitals_page())
    (DOCS / "verdict.md").write_text(verdict_page())
    (DOCS / "hosts.md").write_text(hosts_page())


if __name__ == "__main__":
    main()
