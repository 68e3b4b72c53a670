"""Alarms of a training run: which vital passes which limit, what it means, and what to try.

A limit has two parts: a level, and a change since an earlier measurement of the same block in the same run. A model
that starts past the level, such as a pretrained one with large logits, raises no alarm until it changes. The limits are
heuristics; `source` says which models and runs they separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.monitoring.observe import Breakage, Curves
from unsmooth.results.measured import Values, round_values
from unsmooth.results.training import Alarm
from unsmooth.utils.text import blocks_text


class AlarmRaised(UnsmoothError):
    """An alarm of a monitor with on_alarm="raise". The alarm is in `alarm`."""

    def __init__(self, alarm: Alarm) -> None:
        super().__init__(str(alarm))
        self.alarm = alarm


@dataclass(frozen=True)
class AlarmRule:
    """The limit of one vital.

    Attributes:
        vital: Name of the vital.
        part: The part of it that is compared. Of several heads, the one that is furthest past the limit counts.
        above: Whether values above the limit raise the alarm, or values below it.
        level: The level.
        change: The change, as a multiple of an earlier value.
        since: Which earlier value: the `first` of the run, or the `highest` so far.
        both: Whether level and change must both be passed, or one of them.
        text: What happened, with the fields blocks, value, limit and earlier.
        action: What to try.
        source: What the limit separates.
    """

    vital: str
    part: str
    above: bool
    level: float
    change: float
    since: Literal["first", "highest"]
    both: bool
    text: str
    action: str
    source: str

    @property
    def curve(self) -> str:
        return f"{self.vital}.{self.part}" if self.part else self.vital

    def limit(self, earlier: float) -> float:
        """The limit of a block with this earlier value."""
        further = max if self.above == self.both else min
        return further(self.level, self.change * earlier)


DIGITS = "healthy runs on digits (results/monitor.json)"
PRETRAINED = "cct_12_3x2_32 and a saliency fine-tune of DINOv2 ViT-S/14"
LOWER_LR = "Lower the learning rate or lengthen the warm-up"
RULES: dict[str, AlarmRule] = {
    "entropy_collapse": AlarmRule(
        "attention_entropy",
        "share",
        above=False,
        level=0.1,
        change=0.5,
        since="first",
        both=True,
        text="attention of {blocks} concentrates on single keys: its entropy is {value:.2f} of its maximum (limit "
        "{limit:.2g})",
        action=f"{LOWER_LR}, or apply sigma_reparam or qk_norm.",
        source=f"{DIGITS}: at least 0.35; {PRETRAINED}: at least 0.50; runs with growing logits: below 0.05",
    ),
    "max_logit": AlarmRule(
        "max_logit",
        "heads",
        above=True,
        level=50.0,
        change=3.0,
        since="first",
        both=True,
        text="the largest attention logit of {blocks} is {value:.0f} (limit {limit:.0f}), so softmax saturates",
        action=f"{LOWER_LR}, or apply qk_norm or sigma_reparam.",
        source=f"{DIGITS}: at most 19; cct_12_3x2_32: 15; the saliency fine-tune starts with 282, hence the change",
    ),
    "falling_rank": AlarmRule(
        "effective_rank",
        "",
        above=False,
        level=1.5,
        change=0.4,
        since="highest",
        both=False,
        text="the tokens of {blocks} lose their rank: it is {value:.1f} (limit {limit:.1f}; highest of the run: "
        "{earlier:.1f})",
        action=f"{LOWER_LR}, and run unsmooth.diagnose for the cause and its remedies.",
        source=f"{DIGITS}: at least 0.76 of the highest; with a growing learning rate: 0.15; without skips: rank 1.0",
    ),
    "norm_outliers": AlarmRule(
        "token_norm_outliers",
        "ratio",
        above=True,
        level=10.0,
        change=3.0,
        since="first",
        both=True,
        text="a token of {blocks} has {value:.0f} times the median norm (limit {limit:.0f})",
        action="Apply registers; in float16, switch to bfloat16.",
        source=f"{DIGITS}: at most 3.7; {PRETRAINED}: 2.5; about 10 in large models (Darcet et al., 2024)",
    ),
}
NON_FINITE = "non_finite"
RESTART = (
    "Resume from an earlier checkpoint with a lower learning rate and clipped gradients; use bfloat16, not float16."
)
KINDS = (*RULES, NON_FINITE)


def alarm_limits(alarms: bool | Mapping[str, float]) -> dict[str, float] | None:
    """The limits that the caller gave by kind; None for no alarms."""
    if isinstance(alarms, bool):
        return {} if alarms else None
    for kind, limit in alarms.items():
        if kind not in RULES:
            raise unknown("alarm with a limit", kind, RULES)
        if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit >= 0:
            raise UnsmoothError(f"the limit of {kind} must be a number of at least 0 (got {limit!r}).")
    return dict(alarms)


class AlarmState:
    """Compares measurements with the limits. A kind that stays past its limit raises one alarm, not many.

    Args:
        limits: Limits by kind that replace level and change of the rule.
    """

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = dict(limits)
        self.earlier: dict[str, list[float | None]] = {}  # by kind and block
        self.active: set[str] = set()

    def check(self, step: int, curves: Curves, broken: Breakage | None) -> list[Alarm]:
        """The alarms of a measurement that were not raised by the one before."""
        raised = [alarm for kind in RULES if (alarm := self._check(step, kind, curves)) is not None]
        if broken is not None:
            raised.append(Alarm(step, NON_FINITE, broken.block, None, None, broken.text, RESTART))
        new = [alarm for alarm in raised if alarm.kind not in self.active]
        self.active = {alarm.kind for alarm in raised}
        return new

    def _check(self, step: int, kind: str, curves: Curves) -> Alarm | None:
        rule, side = RULES[kind], 1 if RULES[kind].above else -1
        if rule.curve not in curves:
            return None
        values = [nearest(value, rule.above) for value in curves[rule.curve]]
        earlier = self._remember(kind, values)
        limits = [None if e is None else self.limits.get(kind, rule.limit(e)) for e in earlier]
        past = {
            block: (value - limit) * side / max(limit, 1e-9)
            for block, (value, limit) in enumerate(zip(values, limits, strict=True))
            if value is not None and limit is not None and (value - limit) * side >= 0
        }
        if not past:
            return None
        worst = max(past, key=lambda block: past[block])
        fields = {"value": values[worst], "limit": limits[worst], "earlier": earlier[worst]}
        why = rule.text.format(blocks=blocks_text(sorted(past)), **fields)
        return Alarm(step, kind, worst, values[worst], round_values(limits[worst]), why, rule.action)

    def _remember(self, kind: str, values: list[float | None]) -> list[float | None]:
        """The earlier value of each block, or this one if there is none."""
        known = self.earlier.get(kind, [None] * len(values))
        if RULES[kind].since == "first":
            known = [now if before is None else before for before, now in zip(known, values, strict=True)]
        else:
            pairs = zip(known, values, strict=True)
            known = [max((v for v in pair if v is not None), default=None) for pair in pairs]
        self.earlier[kind] = known
        return known

    def state_dict(self) -> dict[str, Any]:
        return {"earlier": {kind: list(values) for kind, values in self.earlier.items()}, "active": sorted(self.active)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.earlier = {kind: list(values) for kind, values in state["earlier"].items()}
        self.active = set(state["active"])


def nearest(value: Values, above: bool) -> float | None:
    """Of the values of several heads, the one nearest to the limit or furthest past it."""
    if not isinstance(value, list):
        return value
    numbers = [v for v in value if isinstance(v, float)]
    return (max if above else min)(numbers) if numbers else None
