"""The two forms of an attention patch agree: as a function of the values, and as a matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import unsmooth
from tests.support.small_hosts import CASES, FEW, REFUSED, host, outputs, treat
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Attention, Block
from unsmooth.remedies.base import AttentionPatch, OutputPatch
from unsmooth.seam.intercept import AttentionCall


def maps_and_outputs(model: torch.nn.Module, name: str) -> list[tuple[Tensor, Tensor]]:
    """What the effective map makes of the values of each block, and what the attention did."""
    seen: list[tuple[Tensor, Tensor]] = []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        seen.append((call.map() @ call.v, call.attend(call.v)))

    with probe(model, on_attention=record):
        outputs(model, name)
    return seen


@pytest.mark.parametrize(("name", "case"), [(n, c) for n in FEW for c in CASES if (n, c) not in REFUSED])
@pytest.mark.filterwarnings("ignore:.*is not applied to block")
def test_the_matrix_is_what_the_function_does(name: str, case: str) -> None:
    model = treat(host(name), case)
    patches = [patch for _, patch in unsmooth.parts(model) if isinstance(patch, AttentionPatch)]
    pairs = maps_and_outputs(model, name)
    agree = [torch.allclose(mine, real, rtol=1e-4, atol=1e-4) for mine, real in pairs]
    if any(isinstance(patch, OutputPatch) for patch in patches):
        assert not all(agree), "an output patch changes the output and not the map"
    else:
        assert all(agree)
