"""Findings about attention and blocks: uniform or similar maps, idle blocks, ill-conditioned branches."""

from __future__ import annotations

from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.verdict import Finding, Severity
from unsmooth.utils.text import blocks_text


def uniform_attention(view: DiagnosisView) -> Finding | None:
    """Attention is uniform (entropy, query sensitivity); the branch ratio shows how much that matters."""
    entropy, sensitivity = view.means("attention_entropy", "share"), view.means("query_sensitivity")
    ratio, influence = view.means("branch_ratio", "attn"), view.means("block_influence")
    blocks = [
        b
        for b in range(view.depth)
        if (e := entropy[b]) is not None
        and (s := sensitivity[b]) is not None
        and ratio[b] is not None
        and e >= threshold("uniform_entropy")
        and s <= threshold("uniform_sensitivity")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        view.evidence(
            "attention_entropy", "share", f"{entropy[b]:.3f} of its maximum in block {b}", b, "uniform_entropy"
        ),
        view.evidence("query_sensitivity", "", f"{sensitivity[b]:.4f} in block {b}", b, "uniform_sensitivity"),
        view.evidence("branch_ratio", "attn", f"{ratio[b]:.2f} times the norm of the skip in block {b}", b),
    ]
    if influence[b] is not None:
        evidence.append(view.evidence("block_influence", "", f"{influence[b]:.3f} in block {b}", b))
    text = f"Attention in {blocks_text(blocks)} is an average: every query weighs all keys equally."
    weak = all((ratio[b] or 0) < threshold("weak_branch") for b in blocks)
    if len(blocks) == view.depth and weak:
        text += " This holds in every block, and the branches add little, as in an untrained model."
        return Finding("untrained", "The model looks untrained", "note", blocks, text, evidence)
    severity: Severity = "note" if weak else "warning"
    return Finding("uniform_attention", "Attention is uniform", severity, blocks, text, evidence)


def idle_blocks(view: DiagnosisView) -> Finding | None:
    """A block changes neither the direction of its tokens (influence, branch ratio) nor their representation (CKA)."""
    influence, cka = view.means("block_influence"), view.means("layer_cka")
    attn, mlp = view.means("branch_ratio", "attn"), view.means("branch_ratio", "mlp")
    blocks = [
        b
        for b in range(view.depth)
        if (i := influence[b]) is not None
        and (c := cka[b]) is not None
        and i <= threshold("idle_influence")
        and c >= threshold("idle_cka")
        and max(attn[b] or 0, mlp[b] or 0) <= threshold("idle_branch")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        view.evidence("block_influence", "", f"{influence[b]:.4f} in block {b}", b, "idle_influence"),
        view.evidence("layer_cka", "", f"{cka[b]:.3f} with the previous block", b, "idle_cka"),
    ]
    text = f"The tokens hardly change in {blocks_text(blocks)}. These blocks could be removed."
    return Finding("idle_blocks", "Idle blocks", "note", blocks, text, evidence)


def similar_maps(view: DiagnosisView) -> Finding | None:
    """Many blocks have the same attention maps; CKA shows the effect on the tokens."""
    similar, cka = view.means("similar_blocks"), view.means("layer_cka")
    entropy = view.means("attention_entropy", "share")
    blocks = [
        b
        for b in range(view.depth)
        if (n := similar[b]) is not None
        and cka[b] is not None
        and (entropy[b] or 0) < threshold("uniform_entropy")  # uniform maps are similar, and a finding of their own
        and n >= max(1.0, threshold("similar_blocks") * (view.depth - 1))
    ]
    if not blocks:
        return None
    b = max(blocks, key=lambda b: similar[b] or 0)
    evidence = [
        view.evidence(
            "similar_blocks",
            "",
            f"block {b} has maps similar to {similar[b]:.0f} of {view.depth - 1} others",
            b,
            "similar_blocks",
            max(1.0, threshold("similar_blocks") * (view.depth - 1)),
        ),
        view.evidence("layer_cka", "", f"{cka[b]:.3f} with the previous block", b),
    ]
    text = f"The attention maps of {blocks_text(blocks)} are nearly the same, so depth adds little there."
    return Finding("similar_maps", "Similar attention maps", "warning", blocks, text, evidence)


def ill_conditioned(view: DiagnosisView) -> Finding | None:
    """In half of the blocks the attention branch is ill-conditioned without the skip, and its maps have low rank."""
    branch, summed = view.means("log_condition", "attn.robust"), view.means("log_condition", "attn+skip.robust")
    rank = view.means("equivalent_rank", "share")
    blocks = [
        b
        for b in range(view.depth)
        if (c := branch[b]) is not None
        and (s := summed[b]) is not None
        and (r := rank[b]) is not None
        and c >= threshold("ill_conditioned_branch")
        and c - s >= threshold("skip_reduction")
        and r <= threshold("low_map_rank")
    ]
    if len(blocks) * 2 < view.depth:  # single blocks of this kind are common
        return None
    b = max(blocks, key=lambda b: branch[b] or 0)
    evidence = [
        view.evidence(
            "log_condition",
            "attn.robust",
            f"{branch[b]:.1f} in block {b}, {summed[b]:.1f} with the skip",
            b,
            "ill_conditioned_branch",
        ),
        view.evidence("equivalent_rank", "share", f"{rank[b]:.2f} of full rank in block {b}", b, "low_map_rank"),
    ]
    text = f"The output of attention in {blocks_text(blocks)} is ill-conditioned. The sum with the skip is not."
    return Finding("ill_conditioned", "Attention is ill-conditioned", "note", blocks, text, evidence)
