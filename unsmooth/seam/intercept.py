"""The seam: torch functions of a forward pass become events that can be observed and changed.

Attention is intercepted at the function, not at the module, so no host is wrapped or re-implemented. A
`TorchFunctionMode` recognises five kinds of events:

    attention      F.scaled_dot_product_attention, or softmax followed by a product with the values
    scores         a product before an explicit softmax, which may be that of queries and keys
    linear         F.linear, identified by its weight
    residual sum   the sum of the residual stream and a branch
    multi-head     F.multi_head_attention_forward, decomposed into the events above

A product is a matrix product or an einsum, in the form of `unsmooth.seam.products`. `AttentionInterceptor` only
recognises events. `unsmooth.seam.patched` changes them; `unsmooth.hosts.trace` and
`unsmooth.diagnosis.probe` observe them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unsmooth.seam.products import Product, einsum_product, matrix_product
from unsmooth.utils.precision import full, without_autocast

Attend = Callable[[Tensor], Tensor]

SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
# Functions whose result holds the same tokens, so that the residual stream stays recognised.
ALIAS = {
    torch.reshape,
    Tensor.reshape,
    Tensor.view,
    Tensor.to,
    Tensor.contiguous,
    torch.flatten,
    Tensor.flatten,
}  # Tensor.unflatten is left out: torch.compile does not find a method written in Python in a set
# Functions that are events, by what they are events of. All others leave an interceptor at once if it wants these only.
ATTENTION = frozenset({F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.einsum, *SOFTMAX, *MATMUL})
LINEAR = frozenset({F.linear, F.multi_head_attention_forward})
RESIDUAL = frozenset({*ADD, *ALIAS})


class SdpaOptions(TypedDict):
    """Arguments of `F.scaled_dot_product_attention` besides queries, keys and values."""

    attn_mask: Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool


@dataclass(frozen=True)
class MapLayout:
    """How a host writes one attention, which is found out once, when the host is examined.

    Attributes:
        side: The factor of the product with the values that is the map: `left` (A @ V) or `right` (Vᵀ @ Aᵀ).
            Empty if it is not known; then the sizes decide.
        heads: Heads in the first axis of values (B · heads, n, d); 0 if the heads have an axis of their own.
    """

    side: str = ""
    heads: int = 0


UNKNOWN = MapLayout()


@dataclass
class AttentionCall:
    """One attention of a forward pass.

    Attributes:
        v: The values.
        attend: `attend(v)` is the output of the attention for values `v`.
        map: `map()` is the attention map, computed on demand.
        scores: `scores()` are the inputs of the softmax, without the mask where the mask is known.
        q: The queries, if the attention is a fused call.
        k: The keys, if the attention is a fused call.
        scale: The scale of a fused call. None means 1/√(head channels).
        via: `sdpa` for fused attention, `softmax` for an explicit map.
        x: The tokens that the attention reads, if they are known: the input of its first linear layer.
        dropout: The share of entries of the map that `attend` drops.
    """

    v: Tensor
    attend: Attend
    map: Callable[[], Tensor]
    scores: Callable[[], Tensor]
    q: Tensor | None = None
    k: Tensor | None = None
    scale: float | None = None
    via: str = "sdpa"
    x: Tensor | None = None
    dropout: float = 0.0

    def unfolded(self, heads: int) -> AttentionCall:
        """The same attention with an axis of its own for heads that are in the first axis."""
        call, v = self, unfold(self.v, heads)

        def attend(x: Tensor) -> Tensor:
            return unfold(call.attend(call.v if x is v else x.flatten(0, 1)), heads)

        return replace(
            self, v=v, attend=attend,
            map=lambda: unfold(call.map(), heads), scores=lambda: unfold(call.scores(), heads),
            q=None if self.q is None else unfold(self.q, heads), k=None if self.k is None else unfold(self.k, heads),
        )  # fmt: skip


def unfold(x: Tensor, heads: int) -> Tensor:
    """A tensor (B · heads, …) as (B, heads, …)."""
    return x.reshape(-1, heads, *x.shape[1:])


def dot_scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)


def add_mask(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Scores with the mask of SDPA: additive, boolean (True takes part), or causal."""
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf"))
    return scores + mask


