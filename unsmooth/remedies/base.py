"""The base of remedies: what a remedy declares, and the patches that it is made of.

A `Remedy` declares its name, options and claims, and `place` returns its patches for one block with their targets.
`unsmooth.surgery.apply` attaches them. The patches are small modules:

    AttentionPatch   changes an attention map, as a function of the values and as a matrix
    TokenHook        changes the tokens at a hook point; the module itself is the hook
    LinearPatch      replaces a linear layer
    WeightPatch      changes the weight of a linear layer
    ResidualPatch    changes what a branch adds to the residual stream

Constant factors of a residual sum are a `seam.patched.ResidualScale`, which has no parameters. The patches of a
`LossRemedy` are `TokenBuffer`s or `MapBuffer`s, which store the tokens or maps of a training pass for a term of the
loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.bands import Gain, mix
from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import as_tokens, prefix_of
from unsmooth.seam.carried import is_recomputed, pass_on
from unsmooth.seam.intercept import Attend, AttentionCall, SdpaOptions, softmax_call
from unsmooth.seam.patched import not_scriptable
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.utils.options import options

OptionsT = TypeVar("OptionsT")


@options
class NoOptions:
    """The options of a remedy that has none."""


class Remedy(ABC, Generic[OptionsT]):
    """One published remedy: facts, options, and where its patches go. It changes nothing itself.

    A remedy is registered under the name of its file. `Options` is the class of its options; the methods receive an
    instance of it. The option `blocks`, which every remedy takes, is handled by `unsmooth.surgery.plan`.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    acts_on: ClassVar[str]
    Options: ClassVar[type[Any]] = NoOptions
    parameters: ClassVar[str] = "–"
    conflicts: ClassVar[tuple[str, ...]] = ()
    fused: ClassVar[str] = "yes"
    departures: ClassVar[str]
    start_error: ClassVar[float] = 1e-4  # how far outputs may move, of the largest one, where `exact` says they stay
    once: ClassVar[bool] = False  # applied once per model, not once per block

    def exact(self, options: OptionsT) -> bool:
        """Whether the outputs of a pretrained host stay the same when the remedy is applied."""
        return False

    @abstractmethod
    def place(self, block: Block, anatomy: Anatomy, options: OptionsT) -> list[Placement]:
        """The patches for one block and their targets. Raises `NotApplicable` with the reason if it does not fit."""

    @abstractmethod
    def flops(self, block: Block, anatomy: Anatomy, options: OptionsT) -> int:
        """Floating point operations that it adds to one block per image. A multiply-add counts as two."""

    def check(self, model: nn.Module, anatomy: Anatomy, example: Example | None) -> None:
        """Raise `NotApplicable` for a model that its anatomy does not rule out. The model must not change."""

    def connect(self, placements: list[Placement], anatomy: Anatomy) -> list[Placement]:
        """The placements of all blocks, for a remedy whose patches read from one another; it may add some."""
        return placements

    def blocks(self, anatomy: Anatomy, options: OptionsT) -> list[int]:
        """The blocks that `place` is called for, if the remedy is applied once per model."""
        return [0]


class LossRemedy(Remedy[OptionsT], ABC):
    """A remedy that adds a term to the training loss (`unsmooth.surgery.auxiliary_loss`).

    Its patches are `TokenBuffer`s or `MapBuffer`s, at most one per block. The forward pass is not changed.
    """

    once = True

    def exact(self, options: OptionsT) -> bool:
        return True

    def flops(self, block: Block, anatomy: Anatomy, options: OptionsT) -> int:
        return 0

    @abstractmethod
    def loss(self, stored: list[Tensor], options: OptionsT) -> Tensor:
        """The weighted term, from the patch tokens (B, n, d) or the maps of the blocks with a buffer, in order."""


