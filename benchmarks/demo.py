"""Runs `unsmooth demo` and records its numbers, which the README and the first page of the docs name.

    python benchmarks/demo.py FOLDER

Trials and report are kept in FOLDER, and finished runs are not repeated. Written: results/demo.json, with the accuracy
of each run in the order of its seeds, the paired difference and the verdicts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unsmooth.cli.demo import BUDGET, HOST, ILL, REMEDY, demo
from unsmooth.results.trial import Trial
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.directory import TrialDirectory

RESULT = Path(__file__).parent.parent / "results" / "demo.json"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = TrialDirectory(Path(sys.argv[1]))
    demo(out.path)
    trial = Trial.from_json(out.result)
    ill, treated = trial.arms
    healthy = out.run(plan_arms([ILL, HOST])[1], 0).result()
    assert healthy is not None and treated.difference is not None
    record = {
        "host": HOST,
        "ill": ILL,
        "remedy": REMEDY,
        "data": {"name": trial.data.name, "train": trial.data.train, "val": trial.data.val},
        "recipe": {"name": trial.recipe_name, **BUDGET},
        "top1": {"with_skip": [healthy["top1"]], "without_skip": ill.top1.runs, "treated": treated.top1.runs},
        "difference": {"mean": treated.difference.mean, "low": treated.difference.low, "high": treated.difference.high},
        "confidence": trial.confidence,
        "verdicts": {name: arm.diagnosed and arm.diagnosed.verdict for name, arm in
                     (("without_skip", ill), ("treated", treated))},
        "made": {"unsmooth": trial.provenance.unsmooth, "torch": trial.provenance.torch, "timm": trial.provenance.timm,
                 "command": "python benchmarks/demo.py FOLDER", "machine": trial.provenance.machine},
    }  # fmt: skip
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RESULT.name}")


if __name__ == "__main__":
    main()
