"""Train a model on a budget that is written down, so that nothing is lost and everything can be repeated."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.diagnosis.monitor import follow
from unsmooth.errors import Interrupted, UnsmoothError
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.surgery.plan import anatomy_of
from unsmooth.tasks.base import Score, Task
from unsmooth.tasks.registry import CLASSIFICATION, open_task
from unsmooth.training.checkpoint import read_state, write_state
from unsmooth.training.distributed import Processes, join_processes
from unsmooth.training.observer import NullObserver, Observer
from unsmooth.training.run_dir import RESULT, RunFolder
from unsmooth.training.run_record import check_budget, check_shares, settings_of
from unsmooth.training.signals import StopFlag, graceful_shutdown
from unsmooth.training.tensorboard import Board
from unsmooth.training.trainer import NotFinite, Trainer

LONGEST = 120  # letters of a folder's name
SAVE_EVERY = 600.0  # seconds between two checkpoints within an epoch


class Diverged(UnsmoothError):
    """The loss or the weights are not finite. The last good checkpoint is kept."""


def train(
    spec: str,
    data: str | Path,
    *,
    task: str = CLASSIFICATION,
    options: Mapping[str, str] | None = None,
    recipe: str | Path | Recipe = "small",
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    val_data: str | Path | None = None,
    data_dir: str | Path | None = None,
    workers: int = 0,
    device: str = "",
    strict_data: bool = False,
    save_every: float = SAVE_EVERY,
    observer: Observer | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Train `spec` on `data` by a recipe, in the folder `out`; gives what result.json holds.

    The same call goes on where a run was cut, and a run that is done gives its result at once. Under torchrun every
    process calls it alike. `checkpoint` or `pretrained` start from weights instead of from scratch, with a new head
    where classes differ. `task` is what is learned, with `options` of its own: see
    `unsmooth.tasks.registry`, and `unsmooth.training.run_dir` for what is in the folder.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    folder = RunFolder(Path(out) if out is not None else default_folder(spec, data, seed, task))
    opened = open_task(
        task, spec, data, chosen, seed, checkpoint=checkpoint, pretrained=pretrained, val_data=val_data,
        data_dir=data_dir, strict=strict_data, options=options,
    )  # fmt: skip
    settings = settings_of(spec, opened, val_data, chosen, seed, checkpoint, pretrained, command)
    folder.check(settings)
    check_budget(opened, chosen)
    if workers < 0 or not 0 <= seed < 2**62 or not save_every >= 0:
        raise UnsmoothError(
            f"workers, seed and save_every are 0 or more (seed below 2^62), not {workers}, {seed} and {save_every}"
        )
    processes = join_processes(device)
    try:
        check_shares(opened, chosen, processes)
        seen = processes.gather((folder.done, folder.state.exists()))
        if len(set(seen)) > 1:
            raise UnsmoothError(f"the processes see different files in {folder.path}: they must share the folder")
        if (done := folder.result()) is not None:
            return done
        settings |= {"processes": processes.world, "device": processes.device.type}
        run = _Run(opened, chosen, seed, processes, workers, folder)
        with graceful_shutdown() as flag:
            processes.on_primary(lambda: folder.begin(settings))
            try:
                result = run.run(flag, save_every, observer or NullObserver())
                if processes.any(flag.stop)[0]:
                    raise Interrupted(f"asked to stop; the run in {folder.path} was done by then")
                return result
            finally:
                folder.end()
    finally:
        processes.close()


def default_folder(spec: str, data: str | Path, seed: int, task: str = CLASSIFICATION) -> Path:
    learned = "" if task == CLASSIFICATION else f"{task}-"
    name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", f"{learned}{spec}-{Path(data).stem}-seed{seed}").strip("_")
    if len(name) > LONGEST:  # cut, and still told from others
        name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


class _Run:
    """The parts of a run, put together and checked before anything is written."""

    def __init__(
        self, task: Task, recipe: Recipe, seed: int, processes: Processes, workers: int, folder: RunFolder
    ) -> None:
        self.task, self.recipe, self.folder, self.processes = task, recipe, folder, processes
        task.build()
        pin = processes.device.type == "cuda"
        batches = TrainingBatches(task.train, recipe.batch_size, seed, recipe.repeated_augmentation, workers,
                                  processes.rank, processes.world, pin)  # fmt: skip
        per_process = max(1, recipe.batch_size // processes.world)
        self.validation = evaluation_batches(task.val, per_process, workers, processes.rank, processes.world, pin)
        looks = recipe.vitals_every and processes.primary
        self.monitor_images = task.monitor_images(recipe.vitals_images) if looks else None
        self.anatomy = anatomy_of(task.model) if self.monitor_images is not None else None
        self.trainer = Trainer(task, recipe, batches, seed, processes)
        self.best: dict[str, Any] = {"epoch": 0, task.primary_metric: float("-inf")}
        self.seconds, self.vitals_seconds = 0.0, 0.0

    def run(self, flag: StopFlag, save_every: float, observer: Observer) -> dict[str, Any]:
        self._resume()
        if not self.processes.primary:
            self._epochs(flag, save_every, NullObserver(), None)
        else:
            observer.begin(self.recipe.epochs, self.trainer.batches.steps, self.trainer.epoch)
            with Board(self.folder.path / "tensorboard", self.trainer.epoch, self.folder.state.exists()) as board:
                self._epochs(flag, save_every, observer, board)
        return self._finish()

    def _epochs(self, flag: StopFlag, save_every: float, observer: Observer, board: Board | None) -> None:
        """Train to the end, or until somebody asks to stop. `observer` and `board` are the first process's."""
        trainer, recipe = self.trainer, self.recipe
        saved = self.clock = time.monotonic()

        def between(step: int) -> bool:
            nonlocal saved
            observer.step(trainer.epoch, step)
            stop, due = self.processes.any(flag.stop, time.monotonic() - saved >= save_every)
            if (stop or due) and step < trainer.batches.steps:
                self._checkpoint()
                saved = time.monotonic()
            return not stop

        while trainer.epoch < recipe.epochs:
            try:
                whole = trainer.run_epoch(between)
            except NotFinite as error:
                raise self._explained(error) from None
            if not whole:
                raise Interrupted(self._stopped())
            if not trainer.weights_finite():
                raise self._explained(None)
            line = self._line()
            trainer.next_epoch()
            self.processes.on_primary(lambda line=line: self._write_down(line))  # type: ignore[misc]
            observer.epoch(line)
            self._checkpoint()
            if board is not None:
                board.add(line)
            saved = time.monotonic()
            if self.processes.any(flag.stop)[0] and trainer.epoch < recipe.epochs:
                raise Interrupted(self._stopped())

    def _stopped(self) -> str:
        return f"stopped and saved in {self.folder.path}: the same command goes on from there"

    def _resume(self) -> None:
        """Go on from the checkpoint if there is one."""
        if self.folder.state.exists():
            state = read_state(self.folder.state)
            self.trainer.restore(state["trainer"])
            self.best = state["best"]
            self.seconds, self.vitals_seconds = state["seconds"], state["vitals_seconds"]
        elif self.processes.primary:
            self.folder.forget()
        if self.processes.primary:
            self.folder.keep_metrics(self.trainer.epoch)

    def _checkpoint(self) -> None:
        """Write a checkpoint, unless its weights are broken: then the last good one stays."""
        state = self.trainer.state()
        if not self.trainer.weights_finite():
            raise self._explained(None)
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        self.processes.on_primary(lambda: write_state(self.folder.state, {
            "trainer": state, "best": self.best, "seconds": self.seconds, "vitals_seconds": self.vitals_seconds,
        }))  # fmt: skip

    def _line(self) -> dict[str, Any]:
        """What there is to say about the epoch that ended."""
        trainer, recipe = self.trainer, self.recipe
        epoch = trainer.epoch + 1
        line: dict[str, Any] = {"epoch": epoch, "lr": trainer.lr, "train_loss": trainer.epoch_loss()}
        if self._validated(epoch):
            self.last = self._score()
            line |= self.last.line()
        if self.monitor_images is not None and epoch % recipe.vitals_every == 0:
            assert self.anatomy is not None
            begun = time.monotonic()
            line["vitals"] = follow(trainer.eval_model, self.anatomy, self.monitor_images, recipe.vitals)
            self.vitals_seconds += time.monotonic() - begun
        return line

    def _write_down(self, line: Mapping[str, Any]) -> None:
        """An epoch's metrics, and its model if it is the best so far."""
        self.folder.add_metrics(line)
        primary_metric = self.task.primary_metric
        if self._validated(line["epoch"]) and self.last.primary_metric > self.best[primary_metric]:
            self.best = {"epoch": line["epoch"], primary_metric: self.last.primary_metric}
            self.task.save(self.trainer.eval_model, self.folder.path / "best")

    def _validated(self, epoch: int) -> bool:
        return epoch % self.recipe.validate_every == 0 or epoch == self.recipe.epochs

    def _finish(self) -> dict[str, Any]:
        """Write the last model and the result, which marks the run as done."""
        if not hasattr(self, "last"):  # cut between the last checkpoint and the end
            self.last = self._score()
        found, skipped = self.last.result(), dict[str, str]()
        for names in self.processes.gather(self.trainer.skipped):
            skipped |= names
        images = self.trainer.batches.steps * self.recipe.batch_size * self.recipe.epochs
        result = {
            **found, "best": self.best, "epochs": self.recipe.epochs, "seconds": round(self.seconds, 1),
            "images_per_second": round(images / max(self.seconds, 1e-9), 2),
            "vitals_share": round(self.vitals_seconds / max(self.seconds, 1e-9), 5),
            "skipped": {"train": skipped, "val": found["skipped"]},
        }  # fmt: skip

        def write_down() -> None:
            self.task.save(self.trainer.eval_model, self.folder.path / "last")
            self.task.keep(self.last, self.folder.path)
            self.folder.write_json(RESULT, result)

        self.processes.on_primary(write_down)
        given: dict[str, Any] = self.processes.gather(result)[0]
        return given

    def _score(self) -> Score:
        """How the model that counts does on all validation items."""
        device = self.processes.device
        mine = self.task.score(self.trainer.eval_model, self.validation, device, self.recipe.amp)
        return self.task.join(self.processes.gather(mine))

    def _explained(self, error: NotFinite | None) -> Diverged:
        what = str(error) if error is not None else f"a weight is not finite in epoch {self.trainer.epoch + 1}"
        images = error.images if error is not None else torch.zeros(1, *self.task.size)
        where = self.task.where(images, self.recipe.amp, self.processes.device)
        kept = f"the last good state is {self.folder.state}" if self.folder.state.exists() else "no state was saved yet"
        return Diverged(f"{what}: {where}; {kept}. Try a lower learning rate, clip_grad = 1, or amp = none")
