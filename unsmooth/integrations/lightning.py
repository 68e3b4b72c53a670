"""`UnsmoothCallback` for Lightning, from the package `lightning` or `pytorch_lightning`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.monitoring.monitor import Monitor
from unsmooth.monitoring.writers import Log
from unsmooth.results.training import Alarm
from unsmooth.surgery.plan import anatomy_of

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """The class `Callback` of the package that is in use, else of the first that is installed."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise UnsmoothError("the callback for Lightning needs lightning. pip install lightning")


class UnsmoothCallback(_callback_class()):  # type: ignore[misc]
    """Monitor the vision transformer of a LightningModule.

    Args:
        model: Name of the submodule that is the vision transformer. Default: the first child that is one, or the
            module itself.
        log: As in `unsmooth.Monitor`. Default: the loggers of the trainer.
        **options: Other arguments of `unsmooth.Monitor`, such as `every` and `on_alarm`.

    Attributes:
        monitor: The monitor, from the beginning of training on.

    Example:
        >>> from unsmooth.integrations.lightning import UnsmoothCallback
        >>> callback = UnsmoothCallback("backbone", every=100)
        >>> # Trainer(callbacks=[callback]).fit(module, images)
    """

    def __init__(self, model: str = "", log: Log | list[Log] | None = None, **options: Any) -> None:
        self.name, self.options = model, {"log": log, **options}  # Lightning sets `log`
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._close()
        options = dict(self.options)
        if options["log"] is None and trainer.loggers:
            options["log"] = LightningLoggers(trainer.loggers)
        host = pl_module.get_submodule(self.name) if self.name else _find_host(pl_module)
        self.monitor = Monitor(host, **options)
        if self._state:
            self.monitor.load_state_dict(self._state)
        self.monitor.steps = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        return self.monitor.state_dict() if self.monitor is not None else self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = dict(state_dict)

    def _close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()


def _find_host(module: nn.Module) -> nn.Module:
    """The first child that is a vision transformer, or the module itself if its `forward` runs one."""
    reasons = []
    for candidate in [*module.children(), module]:
        try:
            anatomy_of(candidate)
            return candidate
        except UnsmoothError as error:
            reasons.append(first_line(error))
    names = ", ".join(name for name, _ in module.named_children())
    raise UnsmoothError(
        f"no vision transformer was found in {type(module).__name__} (children: {names}): {reasons[0]}. Name its "
        "submodule: UnsmoothCallback('NAME')."
    )


class LightningLoggers:
    """The loggers of a Lightning trainer as a record. They have no alarms, so these are counted by kind.

    Args:
        loggers: The loggers.
    """

    def __init__(self, loggers: list[Any]) -> None:
        self.loggers, self.alarms = loggers, dict[str, int]()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics({f"unsmooth/{name}": value for name, value in scalars.items()}, step=step)

    def alarm(self, alarm: Alarm) -> None:
        self.alarms[alarm.kind] = self.alarms.get(alarm.kind, 0) + 1
        for logger in self.loggers:
            logger.log_metrics({f"unsmooth/alarms/{alarm.kind}": float(self.alarms[alarm.kind])}, step=alarm.step)

    def close(self) -> None: ...
