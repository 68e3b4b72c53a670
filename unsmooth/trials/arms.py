"""The arms of a trial: model specs under short names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec, SpecItem, parse


@dataclass(frozen=True)
class PlannedArm:
    """A model spec that is going to be trained. The result of its runs is `unsmooth.results.trial.Arm`."""

    spec: str
    name: str

    @property
    def slug(self) -> str:
        """A folder name that does not depend on the other arms."""
        parsed = parse(self.spec)
        items = parsed.remedies or ((parsed.host,) if parsed.host else ())
        names = "+".join(item.name for item in items)
        return f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', names)[:60]}-{hashlib.sha256(self.spec.encode()).hexdigest()[:6]}"

    def run_name(self, seed: int) -> str:
        return f"{self.name}, seed {seed}"


def plan_arms(specs: Sequence[str]) -> list[PlannedArm]:
    """Arms with the shortest unique names: only the remedies if all hosts are the same."""
    parsed = [parse(spec) for spec in specs]
    for spec in parsed:
        if spec.host is None:
            raise UnsmoothError(f"the spec {str(spec)!r} has no host. Write HOST+{spec}.")
    texts = [str(spec) for spec in parsed]
    duplicate = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if duplicate is not None:
        raise UnsmoothError(f"{duplicate} is given twice. To train it more than once, use more seeds (--seeds).")
    if len(texts) < 2:
        raise UnsmoothError(
            f"a trial compares at least two specs (got {len(texts)}). To train one, use unsmooth train."
        )
    one_host = len({str(spec.host) for spec in parsed}) == 1
    namings = (*((_remedy_names, _remedies) if one_host else ()), _host_name_and_remedies, str)
    for naming in namings:
        names = [naming(spec) for spec in parsed]
        if len(set(names)) == len(names):
            return [PlannedArm(text, name) for text, name in zip(texts, names, strict=True)]
    raise AssertionError("specs that differ have names that differ")


def _remedy_names(spec: ModelSpec) -> str:
    return "+".join(remedy.name for remedy in spec.remedies) or "plain"


def _remedies(spec: ModelSpec) -> str:
    return "+".join(map(str, spec.remedies)) or "plain"


def _host_name_and_remedies(spec: ModelSpec) -> str:
    assert spec.host is not None
    return str(ModelSpec(SpecItem(spec.host.name), spec.remedies))
