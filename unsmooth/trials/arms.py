"""The arms of a trial: model specs under short names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.results.trial import Control
from unsmooth.spec import ModelSpec, SpecItem, parse

# Recipe fields of single arms, by spec.
ArmFields = Mapping[str, Mapping[str, Any]] | Mapping[ModelSpec, Mapping[str, Any]]


@dataclass(frozen=True)
class PlannedArm:
    """A model spec that is going to be trained. The result of its runs is `unsmooth.results.trial.Arm`."""

    spec: ModelSpec
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # recipe fields of this arm alone
    first_seed: int = 0
    control: Control | None = None

    @property
    def slug(self) -> str:
        """A folder name that does not depend on the other arms."""
        items = self.spec.remedies or self.spec.items
        names = "+".join(item.name for item in items)
        identity = str(self.spec) + (repr(sorted(self.fields.items())) if self.fields else "")
        return f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', names)[:60]}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"

    def run_name(self, seed: int) -> str:
        return f"{self.name}, seed {self.first_seed + seed}"


def plan_arms(specs: Sequence[str | ModelSpec], arm_fields: ArmFields | None = None) -> list[PlannedArm]:
    """Arms with the shortest unique names: only the remedies if all hosts are the same.

    `arm_fields` are recipe fields of single arms, by spec.
    """
    if isinstance(specs, str) or not isinstance(specs, Sequence):
        raise UnsmoothError(f"a trial compares a list of specs (got {specs!r}).")
    parsed = [parse(spec) for spec in specs]
    by_text = {str(parse(spec)): fields for spec, fields in (arm_fields or {}).items()}
    texts = [str(spec) for spec in parsed]
    duplicate = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if duplicate is not None:
        raise UnsmoothError(f"{duplicate} is given twice. To train it more than once, use more seeds (--seeds).")
    if len(texts) < 2:
        raise UnsmoothError(
            f"a trial compares at least two specs (got {len(texts)}). To train one, use unsmooth train."
        )
    one_host = len({str(spec.known_host) for spec in parsed}) == 1
    for text in by_text:
        if text not in texts:
            raise unknown("spec of arm_fields", text, texts)
    namings = (*((_remedy_names, _remedies) if one_host else ()), _host_name_and_remedies, str)
    for naming in namings:
        names = [naming(spec) for spec in parsed]
        if len(set(names)) == len(names):
            arms = zip(parsed, texts, names, strict=True)
            return [PlannedArm(spec, name, by_text.get(text, {})) for spec, text, name in arms]
    raise AssertionError("specs that differ have names that differ")


def _remedy_names(spec: ModelSpec) -> str:
    return "+".join(remedy.name for remedy in spec.remedies) or "plain"


def _remedies(spec: ModelSpec) -> str:
    return "+".join(map(str, spec.remedies)) or "plain"


def _host_name_and_remedies(spec: ModelSpec) -> str:
    return str(ModelSpec(SpecItem(spec.known_host.name), spec.remedies))
