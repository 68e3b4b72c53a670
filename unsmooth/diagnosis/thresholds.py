"""Every number that a verdict is eval_model by, in one table, with where it comes from.

They are heuristics. Each separates the models that it was tried on (`source`), and no theorem says that it separates
yours: a verdict asks two families of vitals to agree, and shows its evidence, so that you can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    value: float
    meaning: str
    source: str


SKIPLESS = "6 to 48 blocks without the attention skip, at random start and trained on CIFAR-10 for 250 to 600 steps"
TRAINED = "6 to 48 blocks with skips, trained on CIFAR-10 for 250 to 600 steps"
SALIENCY = "a saliency fine-tune of DINOv2 ViT-S/14 on 60 photographs"
RANDOM = "DeiT-Ti of 6 to 48 blocks at random start"

THRESHOLDS: dict[str, Threshold] = {
    "alike": Threshold(
        0.9,
        "token similarity of collapsed tokens",
        f"{SKIPLESS}: 0.92 and more from block 1 on; {TRAINED}: at most 0.78; {RANDOM}: 0.71",
    ),
    "alike_rise": Threshold(
        0.15,
        "rise of token similarity over its lowest value before",
        f"{SALIENCY}: 0.10 at block 8, 0.20 at block 10; {TRAINED}: 0.12 and 0.16 (6, 12), 0.23 and 0.26 (24, 48)",
    ),
    "alike_least": Threshold(
        0.4,
        "token similarity that a rise must reach to count",
        f"{SALIENCY}: 0.42 in its first block, which is healthy",
    ),
    "rank_share": Threshold(
        0.05,
        "effective rank over min(n, d) of collapsed tokens",
        f"{SKIPLESS}: at most 0.03 from block 1 on; {TRAINED}: at least 0.09; {RANDOM}: 0.20",
    ),
    "rank_least": Threshold(1.5, "effective rank that is collapse in any model", "one line has rank 1"),
    "rank_fall": Threshold(
        0.4,
        "fall of effective rank from its highest value before",
        f"{SALIENCY}: 0.25 at block 8, 0.44 at block 10; {TRAINED}: 0.16 and 0.30 (6, 12), 0.51 and 0.62 (24, 48)",
    ),
    "uniform_entropy": Threshold(0.97, "entropy over log m of attention that averages", f"{RANDOM}: 1.00"),
    "uniform_divergence": Threshold(0.01, "divergence of rows of attention that averages", f"{RANDOM}: below 0.001"),
    "weak_branch": Threshold(0.5, "branch ratio below which averages do little harm", f"{RANDOM}: 0.05"),
    "drowned_skip": Threshold(3.0, "branch ratio at which the skip is drowned", f"{SALIENCY}: 0.5 to 0.9, then 4.2"),
    "low_pass": Threshold(0.9, "entropy over log m at which attention smooths", f"{SALIENCY}: at most 0.77"),
    "idle_turn": Threshold(0.01, "block influence of a block that does nothing", f"{RANDOM}: 0.008 to 0.014"),
    "idle_branch": Threshold(0.1, "branch ratio of a branch that does nothing", f"{RANDOM}: 0.05"),
    "same_tokens": Threshold(0.99, "CKA of a block with the one before, when it does nothing", RANDOM),
    "similar_blocks": Threshold(0.5, "share of the other blocks that attend alike", f"{SALIENCY}: none"),
    "ill_attention": Threshold(9.0, "robust log condition number of what attention adds", f"{SALIENCY}: 7.3 to 15"),
    "skip_help": Threshold(3.0, "how much the skip lowers it", f"{SALIENCY}: 2.6 to 7.5"),
    "low_map_rank": Threshold(0.3, "equivalent rank of maps over their size", f"{SALIENCY}: 0.09 to 0.55"),
    "outlier_ratio": Threshold(5.0, "largest token norm over the median", f"{SALIENCY}: at most 2.4"),
    "probe_fall": Threshold(0.1, "fall of nearest-neighbour accuracy from its best", "our choice"),
}


def threshold(name: str) -> float:
    return THRESHOLDS[name].value
