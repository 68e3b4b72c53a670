"""Which remedies are candidates for a finding, and why. Candidates only: what helps is for a trial to say."""

from __future__ import annotations

from typing import Any

from unsmooth import remedies
from unsmooth.spec import parse_item

# A finding's key: remedies (best first, with the options that leave a pretrained host unchanged), and the reason.
CANDIDATES: dict[str, list[tuple[str, str]]] = {
    "token_collapse": [
        ("attn_scale", "a gain on all of the map but its mean lets attention keep what it filters out"),
        ("feat_scale", "gains on mean token and rest let each block weigh them anew"),
        ("augmented_shortcut(start=identity)", "more paths around attention carry what differs between tokens"),
        ("token_graying", "better conditioned patch tokens reach the first block"),
        ("diverse_patch", "a term of the training loss against similar patch tokens; nothing at inference"),
    ],
    "uniform_attention": [
        ("attn_scale", "a gain on all of the map but its mean sharpens it"),
        ("context_broadcast(kind=scaled)", "gives every token the mean, so that attention need not spend itself on it"),
    ],
    "similar_maps": [
        ("attn_scale", "one gain a head and block lets maps differ"),
        ("adder_attention", "the identity in the map raises its rank"),
    ],
    "ill_conditioned": [("token_graying", "conditions the tokens in front of the first block")],
}


def is_safe(text: str) -> bool:
    """Whether a pretrained host's outputs stay as they are when this remedy is applied."""
    part = parse_item(text)
    remedy = remedies.get(part.name)
    return remedy.exact(remedies.options_of(part))


def prescribe(finding: str, blocks: list[int], present: list[str]) -> list[dict[str, Any]]:
    """Candidates for a finding, on its blocks, without those that are on the model already."""
    there = {parse_item(text).name for text in present}
    if finding == "token_collapse" and "no_skip" in there:
        return [
            {"spec": "", "reason": "give the skip back: unsmooth.remove(model, 'no_skip')", "safe": False, "fits": True}
        ]
    rows = []
    for text, reason in CANDIDATES.get(finding, []):
        part = parse_item(text)
        if part.name in there:
            continue
        remedy = remedies.get(part.name)
        safe = is_safe(text)
        rows.append({"spec": text if remedy.once else _on(text, blocks), "reason": reason, "safe": safe, "fits": True})
    return rows


def _on(text: str, blocks: list[int]) -> str:
    """A remedy's spec from the first of these blocks on: what is lost there does not come back by itself."""
    first = blocks[0]
    if first == 0:
        return text
    return f"{text[:-1]}, blocks={first}:)" if text.endswith(")") else f"{text}(blocks={first}:)"
