"""`train`: training runs that can be interrupted, resumed and repeated exactly."""

from __future__ import annotations

import hashlib
import math
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.monitoring.monitor import Monitor
from unsmooth.monitoring.observe import scalars
from unsmooth.monitoring.writers import Records, TensorBoard
from unsmooth.recipes.recipe import Recipe, resolve_fields
from unsmooth.results.training import BestEpoch, EpochMetrics, TrainingResult
from unsmooth.spec import ModelSpec
from unsmooth.tasks.base import Score, Task, TaskRequest
from unsmooth.tasks.registry import open_task
from unsmooth.tasks.table import CLASSIFICATION
from unsmooth.training.checkpoint import read_state, write_state
from unsmooth.training.observer import NullObserver, Observer
from unsmooth.training.run_dir import RunDir
from unsmooth.training.run_record import check_batch_size, check_process_shares, run_settings
from unsmooth.training.settings import TrainSettings
from unsmooth.training.signals import StopFlag, graceful_shutdown
from unsmooth.training.trainer import NotFinite, Trainer
from unsmooth.utils.processes import Processes, init_processes

MAX_NAME = 120  # characters of a default directory name


class Diverged(UnsmoothError):
    """The loss or a weight is not finite. The last good checkpoint is kept."""


def train(
    spec: str | ModelSpec,
    data: str | Path,
    *,
    task: str = CLASSIFICATION,
    recipe: str | Path | Recipe = "small",
    options: Mapping[str, Any] | None = None,
    settings: TrainSettings | None = None,
    observer: Observer | None = None,
    command: str = "",
    **fields: Any,
) -> TrainingResult:
    """Train or fine-tune a model.

    The same call resumes a run that was interrupted, and returns the result of a run that is done. Under torchrun,
    every process makes the same call. `unsmooth.training.run_dir` lists the files of a run.

    Args:
        spec: Model spec, HOST or HOST+remedy(option=value), as text or parsed.
        data: Training and validation data: a folder, an .npz file, or the name of a dataset.
        task: What to learn: classification, segmentation, vqa or mae.
        recipe: Name of a recipe, path of a .toml file, or a `Recipe`.
        options: Options of the task.
        settings: Settings of the run, such as its directory, seed and device.
        observer: Object that is notified of steps and epochs.
        command: Command line to record in run.json.
        **fields: Fields of `TrainSettings` or of `Recipe` by name, which replace those of `settings` and `recipe`.

    Returns:
        The metrics of the last epoch, the best epoch, time and skipped images. `result["top1"]` is a metric.

    Raises:
        UnsmoothError: If an argument is not valid, or if the run directory holds another run.
        Interrupted: If the run was stopped by SIGINT or SIGTERM. It can be resumed.
        Diverged: If the loss or a weight is not finite.

    Example:
        >>> import tempfile, unsmooth
        >>> spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> with tempfile.TemporaryDirectory() as out:
        ...     result = unsmooth.train(
        ...         spec + "+attn_scale", "digits", out=out, epochs=1, train_images=128, val_images=50, warmup_epochs=0
        ...     )
        >>> result.epochs, result.images
        (1, 50)
    """
    chosen, resolved = resolve_fields(TrainSettings, settings, recipe, fields)
    run_dir = RunDir(chosen.out if chosen.out is not None else default_run_dir(spec, data, chosen.seed, task))
    request = TaskRequest(
        spec, data, resolved, chosen.seed, chosen.checkpoint, chosen.pretrained, chosen.val_data,
        chosen.data_dir, chosen.strict_data, dict(options or {}),
    )  # fmt: skip
    opened = open_task(task, request)
    record = run_settings(opened, command)
    run_dir.check(record)
    check_batch_size(opened, resolved)
    processes = init_processes(chosen.device)
    try:
        check_process_shares(opened, resolved, processes)
        if len(set(processes.gather((run_dir.done, run_dir.state.exists())))) > 1:
            raise UnsmoothError(f"the processes see different files in {run_dir.path}. Use a shared file system.")
        if (result := run_dir.result()) is not None:
            return result
        record = replace(record, processes=processes.world, device=processes.device.type)
        run = _Run(opened, chosen, processes, run_dir)
        with graceful_shutdown() as flag:
            processes.on_primary(lambda: run_dir.acquire(record))
            try:
                result = run.run(flag, observer or NullObserver())
                if processes.any(flag.stop)[0]:
                    raise Interrupted(f"stopped after the end of the run in {run_dir.path}; it is complete")
                return result
            finally:
                run_dir.release()
    finally:
        processes.close()


