"""`Monitor`: vitals, alarms and a record of a model while any loop trains it."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from unsmooth.diagnosis import registry
from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example, batch_inputs, describes_input
from unsmooth.monitoring.alarms import RULES, AlarmRaised, AlarmState, alarm_limits
from unsmooth.monitoring.hooks import ImageHook, StepHook, check_not_sharded, uncompiled, unwrap
from unsmooth.monitoring.observe import Breakage, VitalsRecord, broken_gradient, observe
from unsmooth.monitoring.settings import MonitorSettings, OnAlarm
from unsmooth.monitoring.writers import Log, Records
from unsmooth.results.training import Alarm
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import check_unwrapped
from unsmooth.utils.notebook import data_frame

if TYPE_CHECKING:
    import pandas

VITALS = ("token_cosine", "effective_rank", "attention_entropy", "max_logit", "token_norm_outliers")
PARTS = [(rule.vital, rule.part) for rule in RULES.values() if rule.part]  # that alarms read besides the main parts
LEAST_FORWARDS = 64  # more than gradient accumulation usually has


class Monitor:
    """Measure vitals of a model while any loop trains it, raise alarms, and record both.

    Construct it before the loop; the loop itself does not change. Steps of the torch optimizer that trains the model
    are counted, so gradient accumulation counts once. At step 0 and then every `every` steps, a few images of the
    current batch run through the model once more, without gradients and in eval mode. Nothing of the training changes:
    outputs, gradients, training flags, random numbers and BatchNorm statistics stay the same, and nothing is kept
    between measurements. In distributed training, the first process measures.

    Args:
        model: The model, also inside DistributedDataParallel or torch.compile.
        every: Optimizer steps between two measurements; None to measure only when `measure` is called.
        vitals: Names of vitals, comma-separated or as a list.
        images: Images per measurement.
        log: Where to record: "tensorboard", "tensorboard:FOLDER", "wandb", "mlflow", "trackio", a path that ends in
            .jsonl, an object with the methods of `unsmooth.monitoring.writers.Writer`, or a list of these.
        alarms: False for none, or limits by kind, such as `{"max_logit": 50}`, that replace the default ones.
        on_alarm: "warn", "raise", "ignore" (only record it), or a function that is called with the `Alarm`.
        example: One input, for a model that does not accept an image of noise.

    Attributes:
        history: The measurements so far, each a `VitalsRecord`.
        alarms: The alarms so far, each an `Alarm`.
        steps: Optimizer steps counted so far.

    Raises:
        UnsmoothError: If an argument is not valid, or if the model is not a vision transformer.

    Example:
        >>> import torch, unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> with unsmooth.Monitor(model, every=2) as monitor:
        ...     for _ in range(5):
        ...         loss = model(torch.randn(8, 3, 32, 32)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> [record.step for record in monitor.history], monitor.alarms
        ([0, 2, 4], [])
        >>> len(monitor.history[-1].vitals["token_cosine"])
        2
    """

    def __init__(
        self,
        model: nn.Module,
        every: int | None = 200,
        vitals: str | Iterable[str] = VITALS,
        images: int = 4,
        log: Log | list[Log] | None = None,
        alarms: bool | Mapping[str, float] = True,
        on_alarm: OnAlarm = "warn",
        example: Example | None = None,
    ) -> None:
        settings = MonitorSettings(every=every, images=images, on_alarm=on_alarm)
        self.model, self.every, self.on_alarm = unwrap(model), settings.every, settings.on_alarm
        check_unwrapped(self.model)
        self.vitals = [vital for vital in registry.select(vitals) if vital.of != "model"]
        self._requested = () if vitals is VITALS else tuple(vital.key for vital in self.vitals)
        limits = alarm_limits(alarms)
        self._alarm_state = AlarmState(limits) if limits is not None else None
        check_not_sharded(self.model)
        self._anatomy: Anatomy | None = None
        try:
            self._anatomy = self._examine(example)
        except UnsmoothError:
            if example is not None or describes_input(self.model):
                raise  # else the first batch shows what the model takes
        self.history: list[VitalsRecord] = []
        self.alarms: list[Alarm] = []
        self.steps = 0
        self._forwards = 0  # training forward passes since the last step or measurement
        self._counted = 0  # those that count as steps, because no optimizer steps
        self._warned = False
        self._records = Records(log if _is_first_process() else None)
        self._started = time.monotonic()
        self._image_hook = ImageHook(settings.images, self._on_forward)
        self._hook: Any = None
        self._step_hook: StepHook | None = None
        if every is not None and _is_first_process():
            self._hook = model.register_forward_pre_hook(self._image_hook, with_kwargs=True)
            self._step_hook = StepHook(self.model, self._on_step)
            weakref.finalize(self, self._step_hook.remove)

    # Counting.

    def step(self, images: Tensor | None = None) -> None:
        """Count a step by hand, where no torch optimizer trains the model. After the first call only these count.

        Args:
            images: Images to measure if a measurement is due. Default: those of the last forward pass.
        """
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None
            if self.steps:  # the optimizer has counted this step already
                return
        if images is not None and self._due():
            self._image_hook.images = images[: self._image_hook.count]
        self._on_step()

    def _due(self) -> bool:
        return self.every is not None and self.steps % self.every == 0

    def _on_step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Called at each optimizer step."""
        self._forwards = self._counted = 0
        try:
            if self._due():
                # A fused optimizer gets scaled gradients and skips those that are not finite by itself.
                self._measure_batch(gradients=getattr(optimizer, "grad_scale", None) is None)
        finally:
            self.steps += 1
            self._image_hook.wanted = self._due()

    def _on_forward(self) -> None:
        """Called at each training forward pass. They count as steps if many of them see no step of an optimizer.

        A gradient scaler skips all steps if the loss is not finite, for instance.
        """
        assert self.every is not None
        self._forwards += 1
        patience = max(self.every, LEAST_FORWARDS)
        if self._forwards == patience:
            self._image_hook.wanted = True
        elif self._forwards > patience:
            self._counted += self._forwards
            self._forwards = 0
            self._measure_batch(gradients=False)
            self._image_hook.wanted = self._due()

    # Measuring.

    def measure(self, images: Tensor, step: int | None = None, model: nn.Module | None = None) -> VitalsRecord:
        """Measure now, record it and raise alarms.

        Args:
            images: Images as the model takes them.
            step: Number to record. Default: the steps counted so far.
            model: Another model of the same architecture, such as a moving average of the weights. Default: the model.

        Returns:
            The measurement.
        """
        return self._publish(*self._observe(images, self.steps if step is None else step, model or self.model))

    def _measure_batch(self, gradients: bool) -> None:
        """Measure images of the last batch. Whatever goes wrong in that ends the monitor, not the run."""
        images = self._image_hook.take()
        if not _is_first_process():  # also of processes that were started after the construction
            return
        if images is None:
            self._warn_once(
                "the monitor saw no images of a training batch. Construct it before torch.compile first runs the "
                "model, or pass the images: monitor.step(images)."
            )
            return
        try:
            record, broken = self._observe(images, self.steps + self._counted, self.model)
            if broken is None and gradients:
                broken = self._broken_gradient()
        except Exception as error:
            self.close()
            warnings.warn(f"the monitor stopped at step {self.steps}: {first_line(error)}", stacklevel=2)
            return
        self._publish(record, broken)

    def _observe(self, images: Tensor, step: int, model: nn.Module) -> tuple[VitalsRecord, Breakage | None]:
        begun = time.monotonic()
        with uncompiled(self.model), self._autocast(images):
            if self._anatomy is None:
                self._anatomy = anatomy_of(self.model, batch_inputs(self.model, images[:1]))
            curves, broken = observe(model, self._anatomy, images, self.vitals, PARTS, self._requested)
        return VitalsRecord(step, curves, round(time.monotonic() - begun, 4)), broken

    def _examine(self, example: Example | None) -> Anatomy:
        with uncompiled(self.model):
            return anatomy_of(self.model, example)

    def _autocast(self, images: Tensor) -> AbstractContextManager[Any]:
        dtype = self._image_hook.autocast
        return nullcontext() if dtype is None else torch.autocast(images.device.type, dtype)

    def _broken_gradient(self) -> Breakage | None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not gradients or get_total_norm(gradients).isfinite():
            return None
        assert self._anatomy is not None
        return broken_gradient(self.model, self._anatomy)

    # Recording.

    def _publish(self, record: VitalsRecord, broken: Breakage | None) -> VitalsRecord:
        self.history.append(record)
        self._records.write(record.step, record.scalars())
        new = [] if self._alarm_state is None else self._alarm_state.check(record.step, record.vitals, broken)
        self.alarms += new
        for alarm in new:
            self._records.alarm(alarm)
        for alarm in new:
            if callable(self.on_alarm):
                self.on_alarm(alarm)
            elif self.on_alarm == "raise":
                raise AlarmRaised(alarm)
            elif self.on_alarm == "warn":
                warnings.warn(str(alarm), stacklevel=2)
        return record

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=2)

    @property
    def share(self) -> float:
        """Share of the time since the construction that measurements took."""
        return sum(record.seconds for record in self.history) / max(time.monotonic() - self._started, 1e-9)

    def frame(self) -> pandas.DataFrame:
        """The history as a pandas DataFrame: one row per step and block, one column per vital.

        Returns:
            The DataFrame.

        Raises:
            UnsmoothError: If pandas is not installed.
        """
        rows = [
            {"step": record.step, "block": block}
            | {name: value for name, values in record.vitals.items() if not isinstance(value := values[block], list)}
            for record in self.history
            for block in range(max(map(len, record.vitals.values()), default=0))
        ]
        return data_frame(rows, dict.fromkeys(column for row in rows for column in row))

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run: the number of steps and the references of relative limits. It holds no tensors."""
        return {"steps": self.steps, "alarms": None if self._alarm_state is None else self._alarm_state.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`.

        Args:
            state: What `state_dict` returned.
        """
        self.steps = state["steps"]
        self._image_hook.wanted = self._due()
        if self._alarm_state is not None and state["alarms"] is not None:
            self._alarm_state.load_state_dict(state["alarms"])

    def close(self) -> None:
        """Remove all hooks and close the records. The history stays."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None
        self._image_hook.images = None
        self._records.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_first_process() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
