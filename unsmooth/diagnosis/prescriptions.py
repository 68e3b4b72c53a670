"""Candidate remedies for each finding, and why they are candidates. Only a trial shows what helps."""

from __future__ import annotations

from collections.abc import Callable

from unsmooth import remedies
from unsmooth.remedies.base import LossRemedy
from unsmooth.results.verdict import Candidate
from unsmooth.spec import parse_item

# By key of the finding: remedies, best first, with options that leave a pretrained host unchanged, and the reason.
CANDIDATES: dict[str, list[tuple[str, str]]] = {
    "token_collapse": [
        ("attn_scale", "a learned gain on the map without its mean counters low-pass filtering"),
        ("feat_scale", "learned gains rebalance the mean token and the rest in each block"),
        ("augmented_shortcut(start=identity)", "parallel paths around attention preserve differences between tokens"),
        ("layer_scale", "a learned gain per channel weighs each branch against its skip"),
        ("token_graying", "better conditioned patch tokens enter the first block"),
        ("diverse_patch", "a training loss against similar patch tokens, without cost at inference"),
    ],
    "uniform_attention": [
        ("attn_scale", "a learned gain on the map without its mean sharpens it"),
        ("context_broadcast(kind=scaled)", "every token receives the mean token, so attention need not provide it"),
    ],
    "similar_maps": [
        ("attn_scale", "one learned gain per head and block lets maps differ"),
        ("adder_attention", "the identity in the map raises its rank"),
    ],
    "outlier_tokens": [
        ("test_time_register", "moves the activations that make the outliers to an extra token, without training"),
        ("registers", "learned tokens hold what the outliers hold"),
    ],
    "idle_sinks": [
        ("gated_attention", "a learned gate on the output lets a head write nothing without a sink"),
        ("sink_logit", "a key without a value takes the attention that a head does not need"),
    ],
    "broadcasting_sinks": [
        ("registers", "learned tokens hold what is broadcast, in place of patch tokens"),
        ("test_time_register", "an extra token takes over the outliers that are broadcast, without training"),
    ],
    "outlier_activations": [
        ("gated_attention", "heads that can write nothing need no large activations to make a sink"),
        ("sink_logit", "a key without a value replaces the sinks that large activations make"),
    ],
    "ill_conditioned": [("token_graying", "improves the condition number of the tokens before the first block")],
}
# For a host that has lost a skip. An identity start would leave it collapsed, with no gradient to learn from.
WITHOUT_SKIP = [("augmented_shortcut(branch=attn)", "random parallel paths carry the tokens in place of the skip")]


def is_safe(spec: str) -> bool:
    """Whether applying this remedy leaves the outputs of a pretrained host unchanged."""
    item = parse_item(spec)
    remedy = remedies.get(item.name)
    return remedy.exact(remedies.options_of(item))


def effect_of(spec: str) -> str:
    """Effect of a remedy, and when to use it."""
    if isinstance(remedies.get(parse_item(spec).name), LossRemedy):
        return "it acts on the loss during training and changes nothing at inference"
    if is_safe(spec):
        return "it starts as the identity, so it does nothing until it is trained"
    return "it changes the outputs at once, so the model must be fine-tuned before it is used"


def prescribe(finding: str, blocks: list[int], applied: list[str], fits: Callable[[str], bool]) -> list[Candidate]:
    """Candidates for a finding on these blocks, without remedies that the model has already."""
    names = {parse_item(text).name for text in applied}
    listed, candidates = CANDIDATES.get(finding, []), list[Candidate]()
    if finding == "token_collapse" and "no_skip" in names:
        listed = WITHOUT_SKIP
        candidates.append(Candidate("", "restore the skip: unsmooth.remove(model, 'no_skip')", safe=False))
    for text, reason in listed:
        name = parse_item(text).name
        if name not in names:
            spec = text if remedies.get(name).once else _from_block(text, blocks[0])
            candidates.append(Candidate(spec, reason, is_safe(text), fits(spec), effect_of(text)))
    return sorted(candidates, key=lambda candidate: not candidate.fits)


def _from_block(spec: str, first: int) -> str:
    """The spec restricted to blocks from `first` on: information that is lost there does not return in later blocks."""
    if first == 0:
        return spec
    return f"{spec[:-1]}, blocks={first}:)" if spec.endswith(")") else f"{spec}(blocks={first}:)"
