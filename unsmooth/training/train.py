"""Train a model on a budget that is written down, so that nothing is lost and everything can be repeated."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from unsmooth.anatomy import Anatomy
from unsmooth.data import first_usable
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.outputs import autocast, forward
from unsmooth.evaluation.scoring import Scores, join, score
from unsmooth.files import write
from unsmooth.planning import anatomy_of
from unsmooth.splits import Splits, open_splits, some_of
from unsmooth.storage import save
from unsmooth.trace import undisturbed
from unsmooth.training.assembly import build, build_teacher, check_patches
from unsmooth.training.batches import Pictures, TrainingBatches, a_few, evaluation_batches
from unsmooth.training.board import Board
from unsmooth.training.checkpoint import read_state, write_state
from unsmooth.training.folder import RESULT, SCORES, RunFolder
from unsmooth.training.losses import Distillation
from unsmooth.training.processes import Processes, join_processes
from unsmooth.training.recipe import Recipe, load_recipe
from unsmooth.training.settings import check_budget, check_shares, settings_of
from unsmooth.training.signals import Wish, stop_politely
from unsmooth.training.trainer import NotFinite, Trainer
from unsmooth.training.watch import broken_gradient, first_broken, follow
from unsmooth.transforms import preprocessing

SAVE_EVERY = 600.0  # seconds between two checkpoints within an epoch


class Observer(Protocol):
    """Who is told how a run goes; every method is called by the first process only."""

    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...
    def step(self, epoch: int, step: int) -> None: ...
    def epoch(self, line: Mapping[str, Any]) -> None: ...


class Silent:
    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...
    def step(self, epoch: int, step: int) -> None: ...
    def epoch(self, line: Mapping[str, Any]) -> None: ...


class Interrupted(UnsmoothError):
    """The run was asked to stop, and saved."""


class Diverged(UnsmoothError):
    """The loss or the weights are not finite. The last good checkpoint is kept."""


def train(
    spec: str,
    data: str | Path,
    *,
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
    where classes differ. See `unsmooth.training.folder` for what is in the folder.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    splits = some_of(open_splits(data, val_data, data_dir), chosen.train_images, chosen.val_images)
    folder = RunFolder(Path(out) if out is not None else default_folder(spec, data, seed))
    settings = settings_of(spec, splits, val_data, chosen, seed, checkpoint, pretrained, command)
    folder.check(settings)
    check_budget(splits, chosen)
    if workers < 0 or not 0 <= seed < 2**62 or not save_every >= 0:
        raise UnsmoothError(
            f"workers, seed and save_every are 0 or more (seed below 2^62), not {workers}, {seed} and {save_every}"
        )
    processes = join_processes(device)
    try:
        check_shares(chosen, processes, splits)
        seen = processes.gather((folder.done, folder.state.exists()))
        if len(set(seen)) > 1:
            raise UnsmoothError(f"the processes see different files in {folder.path}: they must share the folder")
        if (done := folder.result()) is not None:
            return done
        settings = settings_of(spec, splits, val_data, chosen, seed, checkpoint, pretrained, command, processes)
        run = _Run(spec, splits, chosen, seed, checkpoint, pretrained, processes, workers, strict_data, folder)
        with stop_politely() as wish:
            processes.on_primary(lambda: folder.begin(settings))
            try:
                result = run.go(wish, save_every, observer or Silent())
                if processes.any(wish.stop)[0]:
                    raise Interrupted(f"asked to stop; the run in {folder.path} was done by then")
                return result
            finally:
                folder.end()
    finally:
        processes.close()


def default_folder(spec: str, data: str | Path, seed: int) -> Path:
    name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", f"{spec}-{Path(data).stem}-seed{seed}").strip("_")
    return Path("runs") / name[:120]


class _Run:
    """The parts of a run, put together and checked before anything is written."""

    def __init__(
        self,
        spec: str,
        splits: Splits,
        recipe: Recipe,
        seed: int,
        checkpoint: str | Path | None,
        pretrained: bool,
        processes: Processes,
        workers: int,
        strict: bool,
        folder: RunFolder,
    ) -> None:
        self.recipe, self.folder, self.processes, self.seed = recipe, folder, processes, seed
        model = build(spec, splits.classes, recipe, seed, checkpoint, pretrained)
        wanted = preprocessing(model, recipe.image_size)
        check_patches(model, first_usable(splits.train).size, spec, splits.name)
        first_usable(splits.val)
        self.anatomy: Anatomy | None = anatomy_of(model) if recipe.vitals_every else None
        classes = outputs_of(model, wanted.size, spec)
        teacher = build_teacher(recipe, classes)
        distillation = Distillation(teacher, wanted, recipe, classes) if teacher is not None else None
        pin = processes.device.type == "cuda"
        pictures = Pictures(splits.train, wanted.training(**_augmentation(recipe)), wanted.size[0], strict)
        batches = TrainingBatches(pictures, recipe.batch_size, seed, recipe.repeated_augmentation, workers,
                                  processes.rank, processes.world, pin)  # fmt: skip
        held = Pictures(splits.val, wanted.evaluation(), wanted.size[0], strict)
        per_process = max(1, recipe.batch_size // processes.world)
        self.validation = evaluation_batches(held, per_process, workers, processes.rank, processes.world, pin)
        self.looked_at = a_few(held, recipe.vitals_images).images if recipe.vitals_every and processes.primary else None
        self.trainer = Trainer(model, recipe, batches, classes, seed, processes, wanted.size, distillation)
        self.wanted = wanted
        self.best: dict[str, Any] = {"epoch": 0, "top1": -1.0}
        self.seconds, self.vitals_seconds = 0.0, 0.0

    def go(self, wish: Wish, save_every: float, observer: Observer) -> dict[str, Any]:
        self._take_up()
        if not self.processes.primary:
            self._epochs(wish, save_every, Silent(), None)
        else:
            observer.begin(self.recipe.epochs, self.trainer.batches.steps, self.trainer.epoch)
            with Board(self.folder.path / "tensorboard", self.trainer.epoch, self.folder.state.exists()) as board:
                self._epochs(wish, save_every, observer, board)
        return self._finish()

    def _epochs(self, wish: Wish, save_every: float, observer: Observer, board: Board | None) -> None:
        """Train to the end, or until somebody asks to stop. `observer` and `board` are the first process's."""
        trainer, recipe = self.trainer, self.recipe
        saved = self.clock = time.monotonic()

        def between(step: int) -> bool:
            nonlocal saved
            observer.step(trainer.epoch, step)
            stop, due = self.processes.any(wish.stop, time.monotonic() - saved >= save_every)
            if (stop or due) and step < trainer.batches.steps:
                self._put_down()
                saved = time.monotonic()
            return not stop

        while trainer.epoch < recipe.epochs:
            try:
                whole = trainer.run_epoch(between)
            except NotFinite as error:
                raise self._explained(error) from None
            if not whole:
                raise Interrupted(self._stopped())
            if not trainer.healthy():
                raise self._explained(None)
            line = self._line()
            trainer.next_epoch()
            self.processes.on_primary(lambda line=line: self._write_down(line))  # type: ignore[misc]
            observer.epoch(line)
            self._put_down()
            if board is not None:
                board.add(line)
            saved = time.monotonic()
            if self.processes.any(wish.stop)[0] and trainer.epoch < recipe.epochs:
                raise Interrupted(self._stopped())

    def _stopped(self) -> str:
        return f"stopped and saved in {self.folder.path}: the same command goes on from there"

    def _take_up(self) -> None:
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

    def _put_down(self) -> None:
        """Write a checkpoint, unless its weights are broken: then the last good one stays."""
        state = self.trainer.state()
        if not self.trainer.healthy():
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
        if epoch % recipe.validate_every == 0 or epoch == recipe.epochs:
            self.last = scores = self._score()
            line |= {"val_loss": scores.mean_loss, "val_top1": scores.top1, "val_top5": scores.top5}
        if self.looked_at is not None and epoch % recipe.vitals_every == 0:
            assert self.anatomy is not None
            begun = time.monotonic()
            line["vitals"] = follow(trainer.judged, self.anatomy, self.looked_at, recipe.vitals)
            self.vitals_seconds += time.monotonic() - begun
        return line

    def _write_down(self, line: Mapping[str, Any]) -> None:
        """An epoch's metrics, and its model if it is the best so far."""
        self.folder.add_metrics(line)
        if line.get("val_top1", -1.0) > self.best["top1"]:
            self.best = {"epoch": line["epoch"], "top1": line["val_top1"]}
            save(self.trainer.judged, self.folder.path / "best")

    def _finish(self) -> dict[str, Any]:
        """Write the last model and the result, which marks the run as done."""
        if not hasattr(self, "last"):  # cut between the last checkpoint and the end
            self.last = self._score()
        scores, skipped = self.last, dict[str, str]()
        for names in self.processes.gather(self.trainer.skipped):
            skipped |= names
        images = self.trainer.batches.steps * self.recipe.batch_size * self.recipe.epochs
        result = {
            "top1": scores.top1, "top5": scores.top5, "loss": scores.mean_loss, "images": scores.images,
            "best": self.best, "epochs": self.recipe.epochs, "seconds": round(self.seconds, 1),
            "images_per_second": round(images / max(self.seconds, 1e-9), 2),
            "vitals_share": round(self.vitals_seconds / max(self.seconds, 1e-9), 5),
            "skipped": {"train": skipped, "val": scores.skipped},
        }  # fmt: skip

        def write_down() -> None:
            save(self.trainer.judged, self.folder.path / "last")
            _write_scores(self.folder.path / SCORES, scores)
            self.folder.write_json(RESULT, result)

        self.processes.on_primary(write_down)
        found: dict[str, Any] = self.processes.gather(result)[0]
        return found

    def _score(self) -> Scores:
        """How the model that counts does on all validation images."""
        return join(self.processes.gather(score(self.trainer.judged, self.validation, amp=self.recipe.amp)))

    def _explained(self, error: NotFinite | None) -> Diverged:
        what = str(error) if error is not None else f"a weight is not finite in epoch {self.trainer.epoch + 1}"
        kept = f"the last good state is {self.folder.state}" if self.folder.state.exists() else "no state was saved yet"
        return Diverged(
            f"{what}: {self._where(error)}; {kept}. Try a lower learning rate, clip_grad = 1, or amp = none"
        )

    def _where(self, error: NotFinite | None) -> str:
        model: nn.Module = self.trainer.model
        try:
            anatomy = self.anatomy or anatomy_of(model)
            if error is not None and error.images is None:
                return broken_gradient(model, anatomy)
            images = torch.zeros(1, *self.wanted.size) if error is None or error.images is None else error.images
            with autocast(self.recipe.amp, self.processes.device):
                return first_broken(model, anatomy, images.to(self.processes.device), self.recipe.accumulate)
        except UnsmoothError as reason:  # a host without blocks that we know
            return f"which block went first is unknown ({reason})"


def outputs_of(model: nn.Module, size: tuple[int, int, int], spec: str) -> int:
    """How many classes a model tells apart, found on one image of the size that it will get."""
    try:
        with undisturbed(model):
            return forward(model, torch.zeros(1, *size)).shape[1]
    except UnsmoothError:
        raise
    except Exception as error:  # whatever a host makes of a size that it was not built for
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"{spec} cannot take images of {size[2]} × {size[1]} pixels: {first}") from error


def _augmentation(recipe: Recipe) -> dict[str, Any]:
    return {
        "scale": recipe.crop_scale, "ratio": recipe.crop_ratio, "hflip": recipe.hflip,
        "color_jitter": recipe.color_jitter or None, "auto_augment": recipe.auto_augment or None,
        "re_prob": recipe.erasing, "re_mode": recipe.erasing_mode,
        "no_aug": recipe.crop_scale == (1.0, 1.0)
        and not (recipe.hflip or recipe.auto_augment or recipe.color_jitter or recipe.erasing),
    }  # fmt: skip


def _write_scores(path: Path, scores: Scores) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, places=scores.places, correct=scores.correct)
    write(path, file.getvalue())
