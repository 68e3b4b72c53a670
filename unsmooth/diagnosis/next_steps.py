"""Next steps after a verdict, as commands and lines of Python, and the changes that would alter the verdict."""

from __future__ import annotations

import shlex
from dataclasses import replace

from unsmooth.diagnosis.rules.curves import TokenCurves
from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.errors import UnsmoothError
from unsmooth.results.measured import ImagesInfo
from unsmooth.results.verdict import Candidate, Finding, Step, Verdict
from unsmooth.spec import parse

COMPARED = 2  # candidates in the filled-in comparison
DATA = "DATA"  # training images, which a diagnosis does not know


def next_steps(view: DiagnosisView, verdict: Verdict, findings: list[Finding], images: ImagesInfo | None) -> list[Step]:
    """Steps in order of cost. The commands name this model where it was built from a spec."""
    if verdict.state == "broken":
        return [Step("Find the weight or the input that is not finite. Vitals of later blocks are not valid.")]
    if view.model.weights is not None and view.model.weights.kind == "none":
        return [_load_weights(view)]
    candidates = [candidate for candidate, _ in ranked_candidates(findings)]
    if verdict.state in ("collapsing", "collapsed", "suspicious") and candidates:
        removal = next((c for c in candidates if not c.spec), None)
        if removal is not None:
            return [Step(removal.reason, python="unsmooth.remove(model, 'no_skip')")]
        return [*_score(view, findings), _try(candidates[0]), _compare(view, candidates[:COMPARED])]
    if verdict.state in ("suspicious", "unknown"):
        return [_measure_more(view, images)]
    return []


def ranked_candidates(findings: list[Finding]) -> list[tuple[Candidate, Finding]]:
    """Candidates of warnings and severe findings that fit, each with its finding: as listed, safe ones first."""
    by_spec: dict[str, tuple[Candidate, Finding]] = {}
    for finding in findings:
        if finding.severity != "note":
            for candidate in finding.remedies:
                if candidate.fits:
                    by_spec.setdefault(candidate.spec, (candidate, finding))
    return sorted(by_spec.values(), key=lambda pair: bool(pair[0].spec) and not pair[0].safe)


def _load_weights(view: DiagnosisView) -> Step:
    name = shlex.quote(view.model.name)
    return Step(
        "Diagnose trained weights: this verdict is about random initialisation.",
        f"unsmooth diagnose {name} --checkpoint WEIGHTS.pth",
        f"unsmooth.diagnose({view.model.name!r}, checkpoint='WEIGHTS.pth')",
    )


def _score(view: DiagnosisView, findings: list[Finding]) -> list[Step]:
    """Scores of the tokens by block, unless the harm is shown already."""
    if any(finding.harm is not None and finding.harm.state == "shown" for finding in findings):
        return []
    host, weights = _spec_of(view), view.model.weights
    option = python = ""
    if weights is not None and weights.kind == "file":
        option, python = f" --checkpoint {shlex.quote(weights.name)}", f", checkpoint={weights.name!r}"
    elif weights is not None and weights.kind == "pretrained":
        host = _pretrained(host)
    return [
        Step(
            "Score the tokens of each block on images with labels or masks: that shows whether the collapse does harm.",
            f"unsmooth evaluate {shlex.quote(host)} --tokens LABELLED_FOLDER{option}",
            f"unsmooth.evaluate({host!r}, tokens='LABELLED_FOLDER'{python})",
        )
    ]


def _pretrained(text: str) -> str:
    spec = parse(text)
    if spec.host is None:
        return text
    return str(replace(spec, host=replace(spec.host, options={**spec.host.options, "pretrained": True})))


def _try(candidate: Candidate) -> Step:
    return Step(
        f"Apply {candidate.spec} and train: {candidate.effect}.",
        python=f"unsmooth.apply(model, {candidate.spec!r})",
    )


def _compare(view: DiagnosisView, candidates: list[Candidate]) -> Step:
    """The comparison that decides, on the same budget."""
    host = _spec_of(view)
    specs = [host, *(f"{host}+{candidate.spec}" for candidate in candidates)]
    weights = view.model.weights
    kind = weights.kind if weights is not None else "object"
    start = {"file": f" --from {shlex.quote(weights.name)}" if weights else "", "pretrained": " --pretrained"}
    option = {"file": f", checkpoint={weights.name!r}" if weights else "", "pretrained": ", pretrained=True"}
    command = (
        f"unsmooth compare {' '.join(map(shlex.quote, specs))} --data {DATA} --recipe finetune{start.get(kind, '')}"
    )
    python = f"unsmooth.compare({specs!r}, {DATA!r}, recipe='finetune'{option.get(kind, '')})"
    return Step("Only a comparison on the same budget shows whether it helps accuracy.", command, python)


def _spec_of(view: DiagnosisView) -> str:
    """The spec of the model; HOST if it was not built from one."""
    try:
        spec = parse(view.model.name)
    except UnsmoothError:
        return "HOST"
    known = spec.host is not None and spec.host.name != view.model.class_name
    return view.model.name if known else "+".join(["HOST", *view.model.remedies])


def _measure_more(view: DiagnosisView, images: ImagesInfo | None) -> Step:
    more = "more images" if images is None else f"more than {images.count} images"
    host = shlex.quote(_spec_of(view))
    return Step(
        f"Measure {more}, with labels (a folder per class), so that the accuracy by block shows whether it matters.",
        f"unsmooth diagnose {host} --images LABELLED_FOLDER",
        "unsmooth.diagnose(model, 'LABELLED_FOLDER')",
    )


def would_change(view: DiagnosisView, verdict: Verdict) -> list[str]:
    """Measurements that would lead to another state, from the limits of the rules."""
    curves = TokenCurves.of(view)
    last = next((b for b in reversed(range(view.depth)) if curves.cosine[b] is not None), None)
    if verdict.state in ("broken", "unknown") or last is None:
        return []
    lines = []
    if verdict.state in ("collapsing", "collapsed"):
        worst = max(verdict.blocks, key=lambda b: curves.cosine[b] or 0.0)
        limit = curves.similarity_limit(worst)
        similarity = f"a similarity below {min(limit, threshold('collapsed_similarity')):.2f}"
        rank = f"an effective rank above {curves.share_limit(worst):.2f} of its maximum"
        lines.append(f"not collapsing: {similarity} or {rank} in {_blocks(verdict.blocks)}")
        if verdict.state == "collapsing":
            lines.append(
                f"collapsed: a similarity of {threshold('collapsed_similarity'):.2f} with an effective rank of "
                f"{threshold('collapsed_rank_share'):.2f} of its maximum in any block"
            )
    elif curves.share[last] is not None:
        lines.append(
            f"collapsing: a similarity of {curves.similarity_limit(last):.2f} with an effective rank of "
            f"{curves.share_limit(last):.2f} of its maximum in block {last}"
        )
    return lines


def _blocks(blocks: list[int]) -> str:
    return f"block {blocks[0]}" if len(blocks) == 1 else f"each of blocks {', '.join(map(str, blocks))}"
