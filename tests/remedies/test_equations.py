"""Each remedy against its equation in plain NumPy, on a DeiT with trained-like weights and drawn parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import numpy_vit as ref
from tests.support.small_hosts import example, host, treat
from unsmooth.diagnosis.probe import probe

EQUATIONS: dict[str, tuple[type[ref.Reference], dict[str, object]]] = {
    "attn_scale": (ref.AttnScale, {}),
    "feat_scale": (ref.FeatScale, {}),
    "context_broadcast": (ref.ContextBroadcast, {}),
    "context_broadcast(position=mid)": (ref.ContextBroadcast, {"position": "mid"}),
    "context_broadcast(position=front)": (ref.ContextBroadcast, {"position": "front"}),
    "context_broadcast(branch=attn)": (ref.ContextBroadcast, {"branches": ("attn",)}),
    "context_broadcast(branch=attn, position=front)": (
        ref.ContextBroadcast,
        {"branches": ("attn",), "position": "front"},
    ),
    "context_broadcast(branch=attn, position=mid)": (ref.ContextBroadcast, {"branches": ("attn",), "position": "mid"}),
    "context_broadcast(kind=scaled, branch=both)": (
        ref.ContextBroadcast,
        {"kind": "scaled", "branches": ("attn", "mlp")},
    ),
    "context_broadcast(kind=gate)": (ref.ContextBroadcast, {"kind": "gate"}),
    "context_broadcast(kind=hybrid)": (ref.ContextBroadcast, {"kind": "hybrid"}),
    "augmented_shortcut": (ref.AugmentedShortcut, {}),
    "augmented_shortcut(scale=0.75, branch=attn)": (ref.AugmentedShortcut, {"scale": 0.75, "branches": ("attn",)}),
    "augmented_shortcut(count=3, blocks_per_side=2, start=identity)": (ref.AugmentedShortcut, {}),
    "augmented_shortcut(count=1, blocks_per_side=16)": (ref.AugmentedShortcut, {}),
    "token_graying": (ref.TokenGraying, {}),
    "token_graying(epsilon=0.7, rescale=false)": (ref.TokenGraying, {"epsilon": 0.7, "rescale": False}),
    "token_graying(where=patches)": (ref.TokenGraying, {"where": "patches"}),
    "token_graying(transform=svd)": (ref.TokenGraying, {"transform": "svd", "epsilon": 0.65}),
    "token_graying(transform=svd, rescale=false)": (
        ref.TokenGraying,
        {"transform": "svd", "epsilon": 0.65, "rescale": False},
    ),
    "token_graying(transform=svd, where=patches, epsilon=0.5)": (
        ref.TokenGraying,
        {"transform": "svd", "where": "patches", "epsilon": 0.5},
    ),
    "adder_attention": (ref.AdderAttention, {}),
    "adder_attention(identity=false)": (ref.AdderAttention, {"identity": False}),
    "adder": (ref.Adder, {}),
    "l2_attention": (ref.L2Attention, {}),
    "l2_attention(tau=3.0)": (ref.L2Attention, {"tau": 3.0}),
    "logistic_attention": (ref.LogisticAttention, {}),
    "logistic_attention(slope=1)": (ref.LogisticAttention, {"slope": 1.0}),
    "layer_scale": (ref.LayerScale, {}),
    "layer_scale(branch=attn)": (ref.LayerScale, {"branches": ("attn",)}),
    "shaped_attention": (ref.ShapedAttention, {}),
    "centred_attention": (ref.CentredAttention, {}),
    "exclusive_attention": (ref.ExclusiveAttention, {}),
    "graph_filter": (ref.GraphFilter, {}),
    "graph_filter(order=5)": (ref.GraphFilter, {"order": 5}),
    "gated_attention": (ref.GatedAttention, {}),
    "gated_attention(gate=head)": (ref.GatedAttention, {}),
    "value_anchor": (ref.ValueAnchor, {}),
    "value_anchor(kind=residual, blocks=1)": (ref.ValueAnchor, {"kind": "residual"}),
    "re_attention": (ref.ReAttention, {}),
    "talking_heads": (ref.TalkingHeads, {}),
    "contra_norm": (ref.ContraNorm, {}),
    "contra_norm(branch=both, tau=0.5)": (ref.ContraNorm, {"branches": ("attn", "mlp"), "tau": 0.5}),
    "orthogonal_residual": (ref.OrthogonalResidual, {}),
    "orthogonal_residual(branch=mlp)": (
        ref.OrthogonalResidual,
        {"parts": {"mlp": "unsmooth_orthogonal_residual"}},
    ),
    "sigma_reparam": (ref.SigmaReparam, {}),
    "sigma_reparam(branch=mlp)": (ref.SigmaReparam, {"layers": ("mlp.fc1", "mlp.fc2")}),
    "qk_norm": (ref.QkNorm, {}),
    "qk_norm(norm=rms)": (ref.QkNorm, {"centred": False}),
    "specialized_norm": (ref.SpecializedNorm, {}),
    "specialized_norm(branch=attn)": (ref.SpecializedNorm, {"branches": ("attn",)}),
    "sink_logit": (ref.SinkLogit, {}),
    "registers": (ref.Registers, {}),
    "registers(count=1)": (ref.Registers, {}),
    "test_time_register": (ref.TestTimeRegister, {}),
    "diverse_patch": (ref.Reference, {}),  # the host's own; its losses are in test_diverse_patch.py
    "gram_anchor": (ref.Reference, {}),  # the same, in test_gram_anchor.py
    "attention_diversity": (ref.Reference, {}),  # the same, in test_attention_diversity.py
    "no_skip": (ref.NoSkip, {}),
    "no_skip(branch=mlp)": (ref.NoSkip, {"branches": ("mlp",)}),
    "no_skip(branch=both)": (ref.NoSkip, {"branches": ("attn", "mlp")}),
}


def numpy_outputs(
    kind: type[ref.Reference], settings: dict[str, object], model: torch.nn.Module, x: torch.Tensor
) -> np.ndarray:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    reference = type(kind.__name__, (kind,), settings)(state, heads=3, patch=8)
    return reference(x.numpy())


def images() -> torch.Tensor:
    return torch.randn(2, *example("deit")["image"].shape[1:], generator=torch.Generator().manual_seed(5))


def test_the_reference_is_the_host() -> None:
    model = host("deit")
    with torch.no_grad():
        assert np.allclose(model(images()).numpy(), numpy_outputs(ref.Reference, {}, model, images()), atol=1e-4)


@pytest.mark.parametrize("spec", EQUATIONS)
def test_a_treated_model_is_its_equation(spec: str) -> None:
    kind, settings = EQUATIONS[spec]
    model = treat(host("deit"), spec)
    expected = numpy_outputs(kind, settings, model, images())
    with torch.no_grad():
        actual = model(images()).numpy()
    assert np.abs(actual - expected).max() < 2e-4 * np.abs(expected).max()
    with torch.no_grad():
        double = model.double()(images().double()).numpy()
    # In double precision nothing but the equation is left. Graying keeps its DCT in at least single precision.
    assert np.abs(double - expected).max() < 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize(("slope", "equal"), [(1.0, True), (0.2, False)])
def test_logistic_attention_as_printed_has_equal_rows(slope: float, equal: bool) -> None:
    """Eq. 68: the query's term is the same in a whole row, so the softmax cancels it. LeakyReLU keeps it."""
    model = treat(host("deit"), f"logistic_attention(slope={slope})").double()
    maps: list[torch.Tensor] = []
    with torch.no_grad(), probe(model, on_attention=lambda block, attention, call: maps.append(call.map())):
        before = model(images().double())
        for name, value in model.state_dict().items():
            if name.endswith(("u_q", ".b")):
                value.normal_()
        after = model(images().double())
    spread = max((a - a.mean(-2, keepdim=True)).abs().max().item() for a in maps)
    assert (spread < 1e-12) == equal
    assert torch.allclose(before, after, atol=1e-9) == equal  # u_q and b have no effect at all


def test_every_remedy_has_an_equation() -> None:
    import unsmooth

    assert {spec.partition("(")[0] for spec in EQUATIONS} == set(unsmooth.list_remedies())


@pytest.mark.parametrize("kind", ["plain", "scaled"])
def test_context_broadcasting_at_mid_equals_end(kind: str) -> None:
    """The same function without dropout: the mean passes the linear layer (for λ: equal over channels)."""
    mid, end = (treat(host("deit"), f"context_broadcast(position={p}, kind={kind})") for p in ("mid", "end"))
    if kind == "scaled":
        for model in (mid, end):
            for name, value in model.state_dict().items():
                if name.endswith(".lam"):
                    value.fill_(0.4)
        for block in (*mid.blocks, *end.blocks):
            block.mlp.fc2.bias.data.zero_()  # the scaled mean counts the bias once at mid and 1+λ times at end
    with torch.no_grad():
        assert torch.allclose(mid(images()), end(images()), atol=1e-4)
