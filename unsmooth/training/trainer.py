"""Training loop: steps and epochs, with a state that checkpoints save and restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, distribute_bn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from unsmooth.data.batches import TrainingBatches
from unsmooth.data.items import Batch
from unsmooth.data.sampling import STEP, derive_seed, seed_everything
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast
from unsmooth.recipes.recipe import Recipe
from unsmooth.surgery.auxiliary_loss import auxiliary_loss
from unsmooth.tasks.base import Task
from unsmooth.tasks.model_factory import without_decay
from unsmooth.training import sharding
from unsmooth.training.checkpoint import finite
from unsmooth.utils.precision import local, whole
from unsmooth.utils.processes import Processes


class NotFinite(UnsmoothError):
    """The loss or the gradient is NaN or infinite.

    Attributes:
        images: Images of the batch if the loss is not finite; None if only the gradient is not.
    """

    def __init__(self, what: str, epoch: int, step: int, images: Tensor | None = None) -> None:
        super().__init__(f"{what} is not finite at step {step + 1} of epoch {epoch + 1}")
        self.images = images


class Trainer:
    """Model, optimizer, schedule, weight average and position in the data, in one process.

    Args:
        task: Task that was built.
        recipe: Hyper-parameters.
        batches: Training batches of this process.
        seed: Seed of the run.
        processes: This process among all processes.
        shard: Whether several processes split the weights instead of each having all of them.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        batches: TrainingBatches,
        seed: int,
        processes: Processes,
        shard: bool = False,
    ) -> None:
        device = processes.device
        self.task, self.recipe, self.batches, self.seed, self.processes = task, recipe, batches, seed, processes
        self.model = model = task.model.to(device)
        task.to(device)
        self.ema = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        self.plain: sharding.PlainCopy | None = None
        if shard and processes.world > 1:
            sharding.check_shardable(model, recipe)
            blocks = sharding.block_names(model)
            self.plain = sharding.PlainCopy(model)
            for whole_model in (model, self.ema.module) if self.ema is not None else (model,):
                sharding.shard(whole_model, blocks, processes)
        self.optimizer = make_optimizer(model, recipe)
        self.schedule = create_scheduler_v2(
            self.optimizer, recipe.schedule, num_epochs=recipe.epochs, warmup_epochs=recipe.warmup_epochs,
            warmup_lr=recipe.warmup_lr, min_lr=recipe.min_lr, step_on_epochs=False, updates_per_epoch=batches.steps,
            decay_rate=1.0,  # timm's name for the power of poly; its default of 0.1 hardly decays
        )[0]  # fmt: skip
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.amp == "float16")
        self.runner: Any = model
        self.ddp: DistributedDataParallel | None = None
        if processes.world > 1 and self.plain is None:
            ids = None if device.type == "cpu" else [device.index]
            unused = task.has_unused_parameters()
            self.ddp = self.runner = DistributedDataParallel(model, device_ids=ids, find_unused_parameters=unused)
        if recipe.compile:
            self.runner = torch.compile(self.runner)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.epoch, self.step = 0, 0  # of the next step
        self.sums = self._zeros()  # loss and images of this process in this epoch
        self.skipped: dict[str, str] = {}

    @contextmanager
    def eval_model(self) -> Iterator[nn.Module]:
        """Model that is evaluated and saved: the weight average if there is one. Every process must enter it."""
        model = self.ema.module if self.ema is not None else self.model
        if self.plain is None:
            yield model
            return
        try:
            yield self.plain.fill(model)
        finally:
            self.plain.empty()

    @property
    def lr(self) -> float:
        return float(max(group["lr"] for group in self.optimizer.param_groups))

    def run_epoch(self, on_step: Callable[[int], bool]) -> bool:
        """Train until the end of the epoch.

        Args:
            on_step: Called after each step with the number of steps done; training stops if it returns False.

        Returns:
            Whether the epoch is complete.
        """
        self.model.train()
        for batch in self.batches.from_step(self.epoch, self.step):
            self._step(batch)
            self.step += 1
            if not on_step(self.step):
                return self.step == self.batches.steps
        for model in (self.model, self.ema.module) if self.ema is not None else (self.model,):
            if self.processes.world > 1:  # each process has BatchNorm statistics of its own images
                distribute_bn(model, self.processes.world, reduce=True)
        return True

    def epoch_loss(self) -> float:
        """Mean training loss of the epoch so far, over all processes."""
        loss, images = self.processes.total(self.sums).tolist()
        return loss / images if images else float("nan")

    def next_epoch(self) -> None:
        self.epoch, self.step, self.sums = self.epoch + 1, 0, self._zeros()

    def _step(self, batch: Batch) -> None:
        recipe, device = self.recipe, self.processes.device
        self.skipped.update(batch.skipped)
        batch = self.task.prepare(batch.to(device), self.epoch, self.step)
        seed_everything(derive_seed(STEP, self.seed, self.epoch, self.step, self.processes.rank), device)
        self.schedule.step_update(self.epoch * self.batches.steps + self.step)
        microbatches = batch.microbatches(min(recipe.accumulate, len(batch)))
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        for microbatch in microbatches:
            last = microbatch is microbatches[-1]
            sharding.sync_gradients(self.model, last)
            with self.ddp.no_sync() if self.ddp is not None and not last else nullcontext():
                loss = self._loss(microbatch)
                self.scaler.scale(loss * (len(microbatch) / len(batch))).backward()
            loss_sum += loss.detach() * len(microbatch)
        if self.processes.any(not loss_sum.isfinite())[0]:
            raise NotFinite("the loss", self.epoch, self.step, batch.images)
        self._check_and_clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.model, step=self.epoch * self.batches.steps + self.step + 1)
        self.sums += torch.stack([loss_sum, loss_sum.new_tensor(len(batch))])

    def _check_and_clip(self) -> None:
        """Clip the gradient; raise if it is not finite, unless the fp16 scaler skips the step."""
        self.scaler.unscale_(self.optimizer)
        norm = whole(get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        if not self.scaler.is_enabled() and not norm.isfinite():
            raise NotFinite("the gradient", self.epoch, self.step)
        if self.recipe.clip_grad:
            clip_grads_with_norm_(self.parameters, self.recipe.clip_grad, norm)

    def _loss(self, batch: Batch) -> Tensor:
        with autocast(self.recipe.amp, self.processes.device):
            loss = self.task.loss(self.runner, batch)
            auxiliary = auxiliary_loss(self.model)
        return loss if auxiliary is None else loss + auxiliary

    def state(self) -> dict[str, Any]:
        """State to resume from, in every process. It holds no random state: see `unsmooth.data.sampling`."""
        state = {
            "epoch": self.epoch, "step": self.step, "sums": self.processes.total(self.sums).tolist(),
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "scaler": self.scaler.state_dict(), "skipped": dict(self.skipped),
        }  # fmt: skip
        return state if self.plain is None else sharding.gathered(state, self.processes.primary)

    def weights_finite(self) -> bool:
        """Whether all weights are finite, in every process."""
        own = {name: local(value) for name, value in self.model.state_dict().items()}
        return not self.processes.any(not finite(own))[0]

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.skipped = state["epoch"], state["step"], dict(state["skipped"])
        self.model.load_state_dict(sharding.scattered(state["model"], self.model))
        self.optimizer.load_state_dict(sharding.scattered_optimizer(state["optimizer"], self.optimizer))
        if self.ema is not None:
            self.ema.module.load_state_dict(sharding.scattered(state["ema"], self.ema.module))
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.processes.primary:  # the checkpoint has the sum over all processes
            self.sums = torch.tensor(state["sums"], dtype=torch.float64, device=self.processes.device)

    def _zeros(self) -> Tensor:
        return torch.zeros(2, dtype=torch.float64, device=self.processes.device)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Build a timm optimizer of the trainable parameters; remedy parameters have no weight decay."""
    exempt = without_decay(model)
    if recipe.layer_decay:
        groups = param_groups_layer_decay(model, recipe.weight_decay, exempt, layer_decay=recipe.layer_decay)
    else:
        groups = param_groups_weight_decay(model, recipe.weight_decay, no_weight_decay_list=exempt)
    try:
        betas = {"betas": (0.9, recipe.beta2)} if recipe.beta2 else {}
        optimizer: torch.optim.Optimizer = create_optimizer_v2(groups, recipe.optimizer, lr=recipe.scaled_lr, **betas)
    except (AssertionError, ImportError, TypeError, ValueError) as error:
        raise UnsmoothError(f"timm cannot build the optimizer {recipe.optimizer!r}: {error}") from error
    if getattr(optimizer, "is_second_order", False):
        raise UnsmoothError(
            f"the optimizer {recipe.optimizer!r} needs second derivatives, which training does not compute. "
            "Use another one, such as adamw."
        )
    if betas and any(group.get("betas") != betas["betas"] for group in optimizer.param_groups):
        raise UnsmoothError(
            f"the optimizer {recipe.optimizer!r} has no second beta (got beta2={recipe.beta2:g}). Use beta2=0."
        )
    return optimizer
