"""One pass over images: every vital, block by block, as the tokens and maps go by.

Holds the tokens of one block, the maps of one attention and running means: memory does not grow with images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis.moments import Moments, Spread
from unsmooth.diagnosis.probe import probe
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens, distances, grid_of, prefix_of
from unsmooth.seam.intercept import AttentionCall
from unsmooth.vitals.base import LARGEST_SIDE, MAP_SIDE, Collector, Undefined, Values, Vital

KINDS = {
    "channel": "its attention is over channels, not tokens",
    "opaque": "the axes of its attention map are unknown",
    "windowed": "its attention is over windows",
    "pooled-kv": "its attention has fewer keys than queries",
    "class-query": "its attention has one query",
    "global": "its attention is over all tokens",
}
CACHED = 2**18  # entries of maps that are worked on at a time
NOT_FINITE = "its tokens are not finite (NaN or Inf)"

Series = dict[str, list[Spread | None]]  # by part, then by block


@dataclass
class Measurements:
    """What a pass found: values by vital, part and block, and why there is none where there is none."""

    images: int = 0
    blocks: int = 0
    values: dict[str, Series] = field(default_factory=dict)
    skipped: dict[str, dict[int, str]] = field(default_factory=dict)
    broken: tuple[int, str] | None = None  # the first block, and the branch in it, that gave NaN or Inf


def measure(
    model: nn.Module,
    anatomy: Anatomy,
    batches: Iterable[NamedImages],
    vitals: Iterable[Vital],
    blocks: Iterable[int] | None = None,
    prefix: bool = True,
    progress: Callable[[int], None] | None = None,
    asked: Iterable[str] = (),
) -> Measurements:
    """Run `batches` through a model and measure. `prefix=False` leaves class and register tokens out of token vitals.

    `progress` is told how many images each batch had; `asked` names vitals that are wanted at any cost.
    """
    chosen = set(range(len(anatomy.blocks)) if blocks is None else blocks)
    pass_ = _Pass(anatomy, list(vitals), chosen, prefix, set(asked))
    with eval_mode(model):
        for batch in batches:
            pass_.begin(batch)
            with probe(model, pass_.output, pass_.attention, anatomy, pass_.input, pass_.join):
                run(model, batch_inputs(model, batch.images))
            pass_.end(batch)
            if progress is not None:
                progress(len(batch.images))
    return pass_.result()


def measure_model(model: nn.Module, anatomy: Anatomy, images: Tensor, vitals: Iterable[Vital],
                  blocks: Iterable[int] | None, found: Measurements) -> None:  # fmt: skip
    """Add the vitals of the model itself, the bounds of theory, to what a pass found."""
    chosen = set(range(found.blocks) if blocks is None else blocks)
    for vital in vitals:
        if vital.of != "model":
            continue
        if found.broken is not None:
            found.skipped[vital.key] = dict.fromkeys(sorted(chosen), NOT_FINITE)
            continue
        try:
            with torch.no_grad():
                few = images[: vital.sample].to(next(model.parameters()).device)
                parts = vital.measure(model, anatomy, few, sorted(chosen))
        except UnsmoothError as reason:
            found.skipped[vital.key] = dict.fromkeys(sorted(chosen), str(reason))
            continue
        found.skipped[vital.key] = {}
        for part, by_block in parts.items():
            series: list[Spread | None] = [None] * found.blocks
            for i, values in enumerate(by_block):
                if values is not None and i in chosen:
                    moments = Moments()
                    moments.add(values)
                    series[i] = moments.spread()
            found.values[vital.key][part] = series


def singular_values(x: Tensor) -> Tensor:
    """Singular values (…, min(n, d)), descending, from the smaller Gram matrix in double precision.

    Three times as fast as an SVD, and exact down to 1e−8 of the largest one: below what single precision tokens hold.
    """
    x = x.double()
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(-1)


class _Pass:
    def __init__(self, anatomy: Anatomy, vitals: list[Vital], blocks: set[int], prefix: bool, asked: set[str]) -> None:
        self.anatomy, self.blocks, self.prefix, self.asked = anatomy, blocks, prefix, asked
        self.by_feed: dict[str, list[Vital]] = {}
        for vital in vitals:
            self.by_feed.setdefault(vital.of, []).append(vital)
        self.vitals = vitals
        self.collectors: list[tuple[Vital, Collector]] = [(v, v.measure()) for v in self.by_feed.get("blocks", [])]
        self.moments: dict[tuple[str, str, int], Moments] = {}
        self.skipped: dict[str, dict[int, str]] = {vital.key: {} for vital in vitals}
        self.broken: tuple[int, str] | None = None
        self.seen = 0  # images before this batch

    def begin(self, batch: NamedImages) -> None:
        self.size = batch.images.shape[-2:]
        self.batch = len(batch.images)
        self.first: Tensor | None = None
        self.before: Tensor | None = None
        self.sigma: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}  # decomposed in this block already
        self.per_head: dict[tuple[str, str, int], list[Tensor]] = {}

    # What the probe tells.

    def input(self, block: Block, x: Tensor) -> None:
        if self.first is None:
            self.first = self.tokens(block, x).clone()  # the block may write over its input
        # The block may write over its input.
        keep = block.index in self.blocks and "change" in self.by_feed
        self.before = self.tokens(block, x).clone() if keep else None

    def join(self, block: Block, branch: str, x: Tensor, f: Tensor, out: Tensor) -> None:
        if self.broken is None and not _whole(f):
            where = {"attn": "attention branch", "mlp": "MLP branch"}.get(branch, "a branch")
            self.broken = (block.index, where)
        if block.index not in self.blocks or branch not in ("attn", "mlp"):
            return
        x, f, out = (self.tokens(block, t) for t in (x, f, out))
        for vital, k in self.due("branches"):
            self.take(vital, block, branch, x[:k], f[:k])
        for vital, k in self.due("singular"):
            k = k if vital.site_sample is None else min(k, vital.site_sample - self.seen)
            for site, tokens in ((branch, f), (f"{branch}+skip", out)):
                if site in vital.sites and k > 0:
                    self.take_singular(vital, block, site, tokens[:k])

    def attention(self, block: Block, attention: Attention, call: AttentionCall) -> None:
        if block.index not in self.blocks:
            return
        maps: Tensor | None = None
        for vital, k in self.due("scores", "map", "map_singular", "map_grid", "blocks"):
            if not vital.accepts:
                continue
            if attention.kind not in vital.accepts:
                self.skip(vital, block, KINDS[attention.kind])
                continue
            k = self.affordable(vital, block, attention, k)
            if k < 1:
                continue
            if vital.of == "scores":
                self.take_heads(vital, block, self.by_image(attention, call.scores())[:k])
                continue
            if maps is None:
                maps = self.by_image(attention, call.map())
                finite = _finite(maps)
            if not finite[:k].any():
                self.skip(vital, block, NOT_FINITE)
            elif vital.of == "blocks":
                self.collector(vital).map(block.index, maps[:k].mean(dim=1))  # over windows
            else:
                self.take_heads(vital, block, maps[:k][finite[:k]])

    def output(self, block: Block, x: Tensor) -> None:
        whole = x
        x = self.tokens(block, x)
        if self.broken is None and not _whole(x):
            self.broken = (block.index, "block")
        if block.index not in self.blocks:
            return
        for vital, k in self.due("tokens"):
            self.take(vital, block, "", x[:k])
        for vital, k in self.due("growth"):
            self.take_growth(vital, block, x[:k])
        for vital, k in self.due("change"):
            assert self.before is not None
            if self.before.shape == x.shape:
                self.take(vital, block, "", self.before[:k], x[:k])
            else:
                self.skip(vital, block, "it changes the number or the width of its tokens")
        for vital, k in self.due("singular"):
            self.take_singular(vital, block, "", x[:k])
        for vital, k in self.due("grid"):
            tokens = as_tokens(whole, block.channels)[:, prefix_of(block, self.anatomy) :]
            grid = grid_of(tokens.shape[1], self.size)
            if grid is None:
                self.skip(vital, block, "its tokens are not on a grid")
            else:
                self.take(vital, block, "", tokens[:k].unflatten(1, grid))
        for vital, k in self.due("blocks"):  # images that are not finite too: they are in the order of the labels
            self.collector(vital).tokens(block.index, x[:k], block.class_token and self.prefix)
            if not _whole(x):
                self.skip(vital, block, NOT_FINITE)
        self.sigma.clear()
        self.gather_heads(block)

    # What becomes of it.

    def tokens(self, block: Block, x: Tensor) -> Tensor:
        x = as_tokens(x, block.channels)
        return x if self.prefix else x[:, prefix_of(block, self.anatomy) :]

    def due(self, *feeds: str) -> Iterator[tuple[Vital, int]]:
        """The vitals of these feeds that still want images, and how many of this batch."""
        for feed in feeds:
            for vital in self.by_feed.get(feed, []):
                left = self.batch if vital.sample is None else min(self.batch, vital.sample - self.seen)
                if left > 0:
                    yield vital, left

    def affordable(self, vital: Vital, block: Block, attention: Attention, k: int) -> int:
        """How many images' maps a vital may decompose: fewer of larger ones."""
        side = min(attention.queries, attention.keys)
        if not vital.cubic or side <= MAP_SIDE:
            return k
        if side > LARGEST_SIDE and vital.key not in self.asked:
            size = f"{attention.queries} × {attention.keys}"
            self.skip(vital, block, f"maps of {size} are decomposed only if asked for: vitals={vital.key}")
            return 0
        assert vital.sample is not None
        return min(k, max(1, round(vital.sample * (MAP_SIDE / side) ** 2)) - self.seen)

    def collector(self, vital: Vital) -> Collector:
        return next(collector for known, collector in self.collectors if known is vital)

    def by_image(self, attention: Attention, a: Tensor) -> Tensor:
        """Maps as (B, windows, H, n, m)."""
        if attention.head_axis != -3 and a.ndim >= -attention.head_axis:
            a = a.movedim(attention.head_axis, -3)
        a = a if a.ndim >= 4 else a.unsqueeze(-3)
        return a.reshape(self.batch, -1, *a.shape[-3:])

    def take_singular(self, vital: Vital, block: Block, site: str, tokens: Tensor) -> None:
        if site not in vital.sites:
            return
        # The last sum of a block mostly is its output: the same memory, unchanged since.
        version = 0 if tokens.is_inference() else tokens._version
        key = (tokens.data_ptr(), version, len(tokens))
        if key not in self.sigma:
            finite = _finite(tokens)
            # The tokens are held too, so that no others take their place in memory.
            self.sigma[key] = tokens, singular_values(tokens[finite])
        self.take(vital, block, site, self.sigma[key][1])

    def take_growth(self, vital: Vital, block: Block, x: Tensor) -> None:
        assert self.first is not None
        if self.first.shape[1:] != x.shape[1:]:
            self.skip(vital, block, "it changes the number or the width of its tokens")
        else:
            self.take(vital, block, "", x, self.first[: len(x)])

    def take_heads(self, vital: Vital, block: Block, a: Tensor) -> None:
        """Measure the maps of one attention, (B, windows, H, n, m); a block's heads are put together at its end."""
        images, windows = a.shape[:2]
        arguments: tuple[Tensor, ...] = (a.flatten(0, 1),)
        try:
            if vital.of == "map_singular":
                arguments = (singular_values(arguments[0]),)
            elif vital.of == "map_grid":
                start = prefix_of(block, self.anatomy)
                patches = arguments[0][..., start:, start:]
                grid = grid_of(patches.shape[-1], self.size)
                if grid is None:
                    raise Undefined("its tokens are not on a grid")
                arguments = (patches, distances(grid, self.size).to(patches.device))
            # A few maps at a time, which the processor's cache can hold.
            step = max(1, CACHED // arguments[0][0].numel())
            found = [_named(vital.measure(part, *arguments[1:])) for part in arguments[0].split(step)]
        except Undefined as reason:
            self.skip(vital, block, str(reason))
            return
        for part in found[0]:
            values = torch.cat([piece[part] for piece in found])
            by_image = values.unflatten(0, (images, windows)).mean(dim=1)
            self.per_head.setdefault((vital.key, part, block.index), []).append(by_image)

    def gather_heads(self, block: Block) -> None:
        for (key, part, index), found in self.per_head.items():
            lengths = {values.shape[2:] for values in found}
            if len(lengths) > 1:
                self.skipped[key][index] = "its attentions have maps of several sizes"
                continue
            heads = torch.cat(found, dim=1)
            if heads.ndim == 2:
                self.note(key, part, index, heads.mean(dim=1))
                self.note(key, f"{part}.heads".lstrip("."), index, heads)
            else:
                self.note(key, part, index, heads)
        self.per_head.clear()

    def take(self, vital: Vital, block: Block, site: str, *arguments: Tensor) -> None:
        finite = torch.stack([_finite(a) for a in arguments]).all(dim=0)
        if not finite.all():
            if not finite.any():
                self.skip(vital, block, NOT_FINITE)
                return
            arguments = tuple(a[finite] for a in arguments)
        if not len(arguments[0]):
            self.skip(vital, block, NOT_FINITE)
            return
        try:
            found = vital.measure(*arguments)
        except Undefined as reason:
            self.skip(vital, block, str(reason))
            return
        for part, values in _named(found).items():
            self.note(vital.key, ".".join(word for word in (site, part) if word), block.index, values)

    def note(self, key: str, part: str, block: int, values: Tensor) -> None:
        self.moments.setdefault((key, part, block), Moments()).add(values)

    def skip(self, vital: Vital, block: Block, reason: str) -> None:
        self.skipped[vital.key][block.index] = reason

    def end(self, batch: NamedImages) -> None:
        for vital, collector in self.collectors:
            left = self.batch if vital.sample is None else min(self.batch, vital.sample - self.seen)
            if left > 0:
                labels = None if batch.labels is None else batch.labels[:left]
                for block, parts in collector.end_of_batch(labels).items():
                    for part, values in parts.items():
                        self.note(vital.key, part, block, values)
        self.seen += self.batch

    def result(self) -> Measurements:
        depth = len(self.anatomy.blocks)
        out = Measurements(self.seen, depth, {v.key: {} for v in self.vitals}, self.skipped, self.broken)
        for (key, part, block), moments in self.moments.items():
            out.values[key].setdefault(part, [None] * depth)[block] = moments.spread()
        for vital, collector in self.collectors:
            try:
                for block, parts in collector.final().items():
                    for part, value in parts.items():
                        out.values[vital.key].setdefault(part, [None] * depth)[block] = Spread(value, images=self.seen)
            except Undefined as reason:
                self.skipped[vital.key].update(dict.fromkeys(sorted(self.blocks), str(reason)))
        for vital in self.vitals:
            if vital.of != "model":
                self.explain(vital, out)
        return out

    def explain(self, vital: Vital, out: Measurements) -> None:
        """Where a vital has no value and no reason yet, find the reason: nothing is silent."""
        series = out.values[vital.key].get(vital.main, [None] * out.blocks)
        reasons = self.skipped[vital.key]
        for i in self.blocks:
            if series[i] is not None:
                reasons.pop(i, None)
            elif i not in reasons:
                block = self.anatomy.blocks[i]
                reasons[i] = (
                    block.reasons.get("attn", "it has no softmax attention")
                    if vital.accepts and not block.attentions
                    else "it has no residual sum of that branch"
                    if vital.of == "branches"
                    else "there is no block before it to compare with"
                    if vital.of == "blocks"
                    else "it is undefined here (0/0)"
                )


def _finite(x: Tensor) -> Tensor:
    """Which images have finite entries alone."""
    flat = x.flatten(1)
    quick = flat.sum(dim=1).isfinite()  # one fast pass; sums of float16 overflow, so what fails is looked at again
    return quick if quick.all() else flat.isfinite().all(dim=1)


def _whole(x: Tensor) -> bool:
    return bool(_finite(x).all())


def _named(found: Values) -> dict[str, Tensor]:
    return {"": found} if isinstance(found, Tensor) else found
