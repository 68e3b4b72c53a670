"""Gradient checkpointing of models whose blocks read what earlier blocks kept: right gradients, or an error."""

from __future__ import annotations

import copy
import threading
from functools import partial

import pytest
import torch
from timm.models import checkpoint_seq
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support.small_hosts import host, treat

CARRIED = [
    "value_anchor(start=paper)",
    "value_anchor(kind=residual, start=paper, blocks=2)",
    "registers",
    "test_time_register",
    "registers+value_anchor(start=paper)",
    "value_anchor(start=paper)+registers",
]


def model_of(case: str) -> nn.Module:
    model = host("deit")
    model.blocks = nn.Sequential(*(copy.deepcopy(block) for block in (*model.blocks, *model.blocks)))
    return treat(model, case).train()


def gradients(model: nn.Module, batches: list[Tensor], together: bool) -> dict[str, Tensor]:
    """Of the sum of the losses of several batches, with one backward pass or with one for each."""
    model.zero_grad()
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        losses.append(loss)
        if not together:
            loss.backward()
    if together:
        torch.stack(losses).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def batches() -> list[Tensor]:
    return list(torch.randn(3, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("case", CARRIED)
def test_several_forward_passes_before_one_backward_pass(case: str, every: int) -> None:
    model = model_of(case)
    expected = gradients(model, batches(), together=False)
    run = model.blocks.forward
    model.blocks.forward = partial(checkpoint_seq, list(model.blocks), every=every, use_reentrant=False)
    actual = gradients(model, batches(), together=True)
    model.blocks.forward = run
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("case", CARRIED)
def test_a_reentrant_checkpoint_raises(case: str) -> None:
    """Its inputs are copies, and no gradient would reach what earlier blocks kept."""
    model = model_of(case)
    model.blocks.forward = partial(checkpoint_seq, list(model.blocks), use_reentrant=True)
    with pytest.raises(RuntimeError, match=r"unsmooth: .*use_reentrant=False"):
        model(batches()[0].requires_grad_()).sum().backward()


def test_a_checkpoint_that_changes_the_tokens_first_raises() -> None:
    model = model_of("registers")

    def blocks(x: Tensor) -> Tensor:
        for block in model.blocks:
            x = checkpoint(lambda tokens, block=block: block(tokens * 1.0), x, use_reentrant=False)
        return x

    model.blocks.forward = blocks
    with pytest.raises(RuntimeError, match="around whole blocks"):
        model(batches()[0]).sum().backward()


@pytest.mark.parametrize("case", [*CARRIED, "augmented_shortcut"])
@pytest.mark.parametrize("name", ["deit", "hf_vit"])
def test_threads_do_not_see_each_others_tensors(name: str, case: str) -> None:
    if name == "hf_vit":
        case = case.replace(", blocks=2", "")
        model = treat(host(name), case).eval()
    else:
        model = model_of(case).eval()
    given = torch.randn(4, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def run(image: Tensor) -> Tensor:
        with torch.no_grad():
            out = model(image)
        return out if isinstance(out, Tensor) else out[0]

    expected = [run(image) for image in given]
    wrong: list[int] = []

    def repeat(index: int) -> None:
        wrong.extend(index for _ in range(15) if not torch.equal(run(given[index]), expected[index]))

    threads = [threading.Thread(target=repeat, args=(index,), daemon=True) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads) and not wrong
