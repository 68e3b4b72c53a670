"""Settings of `Monitor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from unsmooth.utils.options import option, options

OnAlarm = Literal["warn", "raise", "ignore"] | Callable[..., Any]


@options
class MonitorSettings:
    """When a monitor measures, and what it does with an alarm."""

    label = "monitor"

    every: int | None = option("optimizer steps between two measurements", default=200, low=1)
    images: int = option("images per measurement", default=4, low=1)
    on_alarm: OnAlarm = option("warn, raise, ignore, or a function of the alarm", default="warn")
