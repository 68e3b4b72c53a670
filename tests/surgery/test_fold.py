"""Folding: the same outputs from fewer operations, and honest words where it cannot be done."""

from __future__ import annotations

import warnings

import pytest
import torch

import unsmooth
from tests.support.small_hosts import ALL, host, outputs, treat
from unsmooth.surgery.fold import FoldedAway, FoldedWeight, MeanFromMap, MeanToTokens, PreparedPaths

FOLDABLE = {
    "attn_scale": MeanFromMap,
    "feat_scale": MeanToTokens,
    "context_broadcast": MeanToTokens,
    "context_broadcast(kind=scaled, branch=both)": MeanToTokens,
    "layer_scale": FoldedAway,
    "sigma_reparam": FoldedWeight,
    "augmented_shortcut": PreparedPaths,
}


def folded(model: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        return unsmooth.fold(model), [str(note.message) for note in notes]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", FOLDABLE)
def test_folded_outputs_are_equal(name: str, case: str) -> None:
    model = treat(host(name), case)
    want, keys = outputs(model, name), {k: v.clone() for k, v in model.state_dict().items()}
    result, notes = folded(model)
    assert close(outputs(result, name), want)
    assert all(torch.equal(v, keys[k]) for k, v in model.state_dict().items()), "the model itself is not changed"
    if (name, case) == ("hf_vilt", "augmented_shortcut"):
        assert "not a single module" in notes[0]
        return
    assert notes == []
    kinds = {type(part) for _, part in unsmooth.parts(result)}
    assert kinds == {FOLDABLE[case]}
    moved = [
        k
        for k, v in result.state_dict().items()
        if k in keys and v.shape == keys[k].shape and not torch.equal(v, keys[k])
    ]
    assert bool(moved) == (case != "augmented_shortcut" and case != "context_broadcast(kind=scaled, branch=both)")


@pytest.mark.parametrize(
    "spec",
    [
        "attn_scale+feat_scale+context_broadcast",
        "feat_scale+context_broadcast(branch=attn)",
        "context_broadcast(position=mid)",
        "adder_attention+attn_scale",
        "attn_scale(blocks=0)+feat_scale(blocks=1)",
    ],
)
def test_stacks_fold(spec: str) -> None:
    model = treat(host("deit"), spec)
    result, notes = folded(model)
    assert close(outputs(result, "deit"), outputs(model, "deit"))
    assert all("adder_attention" in note for note in notes)
    assert str(unsmooth.applied(result)) == str(unsmooth.applied(model))


def test_a_patch_after_another_remedy_is_not_folded() -> None:
    """FeatScale behind augmented paths scales those too, which the projection's weights cannot."""
    model = treat(host("deit"), "augmented_shortcut(branch=attn)+feat_scale")
    result, notes = folded(model)
    assert close(outputs(result, "deit"), outputs(model, "deit"))
    assert len(notes) == 1
    assert notes[0].startswith("feat_scale stays as it is")


@pytest.mark.parametrize(
    "case", ["token_graying", "adder", "no_skip", "diverse_patch", "context_broadcast(kind=gate)", "l2_attention"]
)
def test_a_remedy_that_cannot_be_folded_stays_with_a_warning(case: str) -> None:
    model = treat(host("deit"), case)
    result, notes = folded(model)
    assert [note.split(" stays as it is")[0] for note in notes] == [case.partition("(")[0]]
    assert torch.equal(outputs(result, "deit"), outputs(model, "deit"))


def test_a_gain_of_zero_is_not_divided_out() -> None:
    model = treat(host("deit"), "attn_scale")
    model.blocks[0].attn.unsmooth_attn_scale.omega.data[0] = -1.0
    result, notes = folded(model)
    assert "too small to divide by" in notes[0]
    assert torch.equal(outputs(result, "deit"), outputs(model, "deit"))


def test_gradients_pass_a_folded_model() -> None:
    """For attacks on inputs: nothing is written over that a gradient needs."""
    model = treat(host("deit"), "attn_scale+feat_scale+context_broadcast+augmented_shortcut")
    result, _ = folded(model)
    x, y = (torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    result(x).square().sum().backward()
    model(y).square().sum().backward()
    assert close(x.grad, y.grad)


def test_bad_input() -> None:
    model = treat(host("deit"), "attn_scale")
    with pytest.raises(unsmooth.UnsmoothError, match=r"training mode. Call model.eval\(\)"):
        unsmooth.fold(model.train())
    with pytest.raises(unsmooth.UnsmoothError, match="nothing to fold"):
        unsmooth.fold(host("deit"))
    result, _ = folded(model.eval())
    for call in (unsmooth.fold, unsmooth.remove, lambda m: unsmooth.apply(m, "feat_scale")):
        with pytest.raises(unsmooth.UnsmoothError, match="folded"):
            call(result)
