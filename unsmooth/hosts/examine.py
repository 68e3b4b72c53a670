"""Derives the anatomy of a host from one forward pass (`unsmooth.hosts.trace`).

A model family needs no code here as long as its attention passes the seam. The tables below are all that this project
knows about families.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Attention, Block, Branch, Linear, Norm
from unsmooth.hosts.inputs import Example, example_input
from unsmooth.hosts.patch_embed import HookPoint, PatchEmbedding, find_patch_embedding, parents
from unsmooth.hosts.trace import AttentionEvent, LinearEvent, ModuleCall, Trace, trace
from unsmooth.hosts.unseen import why_unseen
from unsmooth.seam.intercept import MapLayout

CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")
HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Blocks of hosts without attention: the class with the skip around the token mixer.
ATTENTION_FREE_BLOCKS = ("timm.models.convmixer.Residual",)


def examine(model: nn.Module, example: Example | None = None) -> Anatomy:
    """Derive the anatomy of a host from one forward pass on `example` (default: one image of noise)."""
    example = example_input(model) if example is None else example
    modules = dict(model.named_modules())
    traced = trace(model, example)
    run = {call.name for call in traced.calls}
    owners = {event.at: _block_of(event.core, modules, run) for event in traced.attentions}
    names = list(dict.fromkeys(name for name in owners.values() if name))
    if not traced.attentions:
        names = [name for name, module in modules.items() if _class_name(module) in ATTENTION_FREE_BLOCKS]
    if traced.attentions and not names:
        cores = ", ".join(dict.fromkeys(event.core or "the model itself" for event in traced.attentions))
        raise UnsmoothError(
            f"{type(model).__name__} runs attention in {cores}, which is not inside a list of blocks. Only "
            "attention in blocks that stand in an nn.ModuleList or nn.Sequential is supported."
        )
    if not names:
        raise UnsmoothError(
            f"{type(model).__name__} ran no attention that unsmooth recognises (scaled_dot_product_attention, or "
            f"softmax followed by a product): {why_unseen(model, traced.softmaxes)}"
        )
    traced, names, owners = _final_blocks(model, example, traced, names, modules, run)
    patch_embed = find_patch_embedding(traced, modules)
    class_parameter = any(name.split(".")[-1] in CLASS_TOKENS for name, _ in model.named_parameters())
    blocks: list[Block] = []
    skipped = [
        f"{event.core}: attention outside the blocks is not treated"
        for event in traced.attentions
        if not owners[event.at]
    ]
    for name in names:
        events = _distinct([event for event in traced.attentions if owners[event.at] == name])
        inner = [call for call in traced.calls if call.name in names and call.name.startswith(f"{name}.")]
        block = _block(len(blocks), name, events, traced, modules, patch_embed, class_parameter, inner)
        kept = [e for e, a in zip(events, block.attentions, strict=True) if a.kind != "class-query"]
        if len(kept) < len(events):
            skipped.append(f"{name}: class attention (one query) is not treated")
            block = _block(len(blocks), name, kept, traced, modules, patch_embed, class_parameter, inner)
        if kept or not events:
            blocks.append(block)
    if not blocks:
        raise UnsmoothError(f"{type(model).__name__} has no block to treat: {'; '.join(dict.fromkeys(skipped))}")
    elsewhere = {call.name for call in traced.calls if not call.stream_on_left}
    on_left = frozenset(call.name for call in traced.calls if call.sums and call.name not in elsewhere)
    return Anatomy(tuple(blocks), patch_embed, tuple(skipped), _sums_of_holders(blocks, traced), on_left)


def _final_blocks(
    model: nn.Module, example: Example, traced: Trace, names: list[str], modules: dict[str, nn.Module], run: set[str]
) -> tuple[Trace, list[str], dict[int, str]]:
    """The trace, the names of the blocks, and the block of each attention.

    A module inside a block that has residual sums of its own around its attention is the block, as in MaxViT. Where a
    block is `nn.ModuleList([attention, mlp])` and the sums are outside of its members, the list is the block, and
    the host is traced again with it.
    """
    inner = _blocks_inside(traced, names, modules, run)
    names = list(dict.fromkeys(part for name in names for part in inner.get(name, [name])))
    lists: dict[str, str] = {}
    for call in traced.calls:
        parent = call.name.rpartition(".")[0]
        if (
            call.name in names
            and isinstance(modules[parent], nn.ModuleList)
            and parent not in run
            and isinstance(modules[parent.rpartition(".")[0]], nn.ModuleList)
            and not call.sums
        ):
            lists[call.name] = parent
    while lists:
        merged = list(dict.fromkeys(lists.get(name, name) for name in names))
        again = trace(model, example, {*lists.values()})
        times = Counter(call.name for call in again.calls)
        wrong = {
            parent
            for parent in lists.values()
            if parent not in again.exits or times[parent] != 1 or times[again.exits[parent][0]] != 1
        }
        if not wrong:
            traced, names = again, merged
            break
        lists = {name: parent for name, parent in lists.items() if parent not in wrong}
    owners = {}
    for event in traced.attentions:
        name = _block_of(event.core, modules, run)
        name = next((part for part in inner.get(name, []) if _inside(event.core, part)), name)
        owners[event.at] = lists.get(name, name)
    return traced, names, owners


def _blocks_inside(
    traced: Trace, names: list[str], modules: dict[str, nn.Module], run: set[str]
) -> dict[str, list[str]]:
    """Blocks that hold several modules with an attention and residual sums each: these modules."""
    summing = {call.name for call in traced.calls if call.sums}
    inside: dict[str, list[str]] = {}
    for name in names:
        events = _distinct([e for e in traced.attentions if _block_of(e.core, modules, run) == name])
        parts = [_attention_branch(name, event.core, modules) for event in events]
        own = all(event.core != part and part in summing for event, part in zip(events, parts, strict=True))
        if own and len(set(parts)) == len(events) > 1:
            inside[name] = parts
    return inside


def _sums_of_holders(blocks: list[Block], traced: Trace) -> dict[str, tuple[str, ...]]:
    """The residual sums of the modules that run list blocks, as a patch of such a module counts them: "3.mlp"."""
    calls = {call.name: call for call in traced.calls}
    held = [block for block in blocks if block.holder]
    labels = {
        at: f"{block.index}.{name}"
        for block in held
        for at, name in zip(calls[block.name].sums, block.residuals, strict=True)
    }
    sums: dict[str, tuple[str, ...]] = {}
    for holder in dict.fromkeys(block.holder for block in held):
        counted = tuple(labels.get(at, "other") for at in calls[holder].sums)
        wanted = [f"{b.index}.{name}" for b in held if b.holder == holder for name in b.residuals]
        if [label for label in counted if label != "other"] == wanted:  # or else a patch would miss some of them
            sums[holder] = counted
    return sums


def _distinct(events: list[AttentionEvent]) -> list[AttentionEvent]:
    """The attentions of a block, once each: a module that runs several times has one set of patches."""
    return list({(event.core, event.order): event for event in reversed(events)}.values())[::-1]


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def _block_of(core: str, modules: dict[str, nn.Module], run: set[str]) -> str:
    """The block of an attention: the innermost member of a container that runs and is not a container itself."""
    members = [
        name
        for name in parents(core)
        if isinstance(modules[name.rpartition(".")[0]], CONTAINERS)
        and not isinstance(modules[name], CONTAINERS)
        and name in run
    ]
    outside = [name for name in members if name != core]
    return next(iter(outside or members), "")


def _inside(name: str, holder: str | None) -> bool:
    return holder is not None and (name == holder or name.startswith(holder + "."))


def _block(index: int, name: str, events: list[AttentionEvent], traced: Trace, modules: dict[str, nn.Module],
           patch_embed: PatchEmbedding | None, class_parameter: bool, inner: list[ModuleCall]) -> Block:  # fmt: skip
    call = next(call for call in traced.calls if call.name == name)

    def own_event(at: int) -> bool:  # of this block, not of a block inside it
        return call.start < at < call.end and not any(other.start < at < other.end for other in inner)

    inside = [c for c in traced.calls if call.start < c.start < call.end]
    linears = [event for event in traced.linears if own_event(event.at)]
    before_inner = min((other.start for other in inner), default=call.end)
    sums = [at for at in call.sums if at < before_inner]  # a block inside it ends its residual stream
    reasons: dict[str, str] = {}
    channels, tokens, channels_last = _layout(call.input or (), linears)
    counts = Counter(core for core, _ in {(event.core, event.order) for event in traced.attentions})
    if not channels_last:  # then it is tokens that are contiguous, in any attention
        events = [replace(event, tokens_last=False) for event in events]
    attentions = tuple(_attention(e, modules, tokens, channels, linears, counts[e.core]) for e in events)
    residuals: tuple[str, ...]
    if any(event.core == name for event in events):
        reasons["attn"] = reasons["mlp"] = "its attention and MLP are not modules of their own"
        residuals = ()
    elif not events:
        reasons["attn"] = "it has no softmax attention"
        residuals = ("attn",) * len(sums)
    else:
        residuals = _residual_branches(sums, events, _after_attention(linears, events, name, modules))
    block = Block(index, name, tokens, channels, False, attentions, None, None, residuals, reasons)
    if name in traced.holders:
        first = min((c for c in inside), key=lambda c: c.start)
        points = {"input": HookPoint(first.name, "input"), "output": HookPoint(*traced.exits[name])}
        block = replace(block, points=points, holder=traced.holders[name])
    if not reasons:
        starts = [_start(name, event, inside, modules) for event in events]
        views = [
            _view(block, event, attention, [e for e in linears if start < e.at < end], inside, sums, modules)
            for event, attention, start, end in zip(events, attentions, starts, [*starts[1:], call.end], strict=True)
        ]
        if len(views) == 1:
            block = views[0]
        else:
            several = f"it has {len(events)} attentions, not one"
            block = replace(block, reasons={"attn": several, "mlp": several})
            parts = (_with_class_token(view, patch_embed, class_parameter) for view in views)
            block = replace(block, parts=tuple(parts))
    elif len(events) > 1:
        block = replace(block, parts=tuple(replace(block, attentions=(a,)) for a in attentions))
    else:
        reasons.setdefault("mlp", "it has no MLP of linear layers after its attention")
    return _with_class_token(block, patch_embed, class_parameter)


def _with_class_token(block: Block, patch_embed: PatchEmbedding | None, class_parameter: bool) -> Block:
    has_class_token = class_parameter and patch_embed is not None and block.tokens > patch_embed.tokens_of(block.tokens)
    return replace(block, class_token=has_class_token)


def _start(block: str, event: AttentionEvent, inside: list[ModuleCall], modules: dict[str, nn.Module]) -> int:
    """When the attention branch of an event starts, after which linear layers belong to it or to its MLP."""
    module = _attention_branch(block, event.core, modules)
    return max((c.start for c in inside if c.name == module and c.start < event.at), default=event.at)


def _after_attention(linears: list[LinearEvent], events: list[AttentionEvent], block: str,
                     modules: dict[str, nn.Module]) -> list[LinearEvent]:  # fmt: skip
    """The linear layers of the MLPs of a block: those after an attention that are in no attention branch."""
    branches = [_attention_branch(block, event.core, modules) for event in events]
    first = max(event.at for event in events) if len(events) == 1 else min(event.at for event in events)
    return [
        e for e in linears
        if e.weight and e.at > first and not any(_inside(e.stack[-1], branch) for branch in branches)
    ]  # fmt: skip


def _view(block: Block, event: AttentionEvent, attention: Attention, linears: list[LinearEvent],
          inside: list[ModuleCall], sums: list[int], modules: dict[str, nn.Module]) -> Block:  # fmt: skip
    """The block as one of its attentions sees it; `linears` are those from its branch to the next attention."""
    module = _attention_branch(block.name, event.core, modules)
    call = next((c for c in inside if c.name == module), None)
    channels, tokens = block.channels, block.tokens
    if len(block.attentions) > 1 and call is not None and call.input:
        channels, tokens, _ = _layout(call.input, [e for e in linears if _inside(e.stack[-1], module)])
    reasons: dict[str, str] = {}
    own = [e for e in linears if _inside(e.stack[-1], module)]
    attn = _branch(module, own, attention, inside, sums, modules, tokens, channels)
    mlp = None
    rest = _after_attention(linears, [event], block.name, modules)
    if len(rest) >= 2:
        holder = _common_module(block.name, [e.stack for e in rest])
        mlp = _branch(holder, rest, None, inside, sums, modules, tokens, channels)
    else:
        reasons["mlp"] = "it has no MLP of linear layers after its attention"
    return replace(
        block, tokens=tokens, channels=channels, attentions=(attention,), attn=attn, mlp=mlp, reasons=reasons
    )


def _layout(shape: tuple[int, ...], linears: list[LinearEvent]) -> tuple[int, int, bool]:
    """Channels and tokens of the input of a block, and whether the channels come last."""
    if len(shape) == 3:
        return shape[2], shape[1], True
    if len(shape) == 4:
        last = bool(linears) and shape[3] == linears[-1].outputs
        return (shape[3], shape[1] * shape[2], True) if last else (shape[1], shape[2] * shape[3], False)
    return (shape[-1] if shape else 0), math.prod(shape[1:-1]), True


def _attention(event: AttentionEvent, modules: dict[str, nn.Module], tokens: int, channels: int,
               linears: list[LinearEvent], siblings: int) -> Attention:  # fmt: skip
    core, q, v = modules[event.core], event.queries, event.values
    declared = next((heads for name in HEADS if isinstance(heads := getattr(core, name, None), int)), 0)
    leading = v[:-2]
    axis, folded = -3, 0
    if len(leading) < 2:
        folded = _folded_heads(leading, declared, siblings)
        heads = folded or 1
    else:
        axis = next((i - len(v) for i in range(1, len(leading)) if leading[i] == declared), -3)
        heads = v[axis]
    windows = math.prod(leading) // heads
    if len(leading) < 2 and not folded:
        kind = "opaque"
    elif q[-2] == 1 and event.keys > 1:
        kind = "class-query"
    elif q[-2] != event.keys:
        kind = "pooled-kv" if event.keys < q[-2] else "pooled-q"
    elif v[-1] == tokens and event.keys * heads == channels and (event.keys != tokens or event.tokens_last):
        kind = "channel"
    else:
        kind = "windowed" if windows > 1 else "global"
    first = next((e for e in linears if _inside(e.stack[-1], event.core) and e.at < event.at), None)
    inputs = first.inputs if first is not None and first.rows == windows * q[-2] else 0
    return Attention(
        event.core, kind, event.via, heads, axis, q[-2], event.keys, q[-1], v[-1], windows, event.product,
        event.scale_q, event.scale_k, event.scale_after, event.nonstandard_scores, event.mixed, inputs,
        MapLayout(event.side if event.via == "softmax" else "", folded), event.order, siblings,
    )  # fmt: skip


def _folded_heads(leading: tuple[int, ...], declared: int, siblings: int) -> int:
    """The heads in the only axis before tokens and channels, for one image; 0 if they cannot be told from windows."""
    if not leading or leading[0] == 1 or (siblings > 1 and siblings == declared):
        return 1 if leading else 0  # one head, or a core that runs one attention per head
    return declared if declared and leading[0] % declared == 0 else 0


def _attention_branch(block: str, core: str, modules: dict[str, nn.Module]) -> str:
    """The outermost module inside the block, other than a container, that holds the attention."""
    path = [name for name in parents(core) if _inside(name, block) and name != block]
    return next((name for name in reversed(path) if not isinstance(modules[name], CONTAINERS)), core)


def _common_module(block: str, stacks: list[tuple[str, ...]]) -> str | None:
    """The outermost module inside the block that runs all of these layers, if one does."""
    inner = [[name for name in stack if _inside(name, block) and name != block] for stack in stacks]
    common = inner[0][0] if inner[0] else None
    return common if common and all(names and names[0] == common for names in inner) else None


def _branch(module: str | None, events: list[LinearEvent], attention: Attention | None, inside: list[ModuleCall],
            sums: list[int], modules: dict[str, nn.Module], tokens: int, channels: int) -> Branch:  # fmt: skip
    reasons: dict[str, str] = {}

    def called(name: str | None) -> ModuleCall | None:
        runs = [call for call in inside if call.name == name]
        return runs[0] if len(runs) == 1 else None

    def point(call: ModuleCall | None, side: str, width: int) -> HookPoint | None:
        if call is None:
            return None
        shape = call.input if side == "input" else call.output
        if shape is None:
            return None
        if math.prod(shape[1:-1]) == tokens and shape[-1] == width and shape[0] == 1:
            return HookPoint(call.name, side)
        if math.prod(shape[2:]) == tokens and shape[1] == width and shape[0] == 1:
            return HookPoint(call.name, side, channels_last=False)
        return None

    if attention is not None:  # q, k, v and projection; not a mix of heads, nor an MLP that makes position biases
        widths = (channels, attention.heads * attention.value_channels)
        events = [e for e in events if e.inputs in widths and e.outputs != attention.heads]
    events = [e for e in events if e.weight]
    layers = tuple(_linear(event, attention, module) for event in events)
    whole = called(module)
    if whole is not None and not all(shape and shape[-1] == channels for shape in (whole.input, whole.output)):
        module = None  # it changes the width or is channels first, so its tensors cannot be treated as tokens
    first = called(events[0].stack[-1]) if events else None
    last = called(events[-1].stack[-1]) if events else None
    hidden = events[-1].inputs if events else channels

    front, end = point(whole, "input", channels), point(whole, "output", channels)
    if whole is not None and attention is not None:
        # A windowed branch sees windows; the modules around it see all tokens.
        before = [c for c in inside if c.end != -1 and c.end < whole.start]
        joined = min((at for at in sums if at > whole.end), default=0)
        after = [called(c.name) for c in inside if whole.end < c.start < joined]
        front = front or (point(max(before, key=lambda c: c.end), "output", channels) if before else None)
        end = end or next((p for p in (point(c, "input", channels) for c in after) if p), None)
    if attention is None:
        front = front or point(first, "input", channels)
        end = end or point(last, "output", channels)
    is_module = last is not None and isinstance(modules[last.name], nn.Linear)
    mid = point(last, "input", hidden) if is_module else None
    if front is None:
        reasons["front"] = "no module outputs the tokens before this branch"
    if end is None:
        reasons["end"] = "no module outputs the tokens after this branch"
    if mid is None:
        reasons["mid"] = (
            "its tokens are in windows before the last linear layer"
            if is_module
            else "its last linear layer is not run as a module"
        )
    begin = whole.start if whole is not None else events[0].at if events else 0
    norm = _norm_before(begin, inside, sums, tokens, channels)
    return Branch(module, channels, hidden, layers, front, mid, end, reasons, norm)


def _norm_before(begin: int, inside: list[ModuleCall], sums: list[int], tokens: int, channels: int) -> Norm | None:
    """The norm that gives out the tokens of a branch that begins at `begin`: no residual sum is in between."""
    norms = [
        call
        for call in inside
        if 0 < call.end < begin and "norm" in type(call.module).__name__.lower()
        and call.input == call.output and call.output is not None
        and call.output[-1] == channels and math.prod(call.output[1:-1]) == tokens
    ]  # fmt: skip
    last = max(norms, key=lambda call: call.end, default=None)
    if last is None or any(last.end < at < begin for at in sums) or [c.name for c in inside].count(last.name) != 1:
        return None
    return Norm(last.name, isinstance(last.module, nn.LayerNorm))


def _linear(event: LinearEvent, attention: Attention | None, module: str | None) -> Linear:
    projections = 1
    if attention is not None and event.inputs != event.outputs:
        width = attention.heads * attention.head_channels
        projections = event.outputs // width if event.outputs % width == 0 else 1
    return Linear(event.weight, event.inputs, event.outputs, projections)


def _residual_branches(sums: list[int], events: list[AttentionEvent], mlp: list[LinearEvent]) -> tuple[str, ...]:
    """The branch of each residual sum: the one that ran last before it."""
    labels: list[str] = []
    since = 0
    for at in sums:
        attn = any(since < event.at < at for event in events)
        labels.append("mlp" if any(since < event.at < at for event in mlp) else "attn" if attn else "other")
        since = at
    return tuple(labels)