def default_run_dir(spec: str | ModelSpec, data: str | Path, seed: int, task: str = CLASSIFICATION) -> Path:
    """Directory of a run that names none: runs/SPEC-DATA-seedN."""
    prefix = "" if task == CLASSIFICATION else f"{task}-"
    name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", f"{prefix}{spec}-{Path(data).stem}-seed{seed}").strip("_")
    if len(name) > MAX_NAME:  # truncated names stay unique by a digest
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


class _Run:
    """Everything that a run consists of, built before anything is written."""

    def __init__(self, task: Task, settings: TrainSettings, processes: Processes, run_dir: RunDir) -> None:
        self.task, self.processes, self.run_dir = task, processes, run_dir
        self.recipe, self.save_every = task.request.recipe, settings.save_every
        recipe, seed, workers = self.recipe, settings.seed, settings.workers
        task.build()
        pin = processes.device.type == "cuda"
        batches = TrainingBatches(task.train, recipe.batch_size, seed, recipe.repeated_augmentation, workers,
                                  processes.rank, processes.world, pin)  # fmt: skip
        per_process = max(1, recipe.batch_size // processes.world)
        self.validation = evaluation_batches(task.val, per_process, workers, processes.rank, processes.world, pin)
        monitors = recipe.vitals_every and processes.primary
        self.monitor_images = task.monitor_images(recipe.vitals_images) if monitors else None
        self.monitor: Monitor | None = None
        if self.monitor_images is not None:
            self.monitor = Monitor(task.model, every=None, vitals=recipe.vitals)
        self.trainer = Trainer(task, recipe, batches, seed, processes, settings.shard)
        self.best_epoch, self.best_value = 0, -math.inf
        self.seconds, self.vitals_seconds = 0.0, 0.0
        self.last: Score | None = None  # of the last validation

    def run(self, flag: StopFlag, observer: Observer) -> TrainingResult:
        self._resume()
        if not self.processes.primary:
            self._train(flag, NullObserver(), None)
        else:
            observer.begin(self.recipe.epochs, self.trainer.batches.steps, self.trainer.epoch)
            log = self._tensorboard()
            try:
                self._train(flag, observer, log)
            finally:
                log.close()
        return self._finish()

    def _tensorboard(self) -> Records:
        """The TensorBoard record; an empty one, with a warning, where it cannot be written."""
        purge_step = self.trainer.epoch + 1 if self.run_dir.state.exists() else None
        try:
            return Records([TensorBoard(self.run_dir.tensorboard, purge_step)])
        except UnsmoothError as error:
            warnings.warn(f"no TensorBoard log is written: {error}", stacklevel=2)
            return Records()

    def _train(self, flag: StopFlag, observer: Observer, log: Records | None) -> None:
        """Train all epochs. Only the primary process has an observer and a log."""
        trainer, recipe = self.trainer, self.recipe
        saved = self.clock = time.monotonic()

        def on_step(step: int) -> bool:
            nonlocal saved
            observer.step(trainer.epoch, step)
            stop, due = self.processes.any(flag.stop, time.monotonic() - saved >= self.save_every)
            if (stop or due) and step < trainer.batches.steps:
                self._checkpoint()
                saved = time.monotonic()
            return not stop

        while trainer.epoch < recipe.epochs:
            try:
                complete = trainer.run_epoch(on_step)
            except NotFinite as error:
                raise self._diverged(error) from None
            if not complete:
                raise self._interrupted()
            if not trainer.weights_finite():
                raise self._diverged(None)
            with trainer.eval_model() as model:
                line = self._metrics(model)
                trainer.next_epoch()
                self.processes.on_primary(partial(self._record, line, model))
            observer.epoch(line)
            self._checkpoint()
            if log is not None:
                metrics = {name: value for name, value in line.metrics.items() if isinstance(value, int | float)}
                log.write(line.epoch, metrics | scalars(line.vitals))
            saved = time.monotonic()
            if self.processes.any(flag.stop)[0] and trainer.epoch < recipe.epochs:
                raise self._interrupted()

    def _interrupted(self) -> Interrupted:
        return Interrupted(f"stopped; the checkpoint is in {self.run_dir.path}. Repeat the command to resume")

    def _resume(self) -> None:
        """Load the checkpoint if there is one."""
        if self.run_dir.state.exists():
            state = read_state(self.run_dir.state)
            self.trainer.restore(state["trainer"])
            best = state["best"]
            self.best_epoch, self.best_value = best["epoch"], best[self.task.primary_metric]
            self.seconds, self.vitals_seconds = state["seconds"], state["vitals_seconds"]
            if self.monitor is not None and state.get("monitor"):
                self.monitor.load_state_dict(state["monitor"])
        elif self.processes.primary:
            self.run_dir.clear()
        if self.processes.primary:
            self.run_dir.truncate_metrics(self.trainer.epoch)

    def _checkpoint(self) -> None:
        """Write a checkpoint. Weights that are not finite raise, and the last good checkpoint is kept."""
        state = self.trainer.state()
        if not self.trainer.weights_finite():
            raise self._diverged(None)
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        best = {"epoch": self.best_epoch, self.task.primary_metric: self.best_value}
        self.processes.on_primary(lambda: write_state(self.run_dir.state, {
            "trainer": state, "best": best, "seconds": self.seconds, "vitals_seconds": self.vitals_seconds,
            "monitor": None if self.monitor is None else self.monitor.state_dict(),
        }))  # fmt: skip

    def _metrics(self, model: nn.Module) -> EpochMetrics:
        """Metrics of the epoch that ended."""
        trainer, recipe = self.trainer, self.recipe
        epoch = trainer.epoch + 1
        line = EpochMetrics(epoch, {"lr": trainer.lr, "train_loss": trainer.epoch_loss()})
        if self._validates(epoch):
            self.last = self._validate(model)
            line.metrics |= self.last.epoch_metrics()
        if self.monitor_images is not None and epoch % recipe.vitals_every == 0:
            assert self.monitor is not None
            known = len(self.monitor.alarms)
            measured = self.monitor.measure(self.monitor_images, epoch, model)
            line.vitals = {v.key: measured.vitals[v.key] for v in self.monitor.vitals if v.key in measured.vitals}
            line.alarms = self.monitor.alarms[known:]
            self.vitals_seconds += measured.seconds
        return line

    def _record(self, line: EpochMetrics, model: nn.Module) -> None:
        """Write the metrics of an epoch, and its model if it is the best so far."""
        self.run_dir.add_metrics(line)
        if self._validates(line.epoch) and self.last is not None and self.last.primary_metric > self.best_value:
            self.best_epoch, self.best_value = line.epoch, self.last.primary_metric
            self.task.save(model, self.run_dir.best)

    def _validates(self, epoch: int) -> bool:
        return epoch % self.recipe.validate_every == 0 or epoch == self.recipe.epochs

    def _finish(self) -> TrainingResult:
        with self.trainer.eval_model() as model:
            return self._write_result(model)

    def _write_result(self, model: nn.Module) -> TrainingResult:
        """Write the last model and the result."""
        score = self.last if self.last is not None else self._validate(model)  # none if killed after the last epoch
        skipped: dict[str, str] = {}
        for reasons in self.processes.gather(self.trainer.skipped):
            skipped |= reasons
        images = self.trainer.batches.steps * self.recipe.batch_size * self.recipe.epochs
        result = TrainingResult(
            metrics=score.metrics(), images=score.images, skipped={"train": skipped, "val": score.skipped},
            best=BestEpoch(self.best_epoch, {self.task.primary_metric: self.best_value}), epochs=self.recipe.epochs,
            seconds=round(self.seconds, 1), images_per_second=round(images / max(self.seconds, 1e-9), 2),
            vitals_share=round(self.vitals_seconds / max(self.seconds, 1e-9), 5),
        )  # fmt: skip

        def write_files() -> None:
            self.task.save(model, self.run_dir.last)
            self.task.save_predictions(score, self.run_dir.path)
            self.run_dir.write_result(result)

        self.processes.on_primary(write_files)
        shared: TrainingResult = self.processes.gather(result)[0]
        return shared

    def _validate(self, model: nn.Module) -> Score:
        """Score of the evaluated model on all validation items."""
        device = self.processes.device
        score = self.task.score(model, self.validation, device, self.recipe.amp)
        return self.task.merge_scores(self.processes.gather(score))

    def _diverged(self, error: NotFinite | None) -> Diverged:
        what = str(error) if error is not None else f"a weight is not finite in epoch {self.trainer.epoch + 1}"
        images = error.images if error is not None else torch.zeros(1, *self.task.image_size)
        location = self.task.locate_nonfinite(images, self.recipe.amp, self.processes.device)
        state = self.run_dir.state
        saved = f"the last good checkpoint is {state}" if state.exists() else "there is no checkpoint yet"
        return Diverged(f"{what}: {location}; {saved}. Use a lower lr, clip_grad=1, or amp=none")
