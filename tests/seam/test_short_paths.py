"""The short paths of treated modules give the results of a mode, and notice when they do not fit any more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.small_hosts import host, outputs, treat
from unsmooth.seam import patched
from unsmooth.seam.patched import PatchedForward, module_patches
from unsmooth.seam.stream import Stream

CASES = ["attn_scale", "exclusive_attention+attn_scale", "value_anchor", "no_skip", "no_skip(branch=both)",
         "augmented_shortcut(scale=0.75)", "orthogonal_residual"]  # fmt: skip


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that ran inside a mode."""
    entered: list[str] = []
    enter = PatchedForward.__enter__

    def counted(self: PatchedForward) -> Any:
        entered.append("mode")
        return enter(self)

    monkeypatch.setattr(PatchedForward, "__enter__", counted)
    return entered


@pytest.mark.parametrize("case", CASES)
def test_a_short_path_gives_the_results_of_a_mode(case: str, modes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = treat(host("deit"), case)
    outputs(model, "deit")
    modes.clear()
    short = outputs(model, "deit")
    assert not modes
    monkeypatch.setattr(patched, "takes_short_path", lambda *given: False)
    monkeypatch.setattr(patched, "takes_stream", lambda *given: False)
    by_mode = outputs(model, "deit")
    assert modes
    assert torch.equal(short, by_mode)


def test_a_switch_of_the_host_leads_back_to_the_mode(modes: list[str]) -> None:
    model = treat(host("deit"), "attn_scale")
    fused = outputs(model, "deit")
    for block in model.blocks:
        block.attn.fused_attn = False
    modes.clear()
    torch.testing.assert_close(outputs(model, "deit"), fused, rtol=1e-4, atol=1e-5)
    assert len(modes) == len(model.blocks)


def test_an_attention_that_is_not_reached_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    model = treat(host("deit"), "attn_scale")
    outputs(model, "deit")
    monkeypatch.setattr(patched.direct, "run", lambda forward, patches, module, args, kwargs: (args[0], 0))
    with pytest.raises(RuntimeError, match="did not reach the attention"):
        outputs(model, "deit")


def test_copies_learn_their_path_again() -> None:
    model = treat(host("deit"), "attn_scale")
    outputs(model, "deit")
    assert module_patches(model.blocks[0].attn).switches is not None
    assert module_patches(copy.deepcopy(model).blocks[0].attn).switches is None


@pytest.mark.parametrize("case", ["no_skip", "no_skip(branch=mlp)"])
def test_no_stream_leaves_a_block(case: str) -> None:
    model, seen = treat(host("deit"), case), []

    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        seen.append(type(out))

    for block in model.blocks:
        for module in (block, block.attn, block.mlp):
            module.register_forward_hook(keep)
    outputs(model, "deit")
    assert seen and not any(issubclass(kind, Stream) for kind in seen)
