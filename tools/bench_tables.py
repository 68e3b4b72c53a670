"""Tables of hand-written pages that come from records of `make bench` (results/bench/) and from operation counts.

A page has `<!-- bench: NAME.TABLE -->` and `<!-- /bench -->` around such a table: the table TABLE of the record NAME,
or all its tables for `NAME.*`. A table without a record stays as it is.

`python -m tools.bench_tables` counts the operations on the energy page again, which takes a minute, and records them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tools.markdown import DOCS, RESULTS, table

FOLDER = RESULTS / "bench"
PAGES = ("cost.md", "guides/energy.md")
BLOCK = re.compile(r"(<!-- bench: (\w+)\.(\w+|\*) -->\n).*?(<!-- /bench -->)", re.DOTALL)
HOST = "deit_small_patch16_224"
COUNTED = (
    "attn_scale", "feat_scale", "context_broadcast", "augmented_shortcut", "token_graying",
    "token_graying(transform=svd)", "adder_attention", "adder",
)  # fmt: skip


def pages() -> dict[str, str]:
    return {name: BLOCK.sub(_block, (DOCS / name).read_text(encoding="utf-8")) for name in PAGES}


def rows(name: str, key: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a recorded table; both empty if it is not recorded."""
    one = _tables(name).get(key, {"head": [], "rows": []})
    return one["head"], one["rows"]


def _tables(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.is_file() else {}
    return tables


def _block(found: re.Match[str]) -> str:
    start, name, key, end = found.groups()
    tables = _tables(name)
    chosen = list(tables.values()) if key == "*" else [tables[key]] if key in tables else []
    if not chosen:
        return found[0]
    lines: list[str] = []
    for i, one in enumerate(chosen):
        lines += table(one["head"], _with_speeds(one) if (name, key) == ("operations", "operations") else one["rows"])
        last = i == len(chosen) - 1
        lines += [one["note"], *([] if last else [""])] if last or one["note"] != chosen[i + 1]["note"] else []
    return start + "\n".join(lines) + "\n" + end


def _with_speeds(one: dict[str, Any]) -> list[Sequence[str]]:
    """Counts by arm, and the speed that `benchmarks/remedies.py` recorded."""
    speeds = {row[0]: row[3] for row in rows("remedies", "remedies")[1]}
    return [[*row, speeds.get(row[0], "–")] for row in one["rows"]]


def count() -> None:
    """Record parameters, operations and energy of DeiT-S with each remedy."""
    import unsmooth

    counts = unsmooth.bench([HOST, *(f"{HOST}+{arm}" for arm in COUNTED)], throughput=False)
    lines = [
        [f"`{arm}`" if arm else "(plain host)", f"{row.parameters:,}", f"{row.flops / 1e9:.3f}",
         f"{row.operations.add / 1e9:.3f}", f"{row.operations.multiply / 1e9:.3f}",
         f"{row.energy['fp32'].millijoules:.2f} mJ"]
        for arm, row in zip(("", *COUNTED), counts.rows, strict=True)
    ]  # fmt: skip
    head = ["", "parameters", "GFLOPs", "G additions", "G multiplications", "fp32", "speed of inference"]
    note = (
        "Counts are those of `unsmooth bench`; speeds are ratios to the plain host, from [cost](../cost.md#remedies)."
    )
    record = {"goals": [], "tables": {"operations": {"head": head, "rows": lines, "note": note}}}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "operations.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    count()
