"""What the seam costs: microseconds added per treated attention, per hook and per folded site, on a small host.

Twelve blocks of 32 channels, one image of 17 tokens, one thread: so small that what is measured is the time of Python
and of PyTorch's dispatcher, which an eager GPU waits for too. The plain host and the arms run in turns in one process.
A number is the median over rounds of the difference of processor times of the thread, divided by the number of treated
sites. The arithmetic of a remedy is part of it, at about 5 µs per function of so few numbers; the rows of patches that
compute nothing are the seam alone. The row of a copy of the plain host is the error of the measurement.
`--compile` compares the models as compiled by inductor, and some remedies on DeiT-S too.

    python benchmarks/seam.py [--rounds 60] [--repeats 10] [--compile] [--only NAME …] [--write]
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch
from records import Record, machine
from torch import nn

import unsmooth
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import REGISTRY, AttentionPatch, NoOptions, Placement, Remedy, TokenHook
from unsmooth.seam.residual_sums import ResidualScale

HOST = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=32, num_heads=2, depth=12)"
ATTENTION, HOOK, FOLDED, COMPILED = 45.0, 15.0, 5.0, 0.99  # goals: microseconds, and the share of the compiled host
LARGE_HOST, LARGE_BATCH, LARGE_ROUNDS = "deit_small_patch16_224", 8, 15
LARGE_ARMS = ["attn_scale", "exclusive_attention", "feat_scale", "context_broadcast"]
SHORTCUT_SHARE = 0.6  # of `augmented_shortcut`, which has more arithmetic than Python time: a share says more


@dataclass
class Arm:
    """A treated model: its sites are what one remedy adds to one block, by the mechanism that is named."""

    spec: str
    mechanism: str
    goal: float
    folded: bool = False

    @property
    def name(self) -> str:
        return f"{self.spec}, folded" if self.folded else self.spec or "(plain host)"

    @property
    def does_nothing(self) -> bool:
        """Whether the arm measures the seam or the error of the measurement, not a remedy."""
        return not self.spec or self.spec.startswith("(")


ARMS = [
    Arm("", "a copy", 0.0),
    Arm("(patch that computes nothing)", "attention", ATTENTION),
    Arm("(hook that computes nothing)", "hook", HOOK),
    Arm("(factors of one)", "residual sum", HOOK),
    Arm("attn_scale", "attention", ATTENTION),
    Arm("exclusive_attention", "attention", ATTENTION),
    Arm("feat_scale", "hook", HOOK),
    Arm("context_broadcast", "hook", HOOK),
    Arm("context_broadcast(kind=scaled)", "hook", HOOK),
    Arm("layer_scale", "hook", HOOK),
    Arm("no_skip", "residual sum", HOOK),
    Arm("attn_scale", "attention", FOLDED, folded=True),
    Arm("feat_scale", "hook", FOLDED, folded=True),
    Arm("context_broadcast", "hook", FOLDED, folded=True),
    Arm("layer_scale", "nothing left", FOLDED, folded=True),
    Arm("sigma_reparam", "nothing left", FOLDED, folded=True),
]
SHORTCUT = Arm("augmented_shortcut", "hook", SHORTCUT_SHARE)


class SameTokens(TokenHook):
    """A hook that computes nothing."""

    def treat(self, x: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
        return x


class Nothing(Remedy[NoOptions]):
    """Patches that compute nothing, by the mechanism."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        if self.mechanism == "attention":
            return [Placement(block.attention().core, AttentionPatch())]
        if self.mechanism == "hook":
            return [Placement(block.branch("attn").hook_point("end"), SameTokens())]
        return [Placement(block.name, ResidualScale("attn"), "attn")]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        return 0


def treated(host: nn.Module, arm: Arm) -> tuple[nn.Module, int]:
    """The model of an arm, and the number of its sites."""
    model = copy.deepcopy(host)
    if not arm.spec:
        return model, len(model.get_submodule("blocks"))  # type: ignore[arg-type]
    if arm.spec.startswith("("):
        Nothing.key = Nothing.title = "nothing"
        with mock.patch.dict(REGISTRY, nothing=Nothing(arm.mechanism)):
            return model, len(unsmooth.apply(model, "nothing").sites)
    plan = unsmooth.apply(model, arm.spec)
    for _, part in unsmooth.parts(model):
        for name, parameter in part.named_parameters():
            if name.split(".")[-1] in ("omega", "s", "t", "lam"):
                nn.init.normal_(parameter, std=0.1)
    if arm.folded:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a remedy that stays as it is would not be measured folded
            model = unsmooth.fold(model.eval())
    return model.eval(), len(plan.sites)


def thread_seconds(model: Callable[..., object], image: torch.Tensor, repeats: int) -> float:
    model(image)  # the caches still hold the other model
    start = time.thread_time()
    for _ in range(repeats):
        model(image)
    return (time.thread_time() - start) / repeats


def in_turns(
    plain: Callable[..., object], model: Callable[..., object], image: torch.Tensor, rounds: int, repeats: int
) -> list[tuple[float, float]]:
    """Seconds of the plain host and of the model, of each round; which is first alternates."""
    for each in (plain, model):
        thread_seconds(each, image, 3)
    gc.collect()
    gc.freeze()  # what is not garbage need not be looked at again
    times = []
    for index in range(rounds):
        if index % 2:
            second, first = thread_seconds(model, image, repeats), thread_seconds(plain, image, repeats)
        else:
            first, second = thread_seconds(plain, image, repeats), thread_seconds(model, image, repeats)
        times.append((first, second))
    gc.unfreeze()
    return times


