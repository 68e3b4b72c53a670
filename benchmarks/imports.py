"""Time of `import unsmooth`, and of its main names, as a ratio to `import timm`.

    python benchmarks/imports.py [--rounds 7] [--write]

Each import runs in a new process; every round runs each statement once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from records import Record

STATEMENTS = {
    "import timm": "import timm",
    "import unsmooth": "import unsmooth",
    "unsmooth.apply": "import unsmooth; unsmooth.apply",
    "unsmooth.diagnose": "import unsmooth; unsmooth.diagnose",
    "unsmooth.train": "import unsmooth; unsmooth.train",
}
GOAL = 1.15  # of `import unsmooth`
TIMED = "import sys, time; start = time.perf_counter()\n{}\nprint(time.perf_counter() - start, len(sys.modules))"


def measure(statement: str) -> tuple[float, int]:
    """Seconds, and modules loaded."""
    code = TIMED.format(statement)
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return float(output[0]), int(output[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="record the goals")
    given = parser.parse_args()
    rounds = [{name: measure(code) for name, code in STATEMENTS.items()} for _ in range(given.rounds)]
    record = Record("imports", f"medians of {given.rounds} rounds, each import in a new process")
    print(f"{'':<20}{'seconds':>9}{'ratio to timm':>15}{'modules':>9}")
    for name in STATEMENTS:
        seconds = statistics.median(round_[name][0] for round_ in rounds)
        ratio = statistics.median(round_[name][0] / round_["import timm"][0] for round_ in rounds)
        print(f"{name:<20}{seconds:>9.2f}{ratio:>15.2f}{rounds[0][name][1]:>9}")
        if name == "import unsmooth":
            record.goal("import unsmooth, ratio to import timm", ratio, GOAL, at_most=True)
    if given.write:
        record.write()


if __name__ == "__main__":
    main()