class AttentionPatch(nn.Module):
    """Changes an attention map A. `forward(attend, v)` is A'v given `attend(v)` = Av; `matrix(A)` is A'."""

    attention_order = 0  # which attention of its module it changes, in the order in which they run
    rescores = False  # whether it replaces the scores
    scores_product = 0  # the matrix product of an explicit attention that it replaces, counted from 1; 0: none
    reads_tokens = False  # whether `transform` needs the tokens that the attention reads
    transforms = True  # whether `transform` is all that it does to a fused attention

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own, base = (cls.masked, cls.rescore, cls.change), (AttentionPatch.masked, AttentionPatch.rescore)
        cls.transforms = own == (*base, AttentionPatch.change)

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        return attend(v)

    def transform(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        """The output of the changed attention; `x` are the tokens that it reads, if the patch `reads_tokens`."""
        out: Tensor = self(attend, v)
        return out

    def matrix(self, weights: Tensor) -> Tensor:
        return weights

    def masked(self, q: Tensor, k: Tensor, options: SdpaOptions) -> SdpaOptions:
        """The options of a fused kernel, for patches that add to the mask; `reweight` is the same for a softmax."""
        return options

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
        """The attention call with replaced scores, for patches that replace them."""
        return call

    def reweight(self, weights: Tensor, logits: Tensor) -> Tensor:
        """The result of an explicit softmax, for patches that change it; `rescore` is the same for a fused kernel."""
        return weights

    def change(self, call: AttentionCall) -> AttentionCall:
        """The attention call with the changed map."""
        attend, original, x = call.attend, call.map, call.x
        return replace(call, attend=lambda v: self.transform(attend, v, x), map=lambda: self.matrix(original()))


class HeadPatch(AttentionPatch):
    """An attention patch with parameters per head."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.trailing = -attention.head_axis - 1  # axes after the heads

    def over_heads(self, values: Tensor) -> Tensor:
        """One value per head, in the shape that a map or an output of the attention is multiplied with."""
        return values.view(-1, *(1,) * self.trailing)


class OutputPatch(HeadPatch, ABC):
    """Changes the values or the output of an attention and not its map, which stays that of the host.

    `output(attend, v, x)` is the new output; `x` are the tokens that the attention reads, one per query, if the patch
    `reads_tokens`.
    """

    @abstractmethod
    def output(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor: ...

    def transform(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        return self.output(attend, v, x)


class MapPatch(HeadPatch):
    """Changes an attention map by `matrix` alone, which needs the map itself: no fused kernel."""

    def change(self, call: AttentionCall) -> AttentionCall:
        def weights() -> Tensor:
            return self.matrix(call.map())

        def attend(v: Tensor) -> Tensor:
            dropped = F.dropout(weights(), call.dropout) if call.dropout else weights()
            return dropped.to(v.dtype) @ v

        return replace(call, attend=attend, map=weights, dropout=0.0)


class ScorePatch(AttentionPatch, ABC):
    """Replaces the scaled dot product of queries and keys by `scores(q, k)`. Masks and biases stay."""

    rescores = True

    def __init__(self, attention: Attention):
        super().__init__()
        self.scores_product = attention.product
        self.scale_q, self.scale_k, self.scale_after = attention.scale_q, attention.scale_k, attention.scale_after

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor) -> Tensor: ...

    def explicit_scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores for a host with an explicit softmax, which scales q before and the result after this product."""
        scores = self.scores(q / self.scale_q, k / self.scale_k) / self.scale_after
        return scores.to(q.dtype)  # some scores are computed in fp32

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
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
    """Changes the tokens at a hook point. The module itself is the hook: a closure would tie copies to the original."""

    __prepare_scriptable__ = not_scriptable
    reads_source = True  # whether `treat` reads the source; if not, the hook of an output takes less time

    @abstractmethod
    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        """The changed tokens `x`. At an output, `source` is the input of the hooked module."""

    def forward(self, module: nn.Module, args: Any, kwargs: Any = None, output: Any = None) -> Any:
        if kwargs is None:  # quantization registers hooks of a layer again, without their keyword arguments
            return self.forward(module, args, {})[0]
        if type(kwargs) is not dict:  # the output of a module whose keyword arguments are not read
            kwargs, output = {}, kwargs
        if output is None:
            if args:
                return (self._treated(args[0], None), *args[1:]), kwargs
            name = next(iter(kwargs))
            return args, {**kwargs, name: self._treated(kwargs[name], None)}
        source = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(output, tuple):
            return (self._treated(output[0], source), *output[1:])
        return self._treated(output, source)

    def _treated(self, x: Tensor, source: Tensor | None) -> Tensor:
        return pass_on(x, self.treat(x, source))


class BandGain(TokenHook):
    """A token hook with one gain on the mean token and one on the rest. It can be folded into a weight."""

    reads_source = False

    def __init__(self, channels_last: bool):
        super().__init__()
        self.channels_last = channels_last

    @abstractmethod
    def gains(self) -> tuple[Gain, Gain]: ...

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return mix(x, *self.gains(), self.channels_last)


class TokenBuffer(TokenHook):
    """Stores the tokens of the last training pass until `take` is called. The tokens pass unchanged."""

    def __init__(self, block: Block, anatomy: Anatomy):
        super().__init__()
        self.channels, self.prefix = block.channels, prefix_of(block, anatomy)
        self.tokens: Tensor | None = None

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if self.training and torch.is_grad_enabled() and not is_recomputed():
            self.tokens = x.clone()  # a host may change its tokens in place later
        return x

    def take(self) -> Tensor | None:
        """The stored patch tokens, (B, n, d), which are then released; None if there are none."""
        tokens, self.tokens = self.tokens, None
        return None if tokens is None else as_tokens(tokens, self.channels)[:, self.prefix :]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tokens": None}  # tokens belong to one forward pass of one model


class MapBuffer(AttentionPatch):
    """Stores the attention maps of the last training pass until `take` is called. The attention stays as it is.

    The maps are (…, heads, queries, keys). A fused host computes them once more.
    """

    def __init__(self, attention: Attention):
        super().__init__()
        self.head_axis = attention.head_axis
        self.maps: Tensor | None = None

    def change(self, call: AttentionCall) -> AttentionCall:
        if self.training and torch.is_grad_enabled():
            maps = call.map().movedim(self.head_axis, -3)  # also when it is recomputed: the same graph is expected
            if not is_recomputed():
                self.maps = maps
        return call

    def take(self) -> Tensor | None:
        """The stored maps, which are then released; None if there are none."""
        maps, self.maps = self.maps, None
        return maps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "maps": None}  # maps belong to one forward pass of one model


