"""One pass over the images that measures every vital, block by block.

It keeps the tokens of one block, the maps of one attention and running means, so that memory does not grow with the
number of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis.moments import Moments, finite_or_none
from unsmooth.diagnosis.probe import probe
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import run_images
from unsmooth.hosts.modes import eval_mode
from unsmooth.hosts.token_layout import as_tokens, distances, extent_of, grid_of, on_planes, prefix_of
from unsmooth.results.measured import Series, Spread
from unsmooth.seam.intercept import AttentionCall
from unsmooth.utils.precision import full, without_autocast
from unsmooth.utils.processes import ALONE, Processes
from unsmooth.utils.threads import one_thread
from unsmooth.vitals.base import (
    LARGEST_MAPS,
    LARGEST_SIDE,
    MAP_SIDE,
    MAPS_DEFAULT,
    Collector,
    Undefined,
    Values,
    Vital,
)

UNSUPPORTED = {
    "channel": "its attention is over channels, not tokens",
    "opaque": "the axes of its attention map are unknown",
    "windowed": "its attention is over windows",
    "pooled-kv": "its attention has fewer keys than queries",
    "pooled-q": "its attention has more keys than queries",
    "class-query": "its attention has one query",
    "global": "its attention is over all tokens",
}
CHUNK = 2**18  # map entries per call of a vital, which the processor's cache can hold
NOT_FINITE = "its tokens contain NaN or infinity"


@dataclass
class Measurements:
    """Values by vital, part and block, and the reason where a block has no value."""

    images: int = 0
    blocks: int = 0
    values: dict[str, dict[str, Series]] = field(default_factory=dict)
    skipped: dict[str, dict[int, str]] = field(default_factory=dict)
    broken: tuple[int, str] | None = None  # the first block with NaN or infinity, and the branch in it
    samples: dict[str, int | None] = field(default_factory=dict)  # maximum number of images of each vital
    packed: bool = False  # images are run one by one, because the host joins those of a batch


def measure(
    model: nn.Module,
    anatomy: Anatomy,
    batches: Iterable[NamedImages],
    vitals: Iterable[Vital],
    blocks: Iterable[int] | None = None,
    prefix: bool = True,
    progress: Callable[[int], None] | None = None,
    requested: Iterable[str] = (),
    most: int | None = None,
    processes: Processes = ALONE,
) -> Measurements:
    """Run batches through a model and measure vitals.

    Args:
        model: The model. It is not changed.
        anatomy: Its anatomy.
        batches: Batches of images.
        vitals: Vitals to measure; those of the model itself are skipped.
        blocks: Indices of blocks to measure. Default: all.
        prefix: Include class and register tokens in token vitals.
        progress: Called with the number of images of each batch.
        requested: Vitals that the caller named. These are measured on more images, and even where they are expensive.
        most: Maximum number of images whose maps and decompositions are computed, for vitals that are not requested.
        processes: Processes that measure different batches of the same images. The primary one returns the result of
            all of them, the others only their own.
    """
    indices = set(range(len(anatomy.blocks)) if blocks is None else blocks)
    pass_ = _Pass(anatomy, list(vitals), indices, prefix, set(requested), most)
    with eval_mode(model):
        for batch in batches:
            try:
                pass_.run(model, batch)
            except _Packed:
                for i in range(len(batch.images)):
                    pass_.run(model, batch.part(slice(i, i + 1)))
            if progress is not None:
                progress(len(batch.images))
    if processes.world > 1:
        for other in processes.collect(pass_.kept())[1:]:
            pass_.merge(other)
    return pass_.result()


class _Packed(Exception):
    """The host joins the images of a batch to one sequence, as Pixtral does."""


def measure_model(model: nn.Module, anatomy: Anatomy, images: Tensor, vitals: Iterable[Vital],
                  blocks: Iterable[int] | None, measured: Measurements) -> None:  # fmt: skip
    """Add the vitals of the model itself (bounds and the Jacobian spectrum) to the measurements of a pass."""
    indices = sorted(range(measured.blocks) if blocks is None else blocks)
    for vital in vitals:
        if vital.of != "model":
            continue
        if measured.broken is not None:
            measured.skipped[vital.key] = dict.fromkeys(indices, NOT_FINITE)
            continue
        try:
            with torch.no_grad():
                sample = images[: 1 if measured.packed else vital.sample].to(next(model.parameters()).device)
                parts = vital.measure(model, anatomy, sample, indices)
        except UnsmoothError as reason:
            measured.skipped[vital.key] = dict.fromkeys(indices, str(reason))
            continue
        measured.skipped[vital.key] = {}
        for part, by_block in parts.items():
            series: Series = [None] * measured.blocks
            for i, values in enumerate(by_block):
                if values is not None and i in indices:
                    moments = Moments()
                    moments.add(values)
                    series[i] = moments.spread()
            measured.values[vital.key][part] = series


def singular_values(x: Tensor) -> Tensor:
    """Singular values (…, min(n, d)), descending, from the smaller Gram matrix in double precision.

    This is three times as fast as an SVD and exact down to 1e−8 of the largest value, below the resolution of tokens in
    single precision.
    """
    x = x.double()
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    with one_thread():
        return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(-1)


def _singular_or_nan(x: Tensor) -> Tensor:
    """Singular values of each image, NaN for one that is not finite."""
    finite = _finite(x)
    if finite.all():
        return singular_values(x)
    values = torch.full((len(x), min(x.shape[-2:])), float("nan"), dtype=torch.float64, device=x.device)
    values[finite] = singular_values(x[finite])
    return values


class _Kept(NamedTuple):
    """Measurements of the batches of one process."""

    moments: dict[tuple[str, str, int], Moments]
    collectors: list[Collector]
    skipped: dict[str, dict[int, str]]
    broken: tuple[int, str] | None
    broken_at: int
    images: int
    packed: bool


class _Pass:
    """State of one pass: callbacks of the probe above, helpers that call vitals below."""

    def __init__(
        self,
        anatomy: Anatomy,
        vitals: list[Vital],
        blocks: set[int],
        prefix: bool,
        requested: set[str],
        most: int | None,
    ) -> None:
        self.anatomy, self.blocks, self.prefix, self.requested = anatomy, blocks, prefix, requested
        self.by_input: dict[str, list[Vital]] = {}
        for vital in vitals:
            self.by_input.setdefault(vital.of, []).append(vital)
        self.vitals, self.most = vitals, most
        self.collectors: list[tuple[Vital, Collector]] = [(v, v.measure()) for v in self.by_input.get("blocks", [])]
        self.moments: dict[tuple[str, str, int], Moments] = {}
        self.skipped: dict[str, dict[int, str]] = {vital.key: {} for vital in vitals}
        self.broken: tuple[int, str] | None = None
        self.broken_at = 0  # images before the batch that showed it
        self.images_done = 0  # in earlier batches of this process
        self.position = 0  # in earlier batches of all processes
        self.packed = False

    def run(self, model: nn.Module, batch: NamedImages) -> None:
        """Run a batch. Raises `_Packed` at the first block, before anything is measured."""
        self.begin_batch(batch)
        with probe(model, self.on_output, self.on_attention, self.anatomy, self.on_input, self.on_residual):
            run_images(model, batch.images)
        self.end_batch(batch)

    def begin_batch(self, batch: NamedImages) -> None:
        self.size = extent_of(batch.images, self.anatomy)
        self.batch = len(batch.images)
        self.position = self.images_done if batch.before is None else batch.before
        self.first: Tensor | None = None
        self.before: Tensor | None = None
        self.decomposed: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # in this block
        self.per_head: dict[tuple[str, str, int], list[Tensor]] = {}

    # Callbacks of the probe.

    def on_input(self, block: Block, x: Tensor) -> None:
        if len(x) < self.batch:
            self.packed = True
            raise _Packed
        # Copies, because the block may write over its input.
        if self.first is None:
            self.first = self.tokens(block, x).clone()
        needed = block.index in self.blocks and "change" in self.by_input
        self.before = self.tokens(block, x).clone() if needed else None

    def on_residual(self, block: Block, branch: str, x: Tensor, f: Tensor, out: Tensor) -> None:
        if self.broken is None and not _all_finite(f):
            where = {"attn": "attention branch", "mlp": "MLP branch"}.get(branch, "a branch")
            self.broken, self.broken_at = (block.index, where), self.position
        if block.index not in self.blocks or branch not in ("attn", "mlp"):
            return
        x, f, out = (self.tokens(block, t) for t in (x, f, out))
        for vital, k in self.due("branches"):
            self.measure(vital, block, branch, k, x, f)
        for vital, k in self.due("singular"):
            k = self.rest(self.limited(vital, vital.site_images(vital.key in self.requested)), k)
            for site, tokens in ((branch, f), (f"{branch}+skip", out)):
                if site in vital.sites and k > 0:
                    last = site == f"{block.residuals[-1]}+skip"  # usually the block's output, which is decomposed next
                    self.measure_singular(vital, block, site, tokens, k, self.decompositions() if last else k)

    def on_attention(self, block: Block, attention: Attention, call: AttentionCall) -> None:
        if block.index not in self.blocks:
            return
        maps: Tensor | None = None
        for vital, k in self.due("scores", "map", "map_singular", "map_grid", "map_values", "values", "blocks"):
            if not vital.accepts:
                continue
            if attention.kind not in vital.accepts:
                self.skip(vital, block, UNSUPPORTED[attention.kind])
                continue
            k = self.affordable(vital, block, attention, k)
            if k < 1:
                continue
            if vital.of == "scores":
                self.measure_heads(vital, block, self.by_image(attention, call.scores())[:k])
                continue
            if maps is None:
                maps = self.by_image(attention, call.map())
                finite = _finite(maps)
            if not finite[:k].any():
                self.skip(vital, block, NOT_FINITE)
            elif vital.of == "blocks":
                with without_autocast(maps):
                    self.collector(vital).map(block.index, maps[:k].mean(dim=1))  # over windows
            elif vital.of in ("map_values", "values"):
                v = self.values(attention, call.v, maps)
                if v is None:
                    self.skip(vital, block, "its values have another layout than its maps")
                    continue
                both = (finite & _finite(v))[:k]
                if not both.any():
                    self.skip(vital, block, NOT_FINITE)
                    continue
                given = (maps, v) if vital.of == "map_values" else (v,)
                self.measure_heads(vital, block, *(x[:k][both] for x in given))
            else:
                self.measure_heads(vital, block, maps[:k] if finite[:k].all() else maps[:k][finite[:k]])

    def on_output(self, block: Block, x: Tensor) -> None:
        with_prefix = _with_doubles(x)
        x = self.tokens(block, x)
        if self.broken is None and not _all_finite(x):
            self.broken, self.broken_at = (block.index, "block"), self.position
        if block.index not in self.blocks:
            return
        for vital, k in self.due("tokens"):
            self.measure(vital, block, "", k, x)
        for vital, k in self.due("growth"):
            assert self.first is not None
            self.measure_pair(vital, block, x, self.first, k)
        for vital, k in self.due("change"):
            assert self.before is not None
            self.measure_pair(vital, block, self.before, x, k)
        for vital, k in self.due("singular"):
            self.measure_singular(vital, block, "", x, k, k)
        for vital, k in self.due("grid"):
            patches = as_tokens(with_prefix, block.channels)[:, prefix_of(block, self.anatomy) :]
            grid = grid_of(patches.shape[1], self.size)
            if grid is None:
                self.skip(vital, block, "its tokens are not on a grid")
            else:
                self.measure(vital, block, "", k, on_planes(patches, grid))
        for vital, k in self.due("blocks"):  # all images, finite or not, because labels follow their order
            whole = x.reshape(self.batch, -1, x.shape[-1])  # the pieces of an image together
            with without_autocast(x):
                self.collector(vital).tokens(block.index, whole[:k], block.class_token and self.prefix)
            if not _all_finite(x):
                self.skip(vital, block, NOT_FINITE)
        self.decomposed.clear()
        self.gather_heads(block)

    # Which tokens, vitals and images.

    def tokens(self, block: Block, x: Tensor) -> Tensor:
        x = _with_doubles(full(as_tokens(x, block.channels)))
        return x if self.prefix else x[:, prefix_of(block, self.anatomy) :]

    def due(self, *inputs: str) -> Iterator[tuple[Vital, int]]:
        """Vitals of these inputs whose sample is not complete, and how many images of this batch they take."""
        for name in inputs:
            for vital in self.by_input.get(name, []):
                count = self.images_left(vital)
                if count > 0:
                    yield vital, count

    def images_left(self, vital: Vital) -> int:
        return self.rest(self.sample(vital), self.batch)

    def sample(self, vital: Vital) -> int | None:
        """Maximum number of images of a vital."""
        return self.limited(vital, vital.images(vital.key in self.requested))

    def limited(self, vital: Vital, sample: int | None) -> int | None:
        if self.most is None or vital.key in self.requested:
            return sample
        return vital.quick_sample if sample is None else min(sample, self.most)

    def rest(self, sample: int | None, k: int) -> int:
        """How many of the next `k` images belong to a sample."""
        return k if sample is None else min(k, sample - self.position)

    def affordable(self, vital: Vital, block: Block, attention: Attention, k: int) -> int:
        """Number of images whose maps a vital may compute or decompose: fewer for larger maps."""
        if map_entries(attention) > LARGEST_MAPS and vital.key not in self.requested:
            size = f"{map_entries(attention) / 2**28:,.0f} GiB per image"
            self.skip(vital, block, f"its maps ({size}) are computed only on request: vitals={vital.key}")
            return 0
        side = min(attention.queries, attention.keys)
        if side <= MAP_SIDE or (not vital.cubic and vital.key in self.requested):
            return k
        if not vital.cubic:
            return self.rest(max(1, round(MAPS_DEFAULT * MAP_SIDE / side)), k)  # entries grow as the side does
        if side > LARGEST_SIDE and vital.key not in self.requested:
            size = f"{attention.queries} × {attention.keys}"
            self.skip(vital, block, f"maps of {size} are decomposed only on request: vitals={vital.key}")
            return 0
        sample = self.sample(vital)
        assert sample is not None
        return self.rest(max(1, round(sample * (MAP_SIDE / side) ** 2)), k)

    def collector(self, vital: Vital) -> Collector:
        return next(collector for known, collector in self.collectors if known is vital)

    def by_image(self, attention: Attention, a: Tensor) -> Tensor:
        """Maps as (B, windows, H, n, m)."""
        a = _with_doubles(a)
        if attention.head_axis != -3 and a.ndim >= -attention.head_axis:
            a = a.movedim(attention.head_axis, -3)
        a = a if a.ndim >= 4 else a.unsqueeze(-3)
        return a.reshape(self.batch, -1, *a.shape[-3:])

    def values(self, attention: Attention, v: Tensor, maps: Tensor) -> Tensor | None:
        """Values as (B, windows, H, m, c), for maps (B, windows, H, n, m); None if their axes are others."""
        if v.ndim < 3 or v.numel() % (self.batch * v.shape[-1] * maps.shape[-1]):
            return None
        v = self.by_image(attention, v)
        if v.shape[2] < maps.shape[2] and maps.shape[2] % v.shape[2] == 0:  # grouped queries share their values
            v = v.repeat_interleave(maps.shape[2] // v.shape[2], dim=2)
        return v if v.shape[:3] == maps.shape[:3] and v.shape[3] == maps.shape[4] else None

    # Calls of vitals.

    def measure_singular(self, vital: Vital, block: Block, site: str, tokens: Tensor, k: int, ahead: int) -> None:
        """Measure `k` images. `ahead` of them are decomposed if none are yet; no matrix is decomposed twice."""
        if site not in vital.sites:
            return
        # The last sum of a block usually is its output: the same memory, unchanged since.
        key = (tokens.data_ptr(), 0 if tokens.is_inference() else tokens._version)
        pieces = self.pieces(tokens)
        if key not in self.decomposed or len(self.decomposed[key][1]) < k * pieces:
            # The tokens are kept too, so that no others take their place in memory.
            self.decomposed[key] = tokens, _singular_or_nan(tokens[: max(k, ahead) * pieces])
        self.measure(vital, block, site, k, self.decomposed[key][1], pieces=pieces)

    def decompositions(self) -> int:
        """Number of images of this batch whose block outputs are decomposed."""
        return max((k for _, k in self.due("singular")), default=0)

    def measure_pair(self, vital: Vital, block: Block, x: Tensor, y: Tensor, k: int) -> None:
        if x.shape == y.shape:
            self.measure(vital, block, "", k, x, y)
        else:
            self.skip(vital, block, "it changes the number or the width of its tokens")

    def measure_heads(self, vital: Vital, block: Block, *given: Tensor) -> None:
        """Measure maps or values of one attention, (B, windows, H, …). `gather_heads` joins the heads of a block."""
        images, windows = given[0].shape[:2]
        arguments = tuple(a.flatten(0, 1) for a in given)
        shared: tuple[Tensor, ...] = ()
        try:
            if vital.of == "map_singular":
                arguments = (singular_values(arguments[0]),)
            elif vital.of == "map_grid":
                start = prefix_of(block, self.anatomy)
                patches = arguments[0][..., start:, start:]
                grid = grid_of(patches.shape[-1], self.size)
                if grid is None:
                    raise Undefined("its tokens are not on a grid")
                arguments, shared = (patches,), (distances(grid, self.size).to(patches.device),)
            step = max(1, CHUNK // arguments[0][0].numel())
            pieces = zip(*(a.split(step) for a in arguments), strict=True)
            with without_autocast(arguments[0]):
                chunks = [_named(vital.measure(*piece, *shared)) for piece in pieces]
        except Undefined as reason:
            self.skip(vital, block, str(reason))
            return
        for part in chunks[0]:
            values = torch.cat([chunk[part] for chunk in chunks])
            by_image = values.unflatten(0, (images, windows)).mean(dim=1)
            self.per_head.setdefault((vital.key, part, block.index), []).append(by_image)

    def gather_heads(self, block: Block) -> None:
        """Add the heads of all attentions of a block to the running means."""
        for (key, part, index), values in self.per_head.items():
            if len({v.shape[2:] for v in values}) > 1:
                self.skipped[key][index] = "its attentions have maps of different sizes"
                continue
            heads = torch.cat(values, dim=1)
            if heads.ndim == 2:
                self.add(key, part, index, heads.nanmean(dim=1))  # a head may have no value, as one without sinks
                self.add(key, f"{part}.heads".lstrip("."), index, heads)
            else:
                self.add(key, part, index, heads)
        self.per_head.clear()

    def measure(
        self, vital: Vital, block: Block, site: str, k: int, *arguments: Tensor, pieces: int | None = None
    ) -> None:
        """Measure the first `k` images of a batch whose arguments are finite. The pieces of an image are averaged."""
        pieces = self.pieces(arguments[0]) if pieces is None else pieces
        arguments = tuple(a[: k * pieces] for a in arguments)
        finite = torch.stack([_finite(a) for a in arguments]).all(dim=0)
        if pieces > 1:
            finite = finite.unflatten(0, (-1, pieces)).all(dim=1).repeat_interleave(pieces)
        if not finite.any():
            self.skip(vital, block, NOT_FINITE)
            return
        try:
            with without_autocast(finite):
                values = vital.measure(*(arguments if finite.all() else (a[finite] for a in arguments)))
        except Undefined as reason:
            self.skip(vital, block, str(reason))
            return
        for part, value in _named(values).items():
            value = value.unflatten(0, (-1, pieces)).nanmean(dim=1) if pieces > 1 else value
            self.add(vital.key, ".".join(name for name in (site, part) if name), block.index, value)

    def pieces(self, x: Tensor) -> int:
        """Sequences per image: several in hosts that cut an image into pieces before their blocks (TNT, MobileViT)."""
        return max(1, len(x) // self.batch)

    def add(self, key: str, part: str, block: int, values: Tensor) -> None:
        self.moments.setdefault((key, part, block), Moments()).add(values)

    def skip(self, vital: Vital, block: Block, reason: str) -> None:
        self.skipped[vital.key][block.index] = reason

    # Results.

    def end_batch(self, batch: NamedImages) -> None:
        for vital, collector in self.collectors:
            count = self.images_left(vital)
            if count > 0:
                labels = None if batch.labels is None else batch.labels[:count]
                for block, parts in collector.end_of_batch(labels).items():
                    for part, values in parts.items():
                        self.add(vital.key, part, block, values)
        self.images_done += self.batch

    def kept(self) -> _Kept:
        collectors = [collector for _, collector in self.collectors]
        return _Kept(self.moments, collectors, self.skipped, self.broken, self.broken_at, self.images_done, self.packed)

    def merge(self, other: _Kept) -> None:
        """Add what another process has measured on other batches."""
        for key, moments in other.moments.items():
            self.moments.setdefault(key, Moments()).merge(moments)
        for (_, own), collector in zip(self.collectors, other.collectors, strict=True):
            own.merge(collector)
        for name, reasons in other.skipped.items():
            self.skipped[name] |= reasons
        if other.broken is not None and (self.broken is None or other.broken_at < self.broken_at):
            self.broken, self.broken_at = other.broken, other.broken_at
        self.images_done += other.images
        self.packed |= other.packed

    def result(self) -> Measurements:
        depth = len(self.anatomy.blocks)
        measured = Measurements(
            self.images_done, depth, {v.key: {} for v in self.vitals}, self.skipped, self.broken,
            {v.key: self.sample(v) for v in self.vitals}, self.packed,
        )  # fmt: skip
        for (key, part, block), moments in self.moments.items():
            measured.values[key].setdefault(part, [None] * depth)[block] = moments.spread()
        for vital, collector in self.collectors:
            images = min(self.images_done, self.sample(vital) or self.images_done)
            try:
                for block, parts in collector.final().items():
                    for part, value in parts.items():
                        spread = Spread(finite_or_none(value), images=images)
                        measured.values[vital.key].setdefault(part, [None] * depth)[block] = spread
            except Undefined as reason:
                self.skipped[vital.key].update(dict.fromkeys(sorted(self.blocks), str(reason)))
        for vital in self.vitals:
            if vital.of != "model":
                self.explain(vital, measured)
        return measured

    def explain(self, vital: Vital, measured: Measurements) -> None:
        """Add a reason for every block without a value."""
        series = measured.values[vital.key].get(vital.main, [None] * measured.blocks)
        reasons = self.skipped[vital.key]
        for i in self.blocks:
            if series[i] is not None:
                reasons.pop(i, None)
            elif i not in reasons:
                reasons[i] = self.reason(vital, self.anatomy.blocks[i])

    def reason(self, vital: Vital, block: Block) -> str:
        if vital.accepts and not block.attentions:
            return block.reasons.get("attn", "it has no softmax attention")
        if vital.of == "branches":
            return "it has no residual sum of that branch"
        if vital.of == "blocks":
            return "there is no previous block to compare with"
        return vital.undefined


def map_entries(attention: Attention) -> int:
    """Entries of the maps of one image, of all heads and windows."""
    return attention.windows * attention.heads * attention.queries * attention.keys


def _with_doubles(x: Tensor) -> Tensor:
    """`x` on a device that has double precision, which vitals need: Apple's GPUs do not."""
    return x.cpu() if x.device.type == "mps" else x


def _finite(x: Tensor) -> Tensor:
    """Which images have only finite entries."""
    flat = x.flatten(1)
    quick = flat.sum(dim=1).isfinite()  # one fast pass; sums of float16 may overflow, so failures are checked again
    return quick if quick.all() else flat.isfinite().all(dim=1)


def _all_finite(x: Tensor) -> bool:
    return bool(_finite(x).all())


def _named(values: Values) -> dict[str, Tensor]:
    return {"": values} if isinstance(values, Tensor) else values
