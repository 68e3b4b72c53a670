"""`prescribe`: diagnose a model, try candidates for its findings on a stated budget, and recommend one or none.

1. The model is diagnosed: the given weights, or a run of the recipe if there are none.
2. Candidates are the remedies of its warnings and severe findings. A healthy model has none, and nothing is tried.
3. Successive halving chooses finalists on held-out training images (`unsmooth.trials.halving`).
4. A trial (`compare`) compares them with the model as it was, on the validation images.

Steps 1 to 3 use seeds from 1000 on and training images only. The final trial has fresh seeds from 0 on and images that
played no part in the choice, so its interval needs no correction for the choice. Runs that are done are not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unsmooth.data.datasets import sample_batch
from unsmooth.data.splits import hold_out, limit_splits, open_splits
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.diagnosis.next_steps import ranked_candidates
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe, resolve_fields
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.prescription import Budget, FinalComparison, Prescription, Rung, RungRun, TriedCandidate
from unsmooth.results.provenance import Provenance, versions
from unsmooth.results.trial import Trial, TrialData
from unsmooth.spec import ModelSpec, parse, parse_item
from unsmooth.surgery.storage import load
from unsmooth.tasks.model_factory import build
from unsmooth.training.observer import OnProgress
from unsmooth.training.run_dir import RunDir
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.compare import compare
from unsmooth.trials.controls import OTHER_SEEDS
from unsmooth.trials.directory import PrescriptionDirectory, TrialDirectory
from unsmooth.trials.halving import PlannedRung, keep_best, plan_rungs
from unsmooth.trials.measure import DIAGNOSED
from unsmooth.trials.runner import Job, run_jobs
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.trials.settings import CompareSettings, PrescribeSettings
from unsmooth.trials.sweep import HELD_OUT, OPTIONS
from unsmooth.utils.processes import init_processes
from unsmooth.utils.progress import Progress

ILL = ("suspicious", "collapsing", "collapsed")
SHARED = (
    "jobs", "checkpoint", "pretrained", "val_data", "data_dir", "workers", "device", "strict_data", "confidence",
    "seeds", "costs",
)  # fmt: skip


def prescribe(
    spec: str,
    data: str | Path,
    *,
    recipe: str | Path | Recipe = "small",
    settings: PrescribeSettings | None = None,
    on_progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
    progress: Progress | bool | None = None,
    command: str = "",
    **fields: Any,
) -> Prescription:
    """Diagnose a model, try candidate remedies on a stated budget, and recommend one of them or none.

    The same call resumes an interrupted prescription.

    Args:
        spec: Model spec.
        data: Training and validation images: a folder, a .npz file or the name of a dataset.
        recipe: Name of a recipe, a .toml file or a `Recipe`, for all runs. Rungs have fewer epochs.
        settings: Settings of the prescription. Default: `PrescribeSettings()`.
        on_progress: Called with the name of a run, its steps done, its total steps, and the metrics of an epoch.
        on_stage: Called with a description of each stage.
        progress: Progress of the final comparison, as in `compare`.
        command: Command line to record in the result.
        **fields: Fields of `PrescribeSettings`, such as `budget`, `seeds` or `out`, and of `Recipe`, such as `epochs`.

    Returns:
        The prescription. It is also written to its directory, as prescription.json and report.html.

    Raises:
        UnsmoothError: If a name or value is not valid, or if the budget does not suffice for the final comparison.

    Example:
        >>> import tempfile, unsmooth
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> given = unsmooth.prescribe(
        ...     host, "digits", epochs=1, warmup_epochs=0, train_images=128, val_images=40, out=tempfile.mkdtemp()
        ... )
        >>> given.recommendation, given.evidence
        (None, [])
    """
    started = time.time()
    search = _Search.plan(spec, data, recipe, settings, on_progress, on_stage, command, fields)
    search.report_stage(search.stated())
    diagnosis = search.diagnosis()
    ranked = search.candidates(diagnosis)
    planned = search.rungs(len(ranked))
    candidates = ranked[: planned[0].candidates if planned else search.finalists(len(ranked))]
    text = search.plan_text(candidates, planned, ranked[len(candidates) :])
    search.report_stage(text)
    finalists, rungs = search.halve(candidates, planned)
    evidence: list[FinalComparison] = []
    if finalists:
        trial = search.compare(finalists, progress)
        evidence = [_evidence(trial, candidate) for candidate in finalists]
    chosen = _choose(evidence, candidates)
    splits, resolved = search.splits, search.recipe
    most, per_run = search.settings.budget, resolved.epochs * splits.train.count
    made = Prescription(
        spec=str(search.spec),
        data=TrialData(splits.name, splits.train.count, splits.val.count, splits.classes, None, {}),
        recipe_name="custom" if isinstance(recipe, Recipe) else Path(recipe).stem, epochs=resolved.epochs,
        verdict=diagnosis.conclusion, findings=diagnosis.findings,
        budget=Budget(most, int(most * per_run), search.images(candidates, planned), search.spent, text),
        candidates=[candidate.result() for candidate in candidates], rungs=rungs, evidence=evidence,
        recommendation=None if chosen is None else str(chosen.spec),
        text=_text(diagnosis, candidates, evidence, chosen),
        provenance=Provenance(**versions(), command=command, seconds=round(time.time() - started, 1)),
    )  # fmt: skip
    made.to_json(search.directory.result)
    made.save(search.directory.report)
    return made


@dataclass(frozen=True)
class PlannedCandidate:
    """A candidate: its name, the whole model, why it is one, and the finding it is for."""

    name: str
    spec: ModelSpec
    reason: str
    finding: str

    def result(self) -> TriedCandidate:
        return TriedCandidate(self.name, str(self.spec), self.reason, self.finding)


@dataclass
class _Search:
    """The arguments of a prescription, and the training images that were used so far."""

    spec: ModelSpec
    runs: TrialRuns  # their validation images are the held-out training images
    splits: Any  # training images and the validation images of the final comparison
    settings: PrescribeSettings
    recipe: Recipe
    report_progress: OnProgress
    report_stage: OnStage
    spent: int = field(default=0)

    @classmethod
    def plan(
        cls, spec: str, data: str | Path, recipe: str | Path | Recipe, settings: PrescribeSettings | None,
        on_progress: OnProgress | None, on_stage: OnStage | None, command: str, fields: dict[str, Any],
    ) -> _Search:  # fmt: skip
        """Read all arguments and open the data. Nothing is written."""
        chosen, resolved = resolve_fields(PrescribeSettings, settings, recipe, fields)
        parsed = parse(spec)
        splits = open_splits(data, chosen.val_data, chosen.data_dir)
        splits = limit_splits(splits, resolved.train_images, resolved.val_images)
        shared = {name: getattr(chosen, name) for name in SHARED}
        device = str(init_processes(chosen.device).device)
        runs = TrialRuns(
            [], TrialDirectory(chosen.out), CompareSettings(**shared), resolved, hold_out(splits, HELD_OUT), data,
            device, command,
        )  # fmt: skip
        search = cls(parsed, runs, splits, chosen, resolved, on_progress or (lambda *news: None),
                     on_stage or (lambda text: None))  # fmt: skip
        needed = search.fixed(chosen.finalists)
        if chosen.budget < needed:
            raise UnsmoothError(
                f"a budget of {chosen.budget:g} runs does not suffice: the final comparison of {1 + chosen.finalists} "
                f"models with {chosen.seeds} seeds{'' if search.trained else ' and the diagnosed run'} need {needed}. "
                "Use a larger budget or fewer seeds."
            )
        return search

    @property
    def directory(self) -> PrescriptionDirectory:
        return PrescriptionDirectory(self.settings.out)

    @property
    def trained(self) -> bool:
        """Whether the model has weights to diagnose; otherwise it is trained first."""
        given = self.settings.checkpoint is not None or self.settings.pretrained
        return given or bool(self.spec.known_host.options.get("pretrained", False))

    def fixed(self, finalists: int) -> int:
        """Runs of the diagnosis and of the final comparison."""
        return (0 if self.trained else 1) + (1 + finalists) * self.settings.seeds

    def stated(self) -> str:
        """The budget as text, before anything is trained."""
        images = int(self.settings.budget * self.recipe.epochs * self.splits.train.count)
        return f"budget: {self.settings.budget:g} runs of {self.recipe.epochs} epochs, {images:,} training images"

    # 1. Diagnosis.

    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the model on held-out training images; it is also written."""
        arm = PlannedArm(self.spec, "diagnosed model", first_seed=OTHER_SEEDS)
        if self.trained:
            model = build(self.spec, self.splits.classes, self.recipe, OTHER_SEEDS, self.settings.checkpoint,
                          self.settings.pretrained).to(self.runs.device)  # fmt: skip
        else:
            self.report_stage("training the model to diagnose")
            run = self.directory.diagnosed
            if reason := self.train([(arm, run)], self.recipe)[0]:
                raise UnsmoothError(f"the model could not be trained, so it cannot be diagnosed: {reason}")
            model = load(run.last).to(self.runs.device)
        self.report_stage("diagnosing")
        batch = sample_batch(self.runs.validation_images(model), DIAGNOSED)
        made = diagnose(model.eval(), [(batch.images, batch.labels)], progress=False)
        made.images.source = f"held-out training images of {self.splits.name}"
        made.to_json(self.directory.diagnosis)
        made.save(self.directory.diagnosis.with_suffix(".html"))
        return made

    # 2. Candidates.

    def candidates(self, diagnosis: Diagnosis) -> list[PlannedCandidate]:
        """The candidates of warnings and severe findings, ranked, at most as many as the settings allow."""
        if diagnosis.verdict not in ILL:
            return []
        made = []
        for candidate, finding in ranked_candidates(diagnosis.findings):
            if candidate.spec:
                remedies, name = (*self.spec.remedies, parse_item(candidate.spec)), candidate.spec
            else:  # the advice is to remove it
                remedies = tuple(remedy for remedy in self.spec.remedies if remedy.name != "no_skip")
                name = "without no_skip"
            made.append(PlannedCandidate(name, ModelSpec(self.spec.host, remedies), candidate.reason, finding.key))
        return made[: self.settings.candidates]

    # 3. Successive halving.

    def finalists(self, candidates: int) -> int:
        return min(self.settings.finalists, candidates)

    def rungs(self, candidates: int) -> list[PlannedRung]:
        """The rungs that the budget allows for."""
        finalists = self.finalists(candidates)
        left = int((self.settings.budget - self.fixed(finalists)) * self.recipe.epochs)
        return plan_rungs(candidates, left, self.recipe.epochs, self.settings.factor, finalists)

    def images(self, candidates: Sequence[PlannedCandidate], rungs: Sequence[PlannedRung]) -> int:
        """Training images of the plan."""
        part = self.runs.splits.train.count
        searched = part * sum(rung.candidates * rung.epochs for rung in rungs)
        diagnosed = 0 if self.trained else part * self.recipe.epochs
        return searched + diagnosed + self.final_images(self.finalists(len(candidates)))

    def final_images(self, finalists: int) -> int:
        runs = (1 + finalists) * self.settings.seeds if finalists else 0
        return runs * self.recipe.epochs * int(self.splits.train.count)

    def plan_text(
        self, candidates: Sequence[PlannedCandidate], rungs: Sequence[PlannedRung], dropped: Sequence[PlannedCandidate]
    ) -> str:
        if not candidates:
            return "no candidates: nothing is trained further"
        finalists = self.finalists(len(candidates))
        steps = [f"{rung.candidates} candidates for {rung.epochs} epochs" for rung in rungs]
        steps.append(
            f"a final comparison of {1 + finalists} models with {self.settings.seeds} seeds for "
            f"{self.recipe.epochs} epochs"
        )
        text = f"{'; then '.join(steps)}: {self.images(candidates, rungs):,} training images with the diagnosis"
        if dropped:
            text += f" (the budget does not suffice for {', '.join(c.name for c in dropped)})"
        return text

    def halve(
        self, candidates: list[PlannedCandidate], planned: Sequence[PlannedRung]
    ) -> tuple[list[PlannedCandidate], list[Rung]]:
        """The finalists, and the rungs that chose them."""
        made, root = [], self.directory.path
        for i, rung in enumerate(planned):
            self.report_stage(f"rung {i}: {len(candidates)} candidates for {rung.epochs} epochs")
            warmup = self.recipe.warmup_epochs * rung.epochs // self.recipe.epochs
            recipe = replace(self.recipe, epochs=rung.epochs, warmup_epochs=warmup)
            arms = [PlannedArm(c.spec, f"rung {i}, {c.name}", first_seed=OTHER_SEEDS) for c in candidates]
            pairs = [(arm, self.directory.rung_run(rung.epochs, arm)) for arm in arms]
            failures = self.train(pairs, recipe)
            runs = [
                RungRun(c.name, run.metric("top1"), str(run.path.relative_to(root)), failed or None)
                for c, (_, run), failed in zip(candidates, pairs, failures, strict=True)
            ]
            count = planned[i + 1].candidates if i + 1 < len(planned) else self.finalists(len(candidates))
            candidates = [candidates[k] for k in keep_best([run.top1 for run in runs], count)]
            made.append(Rung(rung.epochs, runs, [c.name for c in candidates]))
        return candidates[: self.finalists(len(candidates))], made

    def train(self, pairs: Sequence[tuple[PlannedArm, RunDir]], recipe: Recipe) -> list[str]:
        """Train runs on the training images that are not held out. Returns why each failed, "" if it did not."""
        runs = replace(self.runs, recipe=recipe)
        jobs = [Job(arm.name, {**runs.arguments(arm, OTHER_SEEDS, run.path), "options": OPTIONS}) for arm, run in pairs]
        failures = run_jobs(jobs, self.settings.jobs, self.settings.device, self.report_progress)
        self.spent += len(jobs) * recipe.epochs * int(runs.splits.train.count)
        return [failures.get(arm.name, "") for arm, _ in pairs]

    # 4. The final comparison.

    def compare(self, finalists: Sequence[PlannedCandidate], progress: Progress | bool | None) -> Trial:
        self.report_stage(f"final comparison of {', '.join(c.name for c in finalists)} on fresh seeds")
        settings = replace(self.runs.settings, out=self.directory.final)
        trial = compare(
            [self.spec, *(c.spec for c in finalists)], self.runs.data, recipe=self.recipe, settings=settings,
            on_progress=self.report_progress, on_stage=self.report_stage, progress=progress, command=self.runs.command,
        )  # fmt: skip
        self.spent += self.final_images(len(finalists))
        return trial


