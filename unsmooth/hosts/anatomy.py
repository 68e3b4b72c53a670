"""The anatomy of a host: its blocks, their branches, attention, residual sums and patch embedding.

It holds names and sizes only, no modules: it survives copies and serialises. `unsmooth.hosts.examine` derives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unsmooth.errors import NotApplicable
from unsmooth.hosts.patch_embed import HookPoint, PatchEmbedding
from unsmooth.seam.intercept import UNKNOWN, MapLayout


@dataclass(frozen=True)
class Attention:
    """One attention of a block. `core` is the name of the module that runs it, `kind` the label of its map."""

    core: str
    kind: str  # global, windowed, pooled-kv, pooled-q, class-query, channel or opaque
    via: str  # sdpa (fused) or softmax (explicit)
    heads: int
    head_axis: int  # counted from the end
    queries: int
    keys: int
    head_channels: int
    value_channels: int
    windows: int = 1  # maps per image
    product: int = 0  # the product in the core that computes the scores, counted from 1; 0: a fused kernel
    scale_q: float = 1.0
    scale_k: float = 1.0
    scale_after: float = 1.0
    nonstandard_scores: str = ""  # why the scores are not a plain scaled dot product
    mixed: bool = False  # whether a linear layer or a convolution mixes its maps over heads
    inputs: int = 0  # channels of the tokens that its first linear layer reads, one per query; 0: there is none
    layout: MapLayout = UNKNOWN  # how the host writes it
    order: int = 0  # among the attentions of its core, in the order in which they run
    siblings: int = 1  # attentions that its core runs, with this one


@dataclass(frozen=True)
class Linear:
    """A linear layer of a block, by the name of its weight. `projections` is 3 if it computes q, k and v at once."""

    weight: str
    inputs: int
    outputs: int
    projections: int = 1


@dataclass(frozen=True)
class Norm:
    """The norm that a branch reads its tokens from; `layer`: it is an `nn.LayerNorm`."""

    module: str
    layer: bool


@dataclass(frozen=True)
class Branch:
    """Attention or MLP branch. Hook points that the host does not have are None, with a reason."""

    module: str | None  # the module that is the whole branch, if one is
    channels: int
    hidden: int
    linears: tuple[Linear, ...]
    front: HookPoint | None
    mid: HookPoint | None
    end: HookPoint | None
    reasons: dict[str, str] = field(default_factory=dict)
    norm: Norm | None = None  # the norm that the branch reads its tokens from

    def hook_point(self, position: str) -> HookPoint:
        point: HookPoint | None = getattr(self, position)
        if point is None:
            raise NotApplicable(self.reasons.get(position, f"its branch has no {position} position"))
        return point


@dataclass(frozen=True)
class Block:
    """One block. `reasons` says why a branch is None.

    A block with several attentions has `parts`: the same block as each of them sees it, with its own branches.
    """

    index: int
    name: str
    tokens: int
    channels: int
    class_token: bool
    attentions: tuple[Attention, ...]
    attn: Branch | None
    mlp: Branch | None
    residuals: tuple[str, ...]  # the branch of each residual sum: attn, mlp or other
    reasons: dict[str, str] = field(default_factory=dict)
    parts: tuple[Block, ...] = ()
    # A block may be a list of modules that another module, its holder, runs: then these are set.
    points: dict[str, HookPoint] = field(default_factory=dict)
    holder: str = ""

    def point(self, side: str) -> HookPoint:
        """The hook point of the tokens that enter ("input") or leave ("output") the block."""
        return self.points.get(side) or HookPoint(self.name, side)

    def branch(self, name: str) -> Branch:
        """The branch `attn` or `mlp`; raises `NotApplicable` if it has none."""
        branch: Branch | None = getattr(self, name)
        if branch is None:
            raise NotApplicable(self.reasons.get(name, f"it has no {name} branch"))
        return branch

    def attention(self) -> Attention:
        """The attention of the block; raises `NotApplicable` unless there is exactly one."""
        if not self.attentions:
            raise NotApplicable(self.reasons.get("attn", "it has no softmax attention"))
        if len(self.attentions) > 1:
            raise NotApplicable(f"it has {len(self.attentions)} attentions, not one")
        return self.attentions[0]


@dataclass(frozen=True)
class Anatomy:
    """The blocks of a host and its patch embedding. `skipped` names attention that is not treated, with the reason."""

    blocks: tuple[Block, ...]
    patch_embed: PatchEmbedding | None
    skipped: tuple[str, ...] = ()
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the residual sums of the holders of list blocks
    # The modules whose residual sums are all `x + branch`, where x is the input of the module or the sum before.
    stream_on_left: frozenset[str] = frozenset()

    def residual_branches(self, module: str) -> tuple[str, ...]:
        """The branch of each residual sum that a module runs: a block, or the holder of several."""
        if module in self.sums:
            return self.sums[module]
        return next(block.residuals for block in self.blocks if block.name == module)

    def block_of(self, core: str, order: int = 0) -> Block:
        """The block, or the part of a block, of one attention."""
        views = (view for block in self.blocks for view in block.parts or (block,))
        return next(v for v in views if any((a.core, a.order) == (core, order) for a in v.attentions))

    def layouts(self, core: str) -> tuple[MapLayout, ...]:
        """How the module `core` writes its attentions, in the order in which they run."""
        attentions = {a.order: a for block in self.blocks for a in block.attentions if a.core == core}
        count = max((a.siblings for a in attentions.values()), default=0)
        return tuple(attentions[order].layout if order in attentions else UNKNOWN for order in range(count))
