"""Hosts × remedies: every pair is run (`make hosts`, minutes), recorded in results/hosts.json, and shown as a page."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import unsmooth
from tools import other_host_pages
from tools.markdown import RESULTS, page, table
from unsmooth.hosts.inputs import example_input, first_tensor, run
from unsmooth.surgery.record import record_of

RECORD = RESULTS / "hosts.json"
MARKS = {"all": ("●", "every block"), "some": ("◐", "some blocks"), "none": ("–", "not supported")}
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
    "CCT": "cct_12_3x2_32(depth=2)",
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
LEGEND = """
● works on every block · ◐ works on some blocks · – not supported, for the reason in the note · f can be folded for
inference (`unsmooth.fold`).

Each pair was run with default options on a shallow model at its usual width and resolution. It was applied (outputs
equal where the remedy declares it), folded (outputs equal) and removed (outputs bit-identical). `unsmooth check SPEC`
prints the same for your own model, block by block.
"""


def read_hosts() -> list[dict[str, Any]]:
    """The recorded pairs: one entry per host."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def pages() -> dict[str, str]:
    hosts = read_hosts()
    keys = list(hosts[0]["remedies"])
    reasons: dict[str, int] = {}
    rows = [(host["name"], *(_cell(host["remedies"][key], reasons) for key in keys)) for host in hosts]
    return {"hosts.md": page([
        "# Hosts × remedies", "", LEGEND.strip(), "",
        *table(("host", *(f"[`{key}`](remedies/{key}.md)" for key in keys)), rows),
        *(f"[^{number}]: {reason}" for reason, number in reasons.items()), "",
        "## Specs of the tested hosts", "",
        *table(("host", "spec"), ((host["name"], f"`{host['spec']}`") for host in hosts)), "",
        *other_host_pages.section(),
    ])}  # fmt: skip


def _cell(cell: dict[str, Any], reasons: dict[str, int]) -> str:
    notes = "".join(f"[^{reasons.setdefault(reason, len(reasons) + 1)}]" for reason in cell["reasons"])
    return MARKS[cell["state"]][0] + notes + (" f" if cell["folds"] else "")


def record_hosts() -> None:
    """Run every pair of host and remedy and write results/hosts.json."""
    warnings.simplefilter("ignore")
    hosts = []
    for name, spec in HOSTS.items():
        torch.manual_seed(0)
        model = unsmooth.create_model(spec).eval()
        plain = _outputs(model)
        cells = {key: _pair(model, plain, key) for key in unsmooth.list_remedies()}
        print(name, *(MARKS[cell["state"]][0] for cell in cells.values()), file=sys.stderr)  # noqa: T201
        hosts.append({"name": name, "spec": spec, "remedies": cells})
    RECORD.write_text(json.dumps(hosts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _pair(model: nn.Module, plain: torch.Tensor, key: str) -> dict[str, Any]:
    """Apply, run, fold and remove one remedy; anything but success or a refusal is an error."""
    try:
        plan = unsmooth.apply(model, key)
    except unsmooth.UnsmoothError as error:
        return {"state": "none", "folds": False, "reasons": [str(error).partition(": ")[2] or str(error)]}
    treated = _outputs(model)
    assert treated.isfinite().all(), key
    assert torch.allclose(treated, plain, atol=1e-3) or not plan.exact, key
    folded = unsmooth.fold(model)
    assert torch.allclose(_outputs(folded), treated, atol=1e-3 * float(treated.abs().max())), key
    folds = bool(record_of(folded).folded)
    unsmooth.remove(model)
    assert torch.equal(_outputs(model), plain), key
    reasons = sorted(set(plan.refused.values()))
    return {"state": "some" if reasons else "all", "folds": folds, "reasons": reasons}


def _outputs(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        out = first_tensor(run(model, example_input(model)))
    assert out is not None
    return out


if __name__ == "__main__":
    record_hosts()
