"""Curves of a figure from a diagnosis: reductions of spectra, and learned parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Curve
from unsmooth.papers.curves import curve_by_block
from unsmooth.results.diagnosis import Diagnosis

HOST = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=32, num_heads=2, depth=3)"


def diagnosed(remedy: str = "", omega: float = 0.0) -> Diagnosis:
    model = unsmooth.create_model(HOST + remedy)
    for i, (_, part) in enumerate(unsmooth.parts(model)):
        for name, parameter in part.named_parameters():
            parameter.data += omega * (i + 1) * {"s": -1.0}.get(name, 1.0)
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return unsmooth.diagnose(model, images, "attention_spectrum", reference=False)


def spectrum(reduce: str) -> Curve:
    return Curve(label="x", vital="attention_spectrum", part="curve", reduce=reduce)


def test_responses_relative_to_frequency_zero_of_the_head_with_the_largest() -> None:
    found = diagnosed()
    upper, peak = (curve_by_block(found, spectrum(name)) for name in ("upper response", "peak response"))
    assert upper is not None and peak is not None
    for block, spread in enumerate(found.vitals["attention_spectrum"].parts["curve"]):
        assert spread is not None
        heads = np.array(spread.mean)  # 17 tokens: frequencies 0 to 8
        assert heads.shape == (2, 9)
        assert upper.mean[block] == pytest.approx(max(head[5:].mean() / head[0] for head in heads))
        assert peak.mean[block] == pytest.approx(max(head[1:].max() / head[0] for head in heads))
        assert upper.mean[block] <= peak.mean[block] <= 1  # what softmax makes is low-pass


def test_attn_scale_makes_other_filters() -> None:
    """A nearly uniform map, its rest amplified a thousand times, passes everything but the mean."""
    upper = curve_by_block(diagnosed("+attn_scale", omega=1000.0), spectrum("upper response"))
    assert upper is not None
    assert max(value for value in upper.mean if value is not None) > 1


def test_learned_parameters_and_their_difference() -> None:
    found = diagnosed("+feat_scale", omega=0.1)
    s, t, gap = (
        curve_by_block(found, Curve(label="x", learned=text))
        for text in ("feat_scale.s", "feat_scale.t", "feat_scale.t - feat_scale.s")
    )
    assert s is not None and t is not None and gap is not None
    assert (s.by, s.mean) == ("block", pytest.approx([-0.1, -0.2, -0.3]))
    assert t.mean == pytest.approx([0.1, 0.2, 0.3])
    assert gap.mean == pytest.approx([0.2, 0.4, 0.6])
    assert curve_by_block(found, Curve(label="x", learned="attn_scale.omega")) is None
    assert curve_by_block(found, spectrum("upper response")) is not None


def test_an_unknown_reduction_is_named() -> None:
    with pytest.raises(UnsmoothError, match="upper response"):
        curve_by_block(diagnosed(), spectrum("upper"))