def added(
    plain: Callable[..., object], model: Callable[..., object], image: torch.Tensor, rounds: int, repeats: int
) -> tuple[float, float]:
    """Medians over rounds: seconds of the plain host, and seconds that the model adds."""
    times = in_turns(plain, model, image, rounds, repeats)
    return statistics.median(host for host, _ in times), statistics.median(arm - host for host, arm in times)


def share(
    plain: Callable[..., object], model: Callable[..., object], image: torch.Tensor, rounds: int, repeats: int
) -> float:
    """The speed of a model as a share of the plain host's: the median over rounds."""
    return statistics.median(first / second for first, second in in_turns(plain, model, image, rounds, repeats))


def compiled_share(host: nn.Module, model: nn.Module, image: torch.Tensor, rounds: int, repeats: int) -> float:
    """The speed of a compiled model as a share of the compiled host's."""
    plain, arm = compiled(host, model)
    return share(plain, arm, image, rounds, repeats)


def compiled(*models: nn.Module) -> list[Callable[[torch.Tensor], object]]:
    torch._dynamo.reset()
    return [torch.compile(copy.deepcopy(model), fullgraph=True) for model in models]


def training_step(model: nn.Module) -> Callable[[torch.Tensor], None]:
    trained = copy.deepcopy(model).train()

    @torch.enable_grad()
    def step(image: torch.Tensor) -> None:
        trained(image).sum().backward()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=10, help="forward passes per round")
    parser.add_argument("--compile", action="store_true", help="also compile every arm with inductor (ten minutes)")
    parser.add_argument("--only", nargs="*", help="arms with one of these names")
    parser.add_argument("--write", action="store_true", help="record the table for docs/; needs --compile")
    given = parser.parse_args()
    if given.write and (given.only or not given.compile):
        parser.error("--write records all arms, also compiled. Pass --compile, and no --only.")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    plain = copy.deepcopy(unsmooth.create_model(HOST).eval())  # the arms are copies: they lie in memory alike
    image = torch.randn(1, 3, 32, 32)
    blocks = len(plain.get_submodule("blocks"))  # type: ignore[arg-type]
    record = Record("seam", f"{HOST}, one image, one thread of {machine()}; medians of {given.rounds} rounds of "
                    f"{given.repeats} passes.")  # fmt: skip
    rows = []
    for arm in ARMS:
        if given.only and arm.spec not in given.only and arm.name not in given.only:
            continue
        model, sites = treated(plain, arm)
        host, extra = added(plain, model, image, given.rounds, given.repeats)
        name, cost = f"`{arm.spec}`{', folded' * arm.folded}" if not arm.does_nothing else arm.name, extra / sites * 1e6
        goal = record.goal(f"small host, {arm.name}, added per site", cost, arm.goal, at_most=True, unit=" µs",
                           profile=f"small {arm.name}").cell if arm.spec else ""  # fmt: skip
        row = [
            name,
            arm.mechanism,
            f"{cost:.0f} µs",
            goal,
            f"{host / blocks * 1e6:.0f} µs",
            f"{host / (host + extra):.2f}",
        ]
        rows.append([*row, *compiled_cells(plain, model, arm, image, given, record)])
    if not given.only:
        model, _ = treated(plain, SHORTCUT)
        cells = []
        for kind, run in (("inference", lambda each: each), ("training", training_step)):
            value = share(run(plain), run(model), image, given.rounds, given.repeats)
            goal = record.goal(f"small host, {SHORTCUT.spec}, {kind}, share of the host", value, SHORTCUT_SHARE,
                               profile=f"small {SHORTCUT.spec}{' training' * (kind == 'training')}").cell  # fmt: skip
            cells.append([f"`{SHORTCUT.spec}`, {kind}", SHORTCUT.mechanism, "", goal, "", f"{value:.2f}"])
        cells[0] += compiled_cells(plain, model, SHORTCUT, image, given, record)
        rows += [cells[0], [*cells[1], "", ""]]
    head = ("", "mechanism", "added per site", "goal", "plain block", "speed of the host", "compiled", "goal")
    record.table("seam", head, rows)
    if given.compile and not given.only:
        compiled_large_host(record)
    if given.write:
        record.write()


def compiled_cells(
    plain: nn.Module, model: nn.Module, arm: Arm, image: torch.Tensor, given: argparse.Namespace, record: Record
) -> list[str]:
    """The speed of the compiled model as a share of the compiled host's, and its goal."""
    if not given.compile or arm.does_nothing:
        return ["", ""]
    value = compiled_share(plain, model, image, given.rounds, given.repeats)
    goal = record.goal(f"small host, {arm.name}, compiled, share of the compiled host", value, COMPILED,
                       profile=f"small {arm.name} compiled")  # fmt: skip
    return [f"{value:.3f}", goal.cell]


def compiled_large_host(record: Record) -> None:
    """The table of compiled shares on DeiT-S, where the arithmetic of a remedy is as large as in practice."""
    host = unsmooth.create_model(LARGE_HOST).eval()
    images, rows = torch.randn(LARGE_BATCH, 3, 224, 224), []
    for spec in LARGE_ARMS:
        model, _ = treated(host, Arm(spec, "", COMPILED))
        value = compiled_share(host, model, images, LARGE_ROUNDS, 1)
        goal = record.goal(f"DeiT-S, {spec}, compiled, share of the compiled host", value, COMPILED,
                           profile=f"deit {spec} compiled")  # fmt: skip
        rows.append([f"`{spec}`", f"{value:.3f}", goal.cell])
    note = f"{LARGE_HOST}, batch {LARGE_BATCH}, one thread of {machine()}; medians of {LARGE_ROUNDS} rounds."
    record.table("compiled", ("", "compiled", "goal"), rows, note)


if __name__ == "__main__":
    main()