def softmax_call(
    scores: Callable[[], Tensor], v: Tensor, mask: Tensor | None, dropout: float, causal: bool
) -> AttentionCall:
    """Attention with an explicit map, for scores that no fused kernel computes."""

    def weights() -> Tensor:
        return add_mask(scores(), mask, causal).softmax(dim=-1)

    def attend(v: Tensor) -> Tensor:
        return F.dropout(weights(), dropout).to(v.dtype) @ v if dropout else weights().to(v.dtype) @ v

    return AttentionCall(v, attend, weights, scores, dropout=dropout)


class AttentionInterceptor(TorchFunctionMode):
    """Recognises the events of a forward pass. Each `on_…` method runs its event unchanged unless overridden."""

    follows_products = False  # whether products before a softmax are events: `on_scores`
    wanted: frozenset[Any] | None = None  # the functions that are events; None: all, and `on_other` gets the rest

    weights: Tensor | None = None  # the latest explicit softmax that was not multiplied with values yet
    logits: Tensor | None = None  # its input

    def layout(self) -> MapLayout:
        """How the host writes its next attention, if it was examined."""
        return UNKNOWN

    def on_attention(self, call: AttentionCall) -> Tensor:
        return call.attend(call.v)

    def on_sdpa(self, q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions) -> Tensor:
        return self._attention(fused_call(q, k, v, options))

    def on_scores(self, product: Product) -> Tensor:
        return product.run()

    def on_multi_head(self, tokens_first: Tensor) -> None:
        """Called with the tokens (n, B, d) of a multi-head call, before its steps."""

    def on_softmax(self, weights: Tensor, logits: Tensor) -> Tensor:
        """The result of an explicit softmax over the last axis."""
        return weights

    def on_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def on_add(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return func(*args, **kwargs)

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        pass

    def on_other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self.wanted is not None and func not in self.wanted:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is F.linear:
            return self.on_linear(*linear_arguments(*args, **kwargs))
        if func is F.scaled_dot_product_attention:
            return self.on_sdpa(*sdpa_arguments(*args, **kwargs))
        if func is F.multi_head_attention_forward and is_plain_self_attention(*args, **kwargs):
            self.on_multi_head(args[0] if args else kwargs["query"])
            with self:  # its steps are events of their own
                return multi_head_attention(*args, **kwargs)
        if func in SOFTMAX:
            result: Tensor = func(*args, **kwargs)
            if softmax_axis(*args, **kwargs) in (-1, result.ndim - 1):
                logits: Tensor = args[0] if args else kwargs["input"]
                result = self.on_softmax(result, logits)
                self.weights, self.logits = result, logits
            return result
        if self.weights is not None or self.follows_products:  # or else a product is nothing to look at
            if func in MATMUL:
                return self._product(matrix_product(func, args, kwargs))
            if func is torch.einsum:
                product = einsum_product(func, args)
                return self.on_other(func, args, kwargs) if product is None else self._product(product)
        if func in ADD:
            return self.on_add(func, args, kwargs)
        result = self.on_other(func, args, kwargs)
        if func in ALIAS:
            self.on_alias(args[0], result)
        return result

    def _product(self, product: Product) -> Tensor:
        with_map = None if self.weights is None else self.with_map(product, self.weights)
        if with_map is None:
            return self.on_scores(product) if self.follows_products else product.run()
        product = with_map
        logits = self.logits
        assert logits is not None
        self.weights = self.logits = None
        a, v = product.left, product.right
        if v.shape[:-2] != a.shape[:-2]:  # values that heads share
            v = v.expand(*torch.broadcast_shapes(a.shape[:-2], v.shape[:-2]), *v.shape[-2:])

        def attend(x: Tensor) -> Tensor:
            return product.standard(product.run()) if x is v else a @ x

        return product.result(self._attention(AttentionCall(v, attend, lambda: a, lambda: logits, via="softmax")))

    def with_map(self, product: Product, weights: Tensor) -> Product | None:
        """The product, with its left factor a map that derives from the latest softmax, or None.

        A host may drop entries or mix heads between softmax and values: sizes are compared, not identity.
        """
        left, right, side = product.left, product.right, self.layout().side
        if left.ndim < 2 or right.ndim < 2:
            return None
        if side != "right" and left.shape[-2:] == weights.shape[-2:]:
            return product
        if side != "left" and right.shape[-1] == weights.shape[-2] and right.shape[-2] == weights.shape[-1]:
            return product.transposed()
        return None

    def _attention(self, call: AttentionCall) -> Tensor:
        heads = self.layout().heads
        if heads and call.v.ndim == 3:
            return self.on_attention(call.unfolded(heads)).flatten(0, 1)
        return self.on_attention(call)


def softmax_axis(input: Tensor, dim: int | None = None, *rest: Any, **kwargs: Any) -> int | None:
    return dim


def linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def sdpa_arguments(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, SdpaOptions]:  # fmt: skip
    options: SdpaOptions = {
        "attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale,
        "enable_gqa": enable_gqa,
    }  # fmt: skip
    return query, key, value, options


def fused_call(q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions) -> AttentionCall:
    """SDPA as an attention call: the kernel stays fused, the map is computed on demand.

    Keys and values that all heads share are seen once per head; the kernel gets them as the host gave them.
    """
    keys, values = k, v
    if not options["enable_gqa"] and v.shape[:-2] != q.shape[:-2]:
        keys, values = (x.expand(*q.shape[:-2], *x.shape[-2:]) for x in (k, v))

    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v if x is values else x, **options)

    cached: list[Tensor] = []  # the map of a call is computed from its scores

    def scores() -> Tensor:
        if not cached:
            each = keys.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3) if options["enable_gqa"] else keys
            with without_autocast(q):  # in single precision, as the kernel: products of half precision overflow
                cached.append(dot_scores(full(q), full(each), options["scale"]))
        return cached[0]

    def weights() -> Tensor:
        return add_mask(scores(), options["attn_mask"], options["is_causal"]).softmax(dim=-1)

    return AttentionCall(values, attend, weights, scores, q, keys, options["scale"], dropout=options["dropout_p"])


