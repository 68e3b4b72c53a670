"""`UnsmoothCallback` for the `Trainer` of transformers."""

from __future__ import annotations

from typing import Any

from unsmooth.errors import missing_package
from unsmooth.monitoring.monitor import Monitor
from unsmooth.monitoring.writers import WRITERS, Log

try:
    from transformers import TrainerCallback
except ImportError:
    raise missing_package("the callback for the Hugging Face Trainer", "transformers", "hf") from None


class UnsmoothCallback(TrainerCallback):
    """Monitor the model of a Hugging Face `Trainer`.

    Args:
        log: As in `unsmooth.Monitor`. Default: the trackers in `report_to` that `Monitor` knows.
        **options: Other arguments of `unsmooth.Monitor`, such as `every` and `on_alarm`.

    Attributes:
        monitor: The monitor, from the beginning of training on.

    Example:
        >>> from unsmooth.integrations.huggingface import UnsmoothCallback
        >>> callback = UnsmoothCallback(every=100, on_alarm="raise")
        >>> # Trainer(model, arguments, train_dataset=images, callbacks=[callback]).train()
    """

    def __init__(self, log: Log | list[Log] | None = None, **options: Any) -> None:
        self.log, self.options = log, options
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        log = self.log
        if log is None and state.is_world_process_zero:
            reported = [name for name in args.report_to or () if name in WRITERS]
            log = [f"tensorboard:{args.output_dir}/unsmooth" if name == "tensorboard" else name for name in reported]
        self._close()  # a run that ended with an error
        self.monitor = Monitor(model, log=log, **self.options)
        self.monitor.steps = state.global_step  # of a resumed run

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
