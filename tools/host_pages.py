"""Hosts × remedies: every pair is run (`make hosts`, minutes), recorded in results/hosts.json, and shown as a page.

The hosts are those of tools/hosts.toml. Pairs that are recorded already are not run again, unless the code, the spec or
a package changed.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import tomllib
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unsmooth
from tools import other_host_pages
from tools.markdown import RESULTS, page, table
from unsmooth.errors import first_line
from unsmooth.hosts.inputs import example_input, first_tensor, run
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import record_of

RECORD = RESULTS / "hosts.json"
MARKS = {
    "all": ("●", "every block"),
    "some": ("◐", "some blocks"),
    "none": ("–", "not supported"),
    "fails": ("✗", "fails"),
}
GROUPS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "hosts.toml").read_text(encoding="utf-8"))
HOSTS = {name: spec for hosts in GROUPS.values() for name, spec in hosts.items()}
# The code that decides how a pair behaves, besides the file of the remedy.
SHARED = ("hosts", "models", "seam", "surgery", "remedies/base.py", "remedies/kernels", "bands.py")
PACKAGES = ("torch", "timm", "transformers", "torchvision", "open_clip_torch")
LEGEND = """
● works on every block · ◐ works on some blocks · – not supported, for the reason in the note · ✗ is applied but fails a
check, do not use it · f can be folded for inference (`unsmooth.fold`).

Each pair was run with default options on a shallow or narrow model with random weights. It was applied (outputs equal
where the remedy declares it), folded (outputs equal) and removed (outputs bit-identical). `unsmooth check SPEC` prints
the same for your own model, block by block. [Hosts](guides/hosts.md) explains video, audio and other inputs.
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


def record_hosts(jobs: int | None = None) -> None:
    """Run the pairs whose code, spec or packages changed since results/hosts.json was written, and write it.

    Hosts run in parallel processes. The file is written after each host, so an interrupted run continues where it was.
    """
    known = {row["name"]: row for row in read_hosts()} if RECORD.exists() else {}
    rows = {name: _valid(known.get(name), spec) for name, spec in HOSTS.items()}
    missing = {name: row for name, row in rows.items() if row["remedies"].keys() != set(unsmooth.list_remedies())}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _one_thread) as pool:
        for done in as_completed([pool.submit(_run_host, row) for row in missing.values()]):
            row = done.result()
            rows[row["name"]] = row
            print(row["name"], *(MARKS[c["state"]][0] for c in row["remedies"].values()), file=sys.stderr)  # noqa: T201
            complete = [row for row in rows.values() if row["remedies"]]
            RECORD.write_text(json.dumps(complete, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _valid(row: dict[str, Any] | None, spec: str) -> dict[str, Any]:
    """A recorded row without the pairs whose code changed; without any if its spec or a package changed."""
    name = next(name for name, known in HOSTS.items() if known == spec)
    new = {"name": name, "spec": spec, "versions": _versions(), "remedies": {}}
    if row is None or (row["spec"], row.get("versions")) != (spec, new["versions"]):
        return new
    current = {key: cell for key, cell in row["remedies"].items() if key in unsmooth.list_remedies()}
    return {**new, "remedies": {key: cell for key, cell in current.items() if cell.get("code") == _code_of(key)}}


@cache
def _versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


@cache
def _code_of(key: str) -> str:
    """A fingerprint of the code that a pair with this remedy runs."""
    package = Path(unsmooth.__file__).parent
    files = [file for place in SHARED for file in sorted((package / place).rglob("*.py")) or [package / place]]
    digest = hashlib.sha256()
    for file in [*files, package / "remedies" / f"{key}.py"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def _one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _run_host(row: dict[str, Any]) -> dict[str, Any]:
    """Run the pairs that a row lacks."""
    model = _host(row["spec"])
    cells = dict(row["remedies"])
    try:
        anatomy, plain = anatomy_of(model), _outputs(model)
    except unsmooth.UnsmoothError as error:
        refusal = {"state": "none", "folds": False, "reasons": [str(error)]}
        return {**row, "remedies": {key: {**refusal, "code": _code_of(key)} for key in unsmooth.list_remedies()}}
    for key in unsmooth.list_remedies():
        if key not in cells:
            record_of(model).anatomy = anatomy  # the host is examined once
            try:
                cell = _pair(model, plain, key)
            except Exception as error:  # a defect of ours, shown in the table
                cell = {"state": "fails", "folds": False, "reasons": [first_line(error)]}
                model = _host(row["spec"])
            cells[key] = {**cell, "code": _code_of(key)}
    return {**row, "remedies": {key: cells[key] for key in unsmooth.list_remedies()}}


def _host(spec: str) -> nn.Module:
    """A host whose batch norms have seen an input: with their initial statistics, activations can grow without end."""
    torch.manual_seed(0)
    model = unsmooth.create_model(spec).eval()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with suppress(ValueError):  # a norm of one value per channel has no statistics
        _outputs(model)
    return model.eval()


def _pair(model: nn.Module, plain: torch.Tensor, key: str) -> dict[str, Any]:
    """Apply, run, fold and remove one remedy; raises if it is applied and a check fails."""
    try:
        plan = unsmooth.apply(model, key)
    except unsmooth.UnsmoothError as error:
        return {"state": "none", "folds": False, "reasons": [str(error).partition(": ")[2] or str(error)]}
    treated = _outputs(model)
    assert treated.isfinite().all(), "its outputs are not finite"
    largest = max(1.0, float(treated.abs().max()))
    assert torch.allclose(treated, plain, atol=1e-3 * largest) or not plan.exact, "it changes the outputs when applied"
    folded = unsmooth.fold(model)
    folds = bool(record_of(folded).folded)
    assert not folds or torch.allclose(_outputs(folded), treated, atol=1e-3 * largest), "folding changes the outputs"
    unsmooth.remove(model)
    assert torch.equal(_outputs(model), plain), "removing it does not restore the outputs"
    reasons = sorted(set(plan.refused.values()))
    return {"state": "some" if reasons else "all", "folds": folds, "reasons": reasons}


def _outputs(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        out = first_tensor(run(model, example_input(model)))
    assert out is not None
    return out


if __name__ == "__main__":
    record_hosts(int(sys.argv[1]) if len(sys.argv) > 1 else None)