def is_plain_self_attention(*args: Any, **kwargs: Any) -> bool:
    """Whether a call of `F.multi_head_attention_forward` can be decomposed by `multi_head_attention`."""
    call = MULTI_HEAD.bind(*args, **kwargs)
    call.apply_defaults()
    arguments = call.arguments
    unsupported = ("bias_k", "static_k", "static_v", "key_padding_mask", "add_zero_attn", "need_weights")
    return (
        not any(arguments[name] is not None and arguments[name] is not False for name in unsupported)
        and not arguments["use_separate_proj_weight"]
        and arguments["query"] is arguments["key"] is arguments["value"]
        and arguments["query"].ndim == 3
    )


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor,
    in_proj_bias: Tensor | None, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Any = None,
    need_weights: bool = False, attn_mask: Tensor | None = None, is_causal: bool = False, **rest: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The self-attention of `F.multi_head_attention_forward` (tokens first) as linear layers around one SDPA.

    PyTorch runs it as one function, whose inner calls a `TorchFunctionMode` does not see.
    """
    tokens, batch, channels = query.shape
    q, k, v = (
        each.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)  # to batch, heads, tokens, head channels
        for each in F.linear(query, in_proj_weight, in_proj_bias).chunk(3, dim=-1)
    )
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.unflatten(0, (batch, num_heads))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # True means "ignore" here and "take part" in SDPA
    dropout = dropout_p if training else 0.0
    out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal and attn_mask is None)
    out = out.permute(2, 0, 1, 3).reshape(tokens, batch, channels)
    return F.linear(out, out_proj_weight, out_proj_bias), None


MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def residual_side(stream: Sequence[Tensor | None], args: Sequence[Any]) -> int | None:
    """The index of the operand of a sum that is the residual stream, or None; the operands must have one shape."""
    if len(args) < 2 or not isinstance(args[1], Tensor) or not isinstance(args[0], Tensor):
        return None
    if args[0].shape != args[1].shape:
        return None
    for known in stream:
        if args[0] is known:
            return 0
        if args[1] is known:
            return 1
    return None
