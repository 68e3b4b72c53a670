"""The arms of a trial: what is compared, under short names, each run in its own folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec, SpecItem, parse


@dataclass(frozen=True)
class Arm:
    spec: str
    name: str

    @property
    def slug(self) -> str:
        """A name for a folder, which does not depend on the other arms."""
        parsed = parse(self.spec)
        parts = parsed.remedies or ((parsed.host,) if parsed.host else ())
        words = "+".join(part.name for part in parts)
        return f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', words)[:60]}-{hashlib.sha256(self.spec.encode()).hexdigest()[:6]}"

    def run_name(self, seed: int) -> str:
        return f"{self.name}, seed {seed}"

    def folder(self, trial: Path, seed: int) -> Path:
        return trial / "runs" / self.slug / f"seed{seed}"


def arms_of(specs: Sequence[str]) -> list[Arm]:
    """Arms with the shortest names that tell them apart: remedies alone where the host is the same."""
    parsed = [parse(spec) for spec in specs]
    for one in parsed:
        if one.host is None:
            raise UnsmoothError(f"the spec {str(one)!r} names no host: write HOST+{one}")
    texts = [str(one) for one in parsed]
    twice = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if twice is not None:
        raise UnsmoothError(f"{twice} is given twice; an arm is trained once for each seed, see --seeds")
    if len(texts) < 2:
        raise UnsmoothError("a trial compares two specs or more; to train one, use unsmooth train")
    one_host = len({str(spec.host) for spec in parsed}) == 1
    ways = (
        *((_bare_remedies, _remedies) if one_host else ()),
        _names,
        str,
    )
    for way in ways:
        names = [way(spec) for spec in parsed]
        if len(set(names)) == len(names):
            return [Arm(text, name) for text, name in zip(texts, names, strict=True)]
    raise AssertionError("specs that differ have names that differ")


def _bare_remedies(spec: ModelSpec) -> str:
    return "+".join(part.name for part in spec.remedies) or "plain"


def _remedies(spec: ModelSpec) -> str:
    return "+".join(map(str, spec.remedies)) or "plain"


def _names(spec: ModelSpec) -> str:
    assert spec.host is not None
    return str(ModelSpec(SpecItem(spec.host.name), spec.remedies))
