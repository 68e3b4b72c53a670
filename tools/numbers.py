"""A diagnosis without its maps, for results/: python -m tools.numbers DIAGNOSIS.json OUT.json

Sample images and values by head or frequency are left out. What remains is a diagnosis that every command reads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.measured import Series


def numbers_only(diagnosis: Diagnosis) -> Diagnosis:
    diagnosis.samples = []
    for vital in diagnosis.vitals.values():
        vital.parts = {
            part: series for part, series in vital.parts.items() if part == vital.main or not _curves(series)
        }
    return diagnosis


def _curves(series: Series) -> bool:
    return any(spread is not None and isinstance(spread.mean, list) for spread in series)


def main() -> None:
    source, target = sys.argv[1:]
    values = numbers_only(Diagnosis.from_json(source)).to_dict()
    folder = Path(source).parent.name
    values["made"]["command"] = values["made"]["command"].replace(f"--out {folder}", "--out DIR")
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    Path(target).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
