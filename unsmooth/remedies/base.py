"""What a remedy is made of.

A `Remedy` is a value: its name, its options, what it claims, and `place`, which says where its parts go in
one block. It changes nothing; `unsmooth.surgery.apply` does. The parts are small modules of three kinds:

    AttentionPatch   changes an attention map, as a function of the values and as a matrix
    TokenHook             changes the tokens that pass a point; the module itself is the hook
    LinearPatch      stands in for a linear layer

and a residual sum is changed by `treatment.ResidualScale`, which has no parameters. A `LossRemedy` changes none of these:
its parts are `TokenBuffer`s, taps that keep the tokens of a training pass for a term of the loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.bands import Gain, mix
from unsmooth.errors import NotApplicable, UnsmoothError, unknown
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import as_tokens, prefix_of
from unsmooth.seam.intercept import Attend, AttentionCall, softmax_call
from unsmooth.seam.patched import ResidualScale

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """One option of a remedy: its default, and either the words it may be or the range it must lie in."""

    default: Any
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None  # an open lower end
    optional: bool = False  # None is allowed, and means that the remedy chooses

    def check(self, remedy: str, name: str, value: Any) -> Any:
        where = f"{remedy}({name}={value})"
        if value is None and self.optional:
            return None
        if self.choices:
            if value not in self.choices:
                raise unknown(f"value of {remedy}({name}=…)", str(value), self.choices)
            return value
        wanted = bool if isinstance(self.default, bool) else int if isinstance(self.default, int) else float
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not wanted:
            raise UnsmoothError(f"{where}: {name} must be {_KINDS[wanted]}")
        if (self.low is not None and value < self.low) or (self.above is not None and not value > self.above):
            raise UnsmoothError(f"{where}: {name} must be {self.range()}")
        if self.high is not None and not value <= self.high:
            raise UnsmoothError(f"{where}: {name} must be {self.range()}")
        if not math.isfinite(value):
            raise UnsmoothError(f"{where}: {name} must be finite")
        return value

    def range(self) -> str:
        low = (
            f"at least {self.low:g}"
            if self.low is not None
            else f"above {self.above:g}"
            if self.above is not None
            else ""
        )
        high = f"at most {self.high:g}" if self.high is not None else ""
        return " and ".join(word for word in (low, high) if word)


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


class Remedy(ABC):
    """One published fix. Subclasses are registered under their file's name."""

    key: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    acts_on: ClassVar[str]
    options: ClassVar[dict[str, Option]] = {}
    parameters: ClassVar[str] = "–"
    conflicts: ClassVar[tuple[str, ...]] = ()
    fused: ClassVar[str] = "yes"
    departures: ClassVar[str]
    once: ClassVar[bool] = False  # acts once on the model, not on each block

    def exact(self, options: Options) -> bool:
        """Whether applying it leaves a pretrained host's outputs as they were."""
        return False

    @abstractmethod
    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        """Where its parts go in one block; raises `NotApplicable` where it makes no sense."""

    @abstractmethod
    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        """Floating point operations that it adds to one block for one image (a multiply-add counts as two)."""

    def blocks(self, anatomy: Anatomy, options: Options) -> list[int]:
        """The blocks that a remedy which acts once is placed by: nobody chooses them."""
        return [0]

    def read(self, given: Options) -> dict[str, Any]:
        """Options as given, checked, with defaults filled in."""
        for name in given:
            if name not in self.options:
                raise unknown(f"option of {self.key}", name, self.options)
        return {
            name: option.check(self.key, name, given.get(name, option.default)) for name, option in self.options.items()
        }


class LossRemedy(Remedy, ABC):
    """Adds a term to the training loss (`unsmooth.surgery.auxiliary_loss`) and changes nothing else: one `TokenBuffer` a block."""

    once = True

    def exact(self, options: Options) -> bool:
        return True

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        return 0  # a forward pass is what it was

    @abstractmethod
    def loss(self, tokens: list[Tensor], options: Options) -> Tensor:
        """The term, weighted, from the patch tokens (B, n, d) of the blocks that it was placed on, in their order."""


class AttentionPatch(nn.Module):
    """Changes an attention map A. `forward(attend, v)` is A'v given `attend(v)` = Av; `matrix(A)` is A'."""

    rescores = False  # whether it changes the scores, and so must meet them
    scores_product = 0  # which product of an explicit attention it replaces; 0: none

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        return attend(v)

    def matrix(self, weights: Tensor) -> Tensor:
        return weights

    def rescore(self, call: AttentionCall, options: dict[str, Any]) -> AttentionCall:
        """The attention call with other scores, for parts that change those."""
        return call


