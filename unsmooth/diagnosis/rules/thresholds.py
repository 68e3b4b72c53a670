"""The numbers that rules compare vitals with.

They are heuristics. Each of them separates the models that it was calibrated on (`source`), which does not imply that
it separates yours. This is why a finding needs two families of vitals and lists its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A number that a rule compares a vital with, what it is about, and the models it was calibrated on.

    The limit of a single value also names its vital, its part and the side of the limit that is abnormal.
    """

    value: float
    meaning: str
    source: str
    vital: str = ""
    part: str = ""
    above: bool = True


SKIPLESS = "6 to 48 blocks without the attention skip, untrained and trained on CIFAR-10 for 250 to 600 steps"
TRAINED = "6 to 48 blocks with skips, trained on CIFAR-10 for 250 to 600 steps"
SALIENCY = "a saliency fine-tune of DINOv2 ViT-S/14 on 60 photographs"
HOST = "cct_12_3x2_32, trained to 83.7 % on CIFAR-10"
NO_SKIP = "a 12-block ViT after 16 epochs of digits and a 12-block CCT after 200 steps, without the attention skip"
TREATED = "a 12-block ViT with augmented_shortcut instead of the attention skip, trained to 85.2 % on digits"
SHORT = "a 12-block CCT with skips after 200 steps of CIFAR-10"
RANDOM = "DeiT-Ti with 6 to 48 blocks, untrained"

THRESHOLDS: dict[str, Threshold] = {
    "collapsed_similarity": Threshold(
        0.9,
        "token similarity of collapsed tokens",
        f"{SKIPLESS}: at least 0.92 from block 1; {NO_SKIP}: at least 1.00 from block 1; {SHORT}: at most 0.88; "
        f"{TRAINED}: at most 0.78; {RANDOM}: 0.67 to 0.69; {HOST}: at most 0.66, untrained 0.83",
        "token_cosine",
    ),
    "similarity_rise": Threshold(
        0.15,
        "rise of token similarity above its lowest earlier value",
        f"{SALIENCY}: 0.10 at block 8, 0.20 at block 10; {HOST}: 0.06; "
        f"{TRAINED}: 0.12 and 0.16 (6, 12), 0.23 and 0.25 (24, 48); {SHORT}: 0.17",
    ),
    "least_similarity": Threshold(
        0.4,
        "token similarity that a rise must reach",
        f"{SALIENCY}: 0.42 in its first block, which is healthy",
    ),
    "collapsed_rank_share": Threshold(
        0.05,
        "effective rank of collapsed tokens, as a share of min(n, d)",
        f"{SKIPLESS}: at most 0.02 from block 1; {NO_SKIP}: at most 0.06, which is rank 1; {TRAINED}: at least 0.10; "
        f"{RANDOM}: 0.26 to 0.27; {HOST}: at least 0.38",
        "effective_rank",
        "share",
        above=False,
    ),
    "collapsed_rank": Threshold(
        1.5,
        "effective rank of collapsed tokens in any model",
        f"parallel tokens have rank 1; {NO_SKIP}: 1.0",
        "effective_rank",
        above=False,
    ),
    "rank_fall": Threshold(
        0.4,
        "relative fall of effective rank below its highest earlier value",
        f"{SALIENCY}: 0.25 at block 8, 0.44 at block 10; {HOST}: 0.16; "
        f"{TRAINED}: 0.16 and 0.30 (6, 12), 0.51 and 0.62 (24, 48); {SHORT}: 0.41",
        above=False,
    ),
    "far_rise": Threshold(
        0.3,
        "rise of token similarity that is suspicious by itself",
        f"twice `similarity_rise`; {TRAINED}: at most 0.25; {TREATED}: 0.37, where rank falls by 0.31 only",
    ),
    "far_fall": Threshold(
        0.65,
        "relative fall of effective rank that is suspicious by itself",
        f"the largest fall of {TRAINED} is 0.62",
        above=False,
    ),
    "uniform_entropy": Threshold(
        0.97, "entropy of uniform attention, as a share of log m", f"{RANDOM}: 1.00", "attention_entropy", "share"
    ),
    "uniform_sensitivity": Threshold(
        0.01, "query sensitivity of uniform attention", f"{RANDOM}: below 0.001", "query_sensitivity", above=False
    ),
    "weak_branch": Threshold(
        0.5, "branch ratio below which uniform attention does little harm", f"{RANDOM}: 0.04 to 0.05"
    ),
    "dominant_branch": Threshold(
        3.0,
        "branch ratio at which a branch dominates the skip",
        f"{SALIENCY}: 0.5 to 0.9, then 4.2",
        "branch_ratio",
        "attn",
    ),
    "low_pass": Threshold(
        0.9, "entropy of smoothing attention, as a share of log m", f"{SALIENCY}: at most 0.77; {HOST}: at most 0.84"
    ),
    "idle_influence": Threshold(
        0.01, "block influence of an idle block", f"{RANDOM}: 0.004 to 0.012", "block_influence", above=False
    ),
    "idle_branch": Threshold(0.1, "branch ratio of an idle branch", f"{RANDOM}: 0.04 to 0.05"),
    "idle_cka": Threshold(0.99, "CKA of an idle block with the previous block", f"{RANDOM}: 1.000", "layer_cka"),
    "similar_blocks": Threshold(0.5, "share of the other blocks with similar maps", f"{SALIENCY}: none"),
    "ill_conditioned_branch": Threshold(
        9.0,
        "robust log condition number of the attention branch",
        f"{SALIENCY}: 7.3 to 15",
        "log_condition",
        "attn.robust",
    ),
    "skip_reduction": Threshold(3.0, "reduction of that number by the skip", f"{SALIENCY}: 2.6 to 7.5"),
    "low_map_rank": Threshold(
        0.3,
        "equivalent rank of maps, as a share of their size",
        f"{SALIENCY}: 0.09 to 0.55",
        "equivalent_rank",
        "share",
        above=False,
    ),
    "outlier_ratio": Threshold(
        5.0, "largest token norm over the median norm", f"{SALIENCY}: at most 2.4", "token_norm_outliers", "ratio"
    ),
    "sink_attention": Threshold(
        0.3,
        "attention of one head to its sinks",
        f"the bound of Gu et al. (2025) for one key; {SALIENCY}: 0.14 to 0.94 in block 0, at most 0.31 later",
    ),
    "idle_sink_value": Threshold(
        0.5,
        "value norm of sinks that do nothing, relative to other values",
        f"{SALIENCY}: 0.20 to 0.66 in five heads of block 0, 2.05 in the sixth",
        above=False,
    ),
    "broadcast_output": Threshold(
        0.5,
        "share of the output of a head that its sinks write, if they broadcast",
        f"half of the output; {SALIENCY}: 0.98 in one head of block 0, 0.03 to 0.31 in the other five",
    ),
    "int8_error": Threshold(
        0.1,
        "relative error of int8 with one scale for all tokens and channels",
        f"a signal-to-noise ratio of 20 dB; {SALIENCY}: 0.03 to 0.09, and 0.004 to 0.008 with one scale per channel",
        "outlier_channels",
        "int8",
    ),
}


def threshold(name: str) -> float:
    return THRESHOLDS[name].value
