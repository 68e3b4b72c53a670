"""Hosts of other libraries: each is tried (`make hosts`, or `python -m tools.other_host_pages NAME`) and listed."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import unsmooth
from tools.markdown import RESULTS, table
from tools.other_hosts import OTHERS, VIT_PYTORCH, OtherHost
from unsmooth.errors import first_line
from unsmooth.hosts.inputs import Example, example_input, first_tensor, run
from unsmooth.surgery.plan import anatomy_of

RECORD = RESULTS / "other_hosts.json"
# One remedy for each way to act: a map, its scores, the map by itself, tokens, an MLP, residual sums.
TRIED = ("attn_scale", "l2_attention", "re_attention", "feat_scale", "context_broadcast", "no_skip")
MARKS = {"all": "●", "some": "◐", "none": "–", "error": "✗"}
INTRODUCTION = """
## Other architectures

Every class of vit-pytorch that is a network of its own, and hosts of timm and Hugging Face that write attention in an
unusual way, as small random models. A host is *diagnosed* if `unsmooth.diagnose` measures it on two images. Each remedy
stands for one way to act and was applied (outputs equal where the remedy declares it) and removed (outputs
bit-identical): ● on every attention or block, ◐ on some, – refused, ✗ an error of the host.
"""


def section() -> list[str]:
    """The lines of the page."""
    rows: list[tuple[str, ...]] = []
    notes: dict[str, int] = {}
    for name, host in sorted(json.loads(RECORD.read_text(encoding="utf-8")).items()):
        if host["refusal"]:
            note = f"[^o{notes.setdefault(host['refusal'], len(notes) + 1)}]"
            rows.append((name, f"–{note}", *[""] * (2 + len(TRIED))))
            continue
        size = f"{host['blocks']} / {host['attentions']}"
        marks = (MARKS[host["remedies"][key]] for key in TRIED)
        rows.append((name, ", ".join(host["kinds"]), size, "yes" if host["diagnosed"] else "no", *marks))
    heading = ("host", "attention", "blocks / attentions", "diagnosed", *(f"`{key}`" for key in TRIED))
    return [
        *INTRODUCTION.strip().splitlines(), "", *table(heading, rows),
        *(f"[^o{number}]: {reason}" for reason, number in notes.items()),
    ]  # fmt: skip


def record(names: list[str]) -> None:
    """Try the named hosts, or all, and add them to the record."""
    warnings.simplefilter("ignore")
    hosts = {**VIT_PYTORCH, **OTHERS}
    entries = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() and names else {}
    for name in names or hosts:
        torch.manual_seed(0)
        entries[name] = _try(hosts[name])
        print(name, entries[name], file=sys.stderr, flush=True)  # noqa: T201
    RECORD.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _try(host: OtherHost) -> dict[str, Any]:
    model = host.build().eval()
    example = example_input(model) if host.example is None else host.example
    try:
        anatomy = anatomy_of(model, example)
    except unsmooth.UnsmoothError as error:
        return {"refusal": str(error)}
    attentions = [attention for block in anatomy.blocks for attention in block.attentions]
    return {
        "refusal": "",
        "kinds": sorted({attention.kind for attention in attentions}),
        "blocks": len(anatomy.blocks),
        "attentions": len(attentions),
        "diagnosed": _diagnosed(model, example),
        "remedies": {key: _state(model, example, key) for key in TRIED},
    }


def _diagnosed(model: nn.Module, example: Example) -> bool:
    image = next(iter(example.values()))
    if not isinstance(image, Tensor) or image.ndim != 4:
        return False
    try:
        unsmooth.diagnose(model, torch.rand(2, *image.shape[1:]), quick=True, reference=False, example=example)
    except unsmooth.UnsmoothError as error:
        print(f"not diagnosed: {error}", file=sys.stderr)  # noqa: T201
        return False
    return True


def _state(model: nn.Module, example: Example, key: str) -> str:
    plain = _outputs(model, example)
    try:
        plan = unsmooth.apply(model, key, example=example)
    except unsmooth.UnsmoothError:
        return "none"
    try:
        treated = _outputs(model, example)
    except RuntimeError as error:
        print(f"{key}: {first_line(error)}", file=sys.stderr)  # noqa: T201
        return "error"
    finally:
        unsmooth.remove(model)
    assert treated.isfinite().all(), key
    assert torch.allclose(treated, plain, atol=1e-3 * float(plain.abs().max())) or not plan.exact, key
    assert torch.equal(_outputs(model, example), plain), key
    return "some" if plan.refused else "all"


def _outputs(model: nn.Module, example: Example) -> Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        out = first_tensor(run(model, example))
    assert out is not None
    return out


if __name__ == "__main__":
    record(sys.argv[1:])
