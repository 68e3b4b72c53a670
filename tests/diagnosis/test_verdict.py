"""Findings and verdicts: on what is known of real models, on random and collapsed ones, and on made-up curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unsmooth
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis import rules
from unsmooth.diagnosis.prescriptions import CANDIDATES
from unsmooth.diagnosis.rules import RULES
from unsmooth.diagnosis.rules.thresholds import THRESHOLDS
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.diagnosis.verdict import reach_verdict
from unsmooth.results.measured import BlockInfo, Broken, ModelInfo, Spread, VitalResult
from unsmooth.results.verdict import Harm

# A saliency fine-tune of DINOv2 ViT-S/14 on 60 photographs, as recorded.
SALIENCY: dict[tuple[str, str], list[float]] = {
    ("token_cosine", ""): [0.419, 0.394, 0.300, 0.253, 0.256, 0.300, 0.314, 0.332, 0.349, 0.403, 0.449, 0.698],
    ("effective_rank", ""): [123.8, 136.7, 140.2, 138.7, 139.9, 122.7, 121.5, 113.9, 104.5, 91.8, 78.7, 27.9],
    ("branch_ratio", "attn"): [0.84, 0.65, 0.55, 0.55, 0.56, 0.81, 0.69, 0.93, 0.94, 0.91, 0.92, 4.2],
}
SALIENCY["effective_rank", "share"] = [rank / 257 for rank in SALIENCY["effective_rank", ""]]


def view(
    series: dict[tuple[str, str], list[Any]], remedies: tuple[str, ...] = (), broken: Broken | None = None
) -> DiagnosisView:
    """A diagnosis with these means and nothing else."""
    depth = len(next(iter(series.values())))
    results: dict[str, VitalResult] = {}
    for (key, part), means in series.items():
        vital = vitals.get(key)
        empty = VitalResult("", "", "", "", vital.family, vital.main, None, None, None, {}, {}, {})
        results.setdefault(key, empty).parts[part] = [Spread(mean) for mean in means]
    blocks = [BlockInfo(i, f"blocks.{i}", 17, 48, 1, ["attn", "mlp"], []) for i in range(depth)]
    model = ModelInfo("vit", "VisionTransformer", list(remedies), 1, "float32", blocks, [])
    return DiagnosisView(model, results, broken=broken)


def healthy(depth: int = 12) -> dict[tuple[str, str], list[float]]:
    return {
        ("token_cosine", ""): [0.4 - 0.01 * i for i in range(depth)],
        ("effective_rank", ""): [100.0] * depth,
        ("effective_rank", "share"): [0.5] * depth,
    }


def test_the_last_blocks_of_the_saliency_model_are_named_and_no_other() -> None:
    findings, verdict = reach_verdict(view(SALIENCY))
    assert verdict.state == "collapsing"
    assert verdict.blocks == [10, 11]
    assert "4.2 times the norm of the skip" in verdict.why
    assert "block 3" in findings[0].text
    assert (findings[0].value, findings[0].limit) == (0.698, 0.403) and findings[0].margin == pytest.approx(0.295)
    assert "saliency" in findings[0].source and "saliency" in verdict.caveat


def probed(before: list[bool], collapsed: list[bool]) -> DiagnosisView:
    """The saliency model with labels: which images blocks 0 to 9 and blocks 10 and 11 get right."""
    hits = np.array([before] * 10 + [collapsed] * 2)
    made = view(SALIENCY)
    lost = [[float((other & ~own).mean()) for other in hits] for own in hits]
    parts = {"": [Spread(float(own.mean()), images=len(own)) for own in hits], "lost.matrix": [Spread(r) for r in lost]}
    made.vitals["depth_probe"] = VitalResult("", "", "", "", "function", "", 0, 1, None, {}, parts, {})
    return made


def test_a_collapse_says_whether_accuracy_falls_with_it() -> None:
    findings, verdict = reach_verdict(probed([True] * 80 + [False] * 20, [True] * 50 + [False] * 50))
    harm = findings[0].harm
    assert harm is not None and harm.state == "shown"
    assert (harm.block, harm.before, harm.images) == (11, 9, 100) and harm.change == pytest.approx(-0.3)
    assert harm.low is not None and harm.high is not None and harm.low < -0.3 < harm.high < 0
    assert verdict.harm.startswith("shown: nearest-neighbour accuracy 0.50 in block 11, 0.80 in block 9")
    assert verdict.caveat == "" and not any("evaluate" in step.command for step in verdict.steps)


@pytest.mark.parametrize(
    ("before", "collapsed"),
    [
        ([True] * 80 + [False] * 20, [True] * 80 + [False] * 20),
        ([True] * 50 + [False] * 50, [True] * 80 + [False] * 20),  # it rises
        ([True] * 4 + [False], [True] * 2 + [False] * 3),  # it falls by as much as above, but on five images
    ],
)
def test_a_collapse_without_a_fall_of_accuracy_shows_no_harm(before: list[bool], collapsed: list[bool]) -> None:
    findings, verdict = reach_verdict(probed(before, collapsed))
    assert verdict.state == "collapsing" and findings[0].harm is not None
    assert findings[0].harm.state == "not shown" and (findings[0].harm.high or 0) >= 0
    assert verdict.steps[0].command == "unsmooth evaluate vit --tokens LABELLED_FOLDER"


def test_harm_is_not_measured_without_labels_and_not_asked_without_a_collapse() -> None:
    findings, verdict = reach_verdict(view(SALIENCY))
    assert findings[0].harm == Harm("not measured", "no labels were given")
    assert verdict.harm == "not measured: no labels were given" and "not accuracy" in verdict.caveat
    assert reach_verdict(view(healthy()))[1].harm == ""


def test_a_collapse_from_the_first_block_has_nothing_to_fall_from() -> None:
    collapsed = {key: [0.99 if key[0] == "token_cosine" else 0.01] * 12 for key in healthy()}
    made = view(collapsed)
    made.vitals["depth_probe"] = probed([True, False], [True, False]).vitals["depth_probe"]
    harm = reach_verdict(made)[0][0].harm
    assert harm is not None and harm.state == "not shown" and "no earlier block" in harm.text


def test_a_healthy_model_needs_no_action() -> None:
    findings, verdict = reach_verdict(view(healthy()))
    assert findings == []
    assert verdict.state == "healthy" and verdict.text.startswith("No action needed")


@pytest.mark.parametrize("key", [("token_cosine", ""), ("effective_rank", "share")])
def test_one_family_alone_is_no_collapse(key: tuple[str, str]) -> None:
    series = healthy()
    series[key] = [0.3] * 11 + [0.99] if key[0] == "token_cosine" else [0.5] * 11 + [0.01]
    findings, verdict = reach_verdict(view(series))
    assert verdict.state == "suspicious"
    assert findings[0].key == "one_sided" and findings[0].blocks == verdict.blocks == [11]


def test_a_trend_past_its_limit_is_said_although_the_other_one_is_not() -> None:
    series = healthy()
    series["token_cosine", ""] = [0.3] * 11 + [0.5]
    findings, verdict = reach_verdict(view(series))
    assert (findings, verdict.state) == ([], "healthy")
    assert "No action" not in verdict.text and "similarity rises in block 11" in verdict.text
    assert "rises by 0.20 up to block 11 (limit: 0.15)" in verdict.trends and "0.30 to 0.50" in verdict.levels


def test_the_rise_that_used_to_vanish() -> None:
    """A rise of 0.43 to 0.90, while rank falls by 39 %: not both limits, but far past one of them."""
    series = healthy()
    series["token_cosine", ""] = [0.47] * 11 + [0.90]
    series["effective_rank", "share"] = [0.5] * 11 + [0.305]
    _, verdict = reach_verdict(view(series))
    assert verdict.state == "suspicious" and verdict.blocks == [11]


def test_collapse_from_the_first_block_on_needs_no_trend() -> None:
    series = {
        ("token_cosine", ""): [0.99] * 6,
        ("effective_rank", ""): [1.2] * 6,
        ("effective_rank", "share"): [0.01] * 6,
    }
    findings, verdict = reach_verdict(view(series))
    assert verdict.state == "collapsed" and verdict.blocks == list(range(6))
    assert findings[0].severity == "severe"
    assert "from the first block" in findings[0].text


def test_too_little_to_judge_by() -> None:
    _, verdict = reach_verdict(view({("token_cosine", ""): [0.3] * 4}))
    assert verdict.state == "unknown"
    assert "effective_rank" in verdict.text


def test_what_is_not_finite_comes_first() -> None:
    findings, verdict = reach_verdict(view(healthy(), broken=Broken(3, "MLP branch")))
    assert verdict.state == "broken"
    assert "MLP branch of block 3" in findings[0].text


MADE_UP: dict[str, dict[tuple[str, str], list[Any]]] = {
    "one_sided": {("token_cosine", ""): [0.3] * 11 + [0.95]},
    "uniform_attention": {
        ("attention_entropy", "share"): [0.5] * 11 + [0.99],
        ("query_sensitivity", ""): [0.2] * 11 + [0.001],
        ("branch_ratio", "attn"): [0.7] * 12,
    },
    "untrained": {
        ("attention_entropy", "share"): [0.999] * 12,
        ("query_sensitivity", ""): [0.001] * 12,
        ("branch_ratio", "attn"): [0.05] * 12,
    },
    "similar_maps": {
        ("similar_blocks", ""): [0.0] * 4 + [7.0] * 8,
        ("layer_cka", ""): [0.9] * 12,
    },
    "idle_blocks": {
        ("block_influence", ""): [0.2] * 11 + [0.001],
        ("layer_cka", ""): [0.9] * 11 + [0.999],
        ("branch_ratio", "attn"): [0.5] * 11 + [0.01],
        ("branch_ratio", "mlp"): [0.5] * 11 + [0.01],
    },
    "ill_conditioned": {
        ("log_condition", "attn.robust"): [12.0] * 12,
        ("log_condition", "attn+skip.robust"): [6.0] * 12,
        ("equivalent_rank", "share"): [0.1] * 12,
    },
    "outlier_tokens": {
        ("token_norm_outliers", ""): [0.0] * 11 + [3.0],
        ("token_norm_outliers", "ratio"): [1.0] * 11 + [20.0],
        ("attention_cosine", ""): [0.5] * 12,
    },
    "idle_sinks": {
        ("attention_sink", "heads"): [[0.1, 0.2]] * 11 + [[0.1, 0.6]],
        ("sink_value_norm", "heads"): [[None, 0.9]] * 11 + [[None, 0.1]],
        ("sink_output", "heads"): [[None, 0.2]] * 11 + [[None, 0.02]],
    },
    "broadcasting_sinks": {
        ("attention_sink", "heads"): [[0.1, 0.2]] * 11 + [[0.1, 0.6]],
        ("sink_value_norm", "heads"): [[None, 0.9]] * 11 + [[None, 2.0]],
        ("sink_output", "heads"): [[None, 0.9]] * 11 + [[None, 0.8]],
    },
    "outlier_activations": {
        ("outlier_channels", "int8"): [0.01] * 11 + [0.3],
        ("outlier_channels", "int8.token"): [0.01] * 12,
        ("outlier_channels", "int8.channel"): [0.005] * 12,
        ("outlier_channels", "count"): [1.0] * 12,
        ("massive_activations", ""): [30.0] * 12,
        ("massive_activations", "count"): [0.0] * 12,
        ("attention_sink", ""): [0.1] * 12,
    },
}


@pytest.mark.parametrize("key", MADE_UP)
def test_each_finding_is_found_with_two_families_of_evidence(key: str) -> None:
    findings, _ = reach_verdict(view(healthy() | MADE_UP[key]))
    assert [finding.key for finding in findings] == [key]
    finding = findings[0]
    assert len({row.family for row in finding.evidence}) > 1
    assert finding.blocks and finding.text and finding.reference
    assert [row.spec.split("(")[0] for row in finding.remedies] == [
        text.split("(")[0] for text, _ in CANDIDATES.get(key, [])
    ]


def test_every_rule_is_tested() -> None:
    named = {rule.__name__ for rule in RULES} - {"not_finite", "token_collapse"}
    assert named <= set(MADE_UP)


def test_every_threshold_is_used_and_has_a_source() -> None:
    files = [path for path in Path(rules.__file__).parent.glob("*.py") if path.stem != "thresholds"]
    uses = "".join(path.read_text() for path in files)
    assert {name for name in THRESHOLDS if f'"{name}"' in uses} == set(THRESHOLDS)
    assert all(t.meaning and t.source for t in THRESHOLDS.values())


def test_remedies_that_are_there_are_not_prescribed_again() -> None:
    findings, _ = reach_verdict(view(SALIENCY, ("attn_scale",)))
    specs = [row.spec for row in findings[0].remedies]
    assert "feat_scale(blocks=10:)" in specs
    assert not any("attn_scale" in spec for spec in specs)
    safe = {row.spec.split("(")[0]: row.safe for row in findings[0].remedies}
    assert safe == {
        "feat_scale": True, "augmented_shortcut": True, "layer_scale": True, "token_graying": False,
        "diverse_patch": True,
    }  # fmt: skip


def test_prescribed_specs_can_be_applied() -> None:
    model = unsmooth.create_model("deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=12)")
    findings, _ = reach_verdict(view(SALIENCY))
    for row in findings[0].remedies:
        unsmooth.apply(model, row.spec)


HOST = "deit_tiny_patch16_224(img_size=64, patch_size=8, embed_dim=48, depth={depth}, num_classes=5)"


DEPTHS = [6, 12, 24, pytest.param(48, marks=pytest.mark.full)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_random_model_looks_untrained(depth: int) -> None:
    torch.manual_seed(0)
    diagnosis = unsmooth.diagnose(HOST.format(depth=depth), limit=4)
    assert diagnosis.verdict == "untrained"


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("branch", ["attn", "both"])
def test_a_stack_without_its_attention_skip_has_collapsed(depth: int, branch: str) -> None:
    torch.manual_seed(0)
    diagnosis = unsmooth.diagnose(f"{HOST.format(depth=depth)}+no_skip(branch={branch})", limit=4, reference=False)
    assert diagnosis.verdict == "collapsed"
    assert set(range(1, depth)) <= set(diagnosis.conclusion.blocks)
    assert "a skip is missing" in diagnosis.findings[0].why
    assert "remove" in diagnosis.findings[0].remedies[0].reason


@pytest.mark.slow
def test_a_small_model_that_learned_its_task_is_healthy() -> None:
    """Six blocks on digits: above 60 % of held-out digits, and nothing to find but notes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
    labels = torch.from_numpy(digits.target)
    torch.manual_seed(0)
    model = unsmooth.create_model(
        "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=48, num_heads=3, depth=6, num_classes=10)"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=300, pct_start=0.1)
    for _ in range(300):
        batch = torch.randint(1500, (32,))
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean()
    assert accuracy > 0.6
    diagnosis = unsmooth.diagnose(model, "digits", limit=64)
    assert diagnosis.verdict == "healthy"
    assert all(finding.severity == "note" for finding in diagnosis.findings)