def _evidence(trial: Trial, candidate: PlannedCandidate) -> FinalComparison:
    first, own = trial.arms[0], next(arm for arm in trial.arms if arm.spec == str(candidate.spec))
    seeds = len(trial.seeds)
    return FinalComparison(candidate.name, seeds, trial.confidence, own.top1, first.top1, own.difference, "final")


def _choose(evidence: Sequence[FinalComparison], candidates: Sequence[PlannedCandidate]) -> PlannedCandidate | None:
    """The finalist with the largest difference that is shown, after Holm's correction if there are several."""
    better = [e for e in evidence if e.difference is not None and e.difference.decided and e.difference.mean > 0]
    if not better:
        return None
    best = max(better, key=lambda e: e.difference.mean if e.difference is not None else 0.0)
    return next(candidate for candidate in candidates if candidate.name == best.name)


def _text(
    diagnosis: Diagnosis,
    candidates: Sequence[PlannedCandidate],
    evidence: Sequence[FinalComparison],
    chosen: PlannedCandidate | None,
) -> str:
    """The recommendation in one or two sentences."""
    if not candidates:
        reason = (
            "no finding of the diagnosis has a candidate that fits"
            if diagnosis.verdict in ILL
            else "the diagnosis found nothing to treat"
        )
        return f"No recommendation: {reason}. {diagnosis.verdict_text}"
    shown = "; ".join(
        f"{e.name}: {e.difference.text if e.difference is not None else 'a run failed'}" for e in evidence
    )
    if chosen is None:
        many = f"the best of {len(candidates)} candidates" if len(candidates) > 1 else "the only candidate"
        return f"No recommendation: {many} is not shown to be better than the model as it is ({shown})."
    return f"Use {chosen.spec} ({shown}; {evidence[0].seeds} fresh seeds). Reason: {chosen.reason}."