class ScorePatch(AttentionPatch, ABC):
    """Replaces the scaled dot product of queries and keys by `scores(q, k)`; masks and biases stay."""

    rescores = True

    def __init__(self, attention: Attention):
        super().__init__()
        self.scores_product = attention.product
        self.scale_q, self.scale_k, self.scale_after = attention.scale_q, attention.scale_k, attention.scale_after

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor) -> Tensor: ...

    def explicit_scores(self, q: Tensor, k: Tensor) -> Tensor:
        """For a host with an explicit softmax: q arrives scaled, and the result will be scaled again."""
        return (self.scores(q / self.scale_q, k / self.scale_k) / self.scale_after).to(
            q.dtype
        )  # some scores are computed in fp32

    def rescore(self, call: AttentionCall, options: dict[str, Any]) -> AttentionCall:
        q, k, v = call.q, call.k, call.v
        assert q is not None and k is not None
        if options["enable_gqa"]:
            groups = q.shape[-3] // k.shape[-3]
            k, v = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
        keys = k
        return softmax_call(
            lambda: self.scores(q, keys), v, options["attn_mask"], options["dropout_p"], options["is_causal"]
        )


class TokenHook(nn.Module, ABC):
    """Changes the tokens at a point. Registered as the hook itself: a closure would keep a copy's original."""

    @abstractmethod
    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        """The tokens `x` that pass, changed; `source` is what the module took in, at an output."""

    def forward(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any = None) -> Any:
        if output is None:
            if args:
                return (self.treat(args[0], None), *args[1:]), kwargs
            name = next(iter(kwargs))
            return args, {**kwargs, name: self.treat(kwargs[name], None)}
        source = args[0] if args else next(iter(kwargs.values()))
        if isinstance(output, tuple):
            return (self.treat(output[0], source), *output[1:])
        return self.treat(output, source)


class BandGain(TokenHook):
    """A tap with a gain on the mean token and another on the rest: what can be folded into a weight."""

    def __init__(self, channels_last: bool):
        super().__init__()
        self.channels_last = channels_last

    @abstractmethod
    def gains(self) -> tuple[Gain, Gain]: ...

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return mix(x, *self.gains(), self.channels_last)


class TokenBuffer(TokenHook):
    """Keeps the tokens of the last training pass until they are taken, and passes them on as they are."""

    def __init__(self, block: Block, anatomy: Anatomy):
        super().__init__()
        self.channels, self.prefix = block.channels, prefix_of(block, anatomy)
        self.kept: Tensor | None = None

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if self.training and torch.is_grad_enabled() and not _is_recomputed():
            self.kept = x.clone()  # a host may write over its tokens later on
        return x

    def take(self) -> Tensor | None:
        """The patch tokens, (B, n, d), which are let go; None where there are none."""
        kept, self.kept = self.kept, None
        return None if kept is None else as_tokens(kept, self.channels)[:, self.prefix :]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": None}  # tokens belong to one pass of one model: no copy has them


def _is_recomputed() -> bool:
    """Whether a checkpointed block runs again, within the backward pass: its tokens were kept before."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class LinearPatch(nn.Module):
    """Stands in for a linear layer: its forward takes that layer's input and gives its output."""


@dataclass(frozen=True)
class Placement:
    """One part and where it goes: `at` names the module (attention, linear and join) or is a point."""

    at: str | HookPoint
    part: nn.Module | ResidualScale
    role: str = ""  # attn or mlp, where a remedy may put a part on each
    weight: str = ""  # the host's weight that a LinearPatch stands in for


def branches(options: Options) -> tuple[str, ...]:
    """The branches that an option `branch=attn|mlp|both` means."""
    return ("attn", "mlp") if options["branch"] == "both" else (options["branch"],)


def over_tokens(block: Block) -> Attention:
    """The block's attention, refused unless its map is over tokens."""
    attention = block.core()
    if attention.kind in ("channel", "opaque"):
        what = {"channel": "attends over channels, not tokens", "opaque": "has an attention map of unknown axes"}
        raise NotApplicable(f"it {what[attention.kind]}")
    return attention


def plain_scores(block: Block) -> Attention:
    """The block's attention, refused unless its scores are a scaled dot product that can be replaced."""
    attention = over_tokens(block)
    if attention.odd_scores:
        raise NotApplicable(attention.odd_scores)
    return attention


REGISTRY: dict[str, Remedy] = {}


def register(cls: type[Remedy]) -> type[Remedy]:
    assert cls.__module__.rsplit(".", 1)[-1] == cls.key, "a remedy's key is its file's name"
    REGISTRY[cls.key] = cls()
    return cls
