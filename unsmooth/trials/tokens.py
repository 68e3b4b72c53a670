"""Token scores of the final models: each run is scored once, and arms are compared by block, seed and query image."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.resampling import image_values
from unsmooth.evaluation.settings import EvaluateSettings, TokenOptions
from unsmooth.evaluation.token_data import LabelData, MaskData, open_token_data
from unsmooth.evaluation.token_scores import token_scores
from unsmooth.results.evaluation import TokenScores
from unsmooth.results.trial import ArmTokens, BlockSpread, Difference, TrialProbe, TrialTokens
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.measure import difference_over, spread
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.trials.statistics import Array
from unsmooth.utils.files import write
from unsmooth.utils.options import to_json
from unsmooth.utils.text import blocks_text

NO_MODEL = "no model was kept"
OTHER_IMAGES = "other images could be read than in the first run. Delete its tokens.npz to score it again"

Key = tuple[str, str, int]  # kind of token, probe and block
Values = Sequence[Array | None]  # a value per query image, by seed


@dataclass(frozen=True)
class ScoredRun:
    """Token scores of the final model of a run, and by kind of token, probe and block a value per query image."""

    scores: TokenScores
    values: dict[Key, Array]


Scored = list[list[ScoredRun | None]]  # by arm and seed


def check_tokens(runs: TrialRuns) -> None:
    """Open the data of token scores and read its first images, so that a mistake is found before the first run."""
    if runs.settings.tokens is not None:
        few = dataclasses.replace(_settings(runs), memory_images=2, limit=2)
        source = _open(runs, few)
        for training in (True, False):
            next(source.batches(training))


def measure_tokens(runs: TrialRuns, confidence: float, report_stage: OnStage) -> TrialTokens | None:
    """Scores of the tokens of every run, and paired differences from the first arm. None if no data are given.

    Scores are stored in the run directory and reused.
    """
    if runs.settings.tokens is None:
        return None
    settings = _settings(runs)
    source = _open(runs, settings)
    origin = json.dumps([to_json(settings), source.memory, source.queries])
    scored: Scored = []
    missing: dict[str, str] = {}
    for arm in runs.arms:
        reasons: dict[str, list[int]] = {}
        scored.append([_run(arm, seed, runs, settings, origin, reasons, report_stage) for seed in runs.seeds])
        first = next((run.scores for by_seed in scored for run in by_seed if run is not None), None)
        for seed, run in enumerate(scored[-1]):
            if run is not None and first is not None and not _same_images(run.scores, first):
                scored[-1][seed] = None
                reasons.setdefault(OTHER_IMAGES, []).append(seed)
        if reasons:
            missing[arm.name] = "; ".join(_seeds(text, seeds, arm, runs) for text, seeds in reasons.items())
            report_stage(f"tokens of {arm.name}: {missing[arm.name]}")
    some = [run.scores for by_seed in scored for run in by_seed if run is not None]
    first = some[0] if some else None
    return TrialTokens(
        data=source.name, images=0 if first is None else first.images,
        memory_images=0 if first is None else first.memory_images,
        memory_tokens=max((one.memory_tokens for one in some), default=0), neighbours=settings.neighbours,
        chance=None if first is None else first.chance,
        probes=_probes([arm.name for arm in runs.arms], scored, confidence), missing=missing,
    )  # fmt: skip


def _settings(runs: TrialRuns) -> EvaluateSettings:
    chosen = runs.settings
    shared = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(TokenOptions)}
    return EvaluateSettings(
        **shared, data_dir=chosen.data_dir, strict=chosen.strict_data, image_size=runs.recipe.image_size,
        amp=runs.recipe.amp,
    )  # fmt: skip


def _open(runs: TrialRuns, settings: EvaluateSettings) -> LabelData | MaskData:
    prepare = runs.preprocessing(runs.new_model(runs.arms[0]))
    return open_token_data(str(runs.settings.tokens), prepare, settings)


def _same_images(one: TokenScores, other: TokenScores) -> bool:
    return (one.images, one.skipped_images.keys()) == (other.images, other.skipped_images.keys())


def _seeds(text: str, seeds: list[int], arm: PlannedArm, runs: TrialRuns) -> str:
    """A reason, with the seeds that it holds for unless it is all of them."""
    if len(seeds) == len(runs.seeds):
        return text
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(str(arm.first_seed + seed) for seed in seeds)}: {text}"


def _run(
    arm: PlannedArm, seed: int, runs: TrialRuns, settings: EvaluateSettings, origin: str,
    reasons: dict[str, list[int]], report_stage: OnStage,
) -> ScoredRun | None:  # fmt: skip
    """The scores of a run, stored or new. Why it or some blocks have none is added to `reasons`."""
    path = runs.directory.tokens(arm, seed)
    run = _read(path, origin)
    if run is None:
        model = runs.model(arm, seed)
        if model is None:
            reasons.setdefault(NO_MODEL, []).append(seed)
            return None
        report_stage(f"tokens of {arm.run_name(seed)}")
        try:
            run = _score(model, settings, runs.settings.workers)
        except UnsmoothError as error:  # a host without tokens on a grid keeps its accuracy
            reasons.setdefault(str(error), []).append(seed)
            return None
        _write(path, run, origin)
    skipped: dict[str, list[int]] = {}
    for block, reason in run.scores.skipped.items():
        skipped.setdefault(reason, []).append(block)
    for reason, blocks in skipped.items():
        reasons.setdefault(f"{blocks_text(blocks)}: {reason}", []).append(seed)
    return run


def _score(model: nn.Module, settings: EvaluateSettings, workers: int) -> ScoredRun:
    scores = token_scores(model, str(settings.tokens), settings=settings, workers=workers)
    return ScoredRun(scores, {key: image_values(*counts) for key, counts in scores.per_image.items()})


def _write(path: Path, run: ScoredRun, origin: str) -> None:
    file = io.BytesIO()
    arrays: dict[str, Any] = {"/".join(map(str, key)): values for key, values in run.values.items()}
    scores = TypeAdapter(TokenScores).dump_json(run.scores).decode()
    np.savez_compressed(file, origin=np.array(origin), scores=np.array(scores), **arrays)
    write(path, file.getvalue())


def _read(path: Path, origin: str) -> ScoredRun | None:
    """Stored scores; None if there are none, they are of other data or settings, or they cannot be read."""
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            if str(file["origin"]) != origin:
                return None
            scores = TypeAdapter(TokenScores).validate_json(str(file["scores"]))
            return ScoredRun(scores, {_key(name): file[name] for name in file.files if "/" in name})
    except Exception:  # zip, header and JSON errors have no common base class; the run is scored again
        return None


def _key(name: str) -> Key:
    tokens, probe, block = name.split("/")
    return tokens, probe, int(block)


def _probes(names: Sequence[str], scored: Scored, confidence: float) -> list[TrialProbe]:
    """Scores and differences of all arms, for every kind of token and probe that any run has."""
    found = [probe for by_seed in scored for run in by_seed if run is not None for probe in run.scores.probes]
    metrics = {(probe.tokens, probe.probe): probe.metric for probe in found}
    probes = []
    for (tokens, probe), metric in metrics.items():
        by_block = [_by_block(by_seed, tokens, probe) for by_seed in scored]
        base = by_block[0]
        best = max(base, key=lambda block: spread(_means(base[block])).mean or 0.0, default=None)
        arms = [
            ArmTokens(
                arm=name, blocks=[BlockSpread(block, spread(_means(values))) for block, values in sorted(own.items())],
                last=_difference(own[max(own)], base[max(base)], confidence) if i and base else None,
                best=_difference(own[best], base[best], confidence) if i and best is not None and best in own else None,
            )
            for i, (name, own) in enumerate(zip(names, by_block, strict=True))
            if own
        ]  # fmt: skip
        probes.append(TrialProbe(tokens, probe, metric, best, arms))
    return probes


def _by_block(by_seed: Sequence[ScoredRun | None], tokens: str, probe: str) -> dict[int, Values]:
    """The values of an arm by block; None for seeds in which the block has no score."""
    blocks = {key[2] for run in by_seed if run is not None for key in run.values if key[:2] == (tokens, probe)}
    return {
        block: [None if run is None else run.values.get((tokens, probe, block)) for run in by_seed] for block in blocks
    }


def _means(values: Values) -> list[float | None]:
    return [None if one is None else float(one.mean()) for one in values]


def _difference(own: Values, base: Values, confidence: float) -> Difference | None:
    """Paired difference over the seeds in which both arms have a score."""
    pairs = [(a, b) for a, b in zip(own, base, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    finished = [a is not None and b is not None for a, b in zip(own, base, strict=True)]
    one, other = (np.stack(side) for side in zip(*pairs, strict=True))
    return difference_over(finished, one, other, confidence)