class LinearPatch(nn.Module):
    """Replaces a linear layer: its forward maps the layer's input to the layer's output."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output, for the input, weight and bias of the host's layer."""
        out: Tensor = self(x)
        return out


class FromHost(ABC):
    """A patch that starts from weights of the host, which it reads when it is attached."""

    @abstractmethod
    def start_from(self, host: Any) -> None:
        """Set the initial parameters. `host` is the weight that it acts on, or else the module that it hooks."""


class FromModel(ABC):
    """A patch that keeps something of the whole model outside the state dict, such as a frozen copy.

    It is set when it is attached, and again whenever weights are loaded.
    """

    @abstractmethod
    def start_from_model(self, model: nn.Module) -> None: ...


class WeightPatch(nn.Module, FromHost):
    """Changes the weight of a linear layer: its forward maps the host's weight, which still learns, to a new one."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, self(weight).to(weight.dtype), bias)


class ResidualPatch(nn.Module):
    """Changes what a branch adds to the residual stream: its forward maps the stream and the branch to a new branch."""


@dataclass(frozen=True)
class Placement:
    """A patch and its target: the name of a module (attention, linear layer, residual sum) or a hook point."""

    target: str | HookPoint
    patch: nn.Module | ResidualScale
    branch: str = ""  # attn or mlp, for a remedy with patches on both
    weight: str = ""  # the host's weight that a LinearPatch replaces


def branch_names(choice: str) -> tuple[str, ...]:
    """The branches of an option `branch=attn|mlp|both`."""
    return ("attn", "mlp") if choice == "both" else (choice,)


def token_attention(block: Block) -> Attention:
    """The attention of a block. Raises `NotApplicable` unless its map is over tokens."""
    attention = block.attention()
    if attention.kind == "channel":
        raise NotApplicable("its attention is over channels, not tokens")
    if attention.kind == "opaque":
        raise NotApplicable("the axes of its attention map are unknown")
    return attention


def square_attention(block: Block, why: str) -> Attention:
    """The attention of a block. Raises `NotApplicable` with a reason unless queries and keys are the same tokens."""
    attention = token_attention(block)
    if attention.queries != attention.keys:
        fewer = "fewer" if attention.keys < attention.queries else "more"
        raise NotApplicable(f"it has {fewer} keys than queries, so {why}")
    return attention


def dot_product_attention(block: Block) -> Attention:
    """The attention of a block. Raises `NotApplicable` unless its scores are a scaled dot product."""
    attention = token_attention(block)
    if attention.nonstandard_scores:
        raise NotApplicable(attention.nonstandard_scores)
    return attention


# The remedies that replace the scores, or add to them. A block can have one of them.
REPLACE_SCORES = (
    "adder", "adder_attention", "l2_attention", "logistic_attention", "qk_norm", "sink_logit", "talking_heads",
)  # fmt: skip


def other_scores(key: str) -> tuple[str, ...]:
    """The remedies that `key`, which replaces the scores, conflicts with."""
    return tuple(name for name in REPLACE_SCORES if name != key)


REGISTRY: dict[str, Remedy[Any]] = {}


def register(cls: type[Remedy[Any]]) -> type[Remedy[Any]]:
    assert cls.__module__.rsplit(".", 1)[-1] == cls.key, "the key of a remedy is the name of its file"
    REGISTRY[cls.key] = cls()
    return cls
