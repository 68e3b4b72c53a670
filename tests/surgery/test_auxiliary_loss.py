"""The loss site: what is kept of a training pass, the terms made of it, and that nothing else changes."""

from __future__ import annotations

import copy
import io
import weakref

import numpy as np
import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

import unsmooth
from tests.remedies.test_diverse_patch import numpy_contrastive, numpy_cosine
from tests.support.small_hosts import CONVMIXER, example, host, treat
from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.inputs import first_tensor, run
from unsmooth.remedies.base import TokenBuffer
from unsmooth.surgery.auxiliary_loss import auxiliary_loss

# Host, its first and last block, tokens in front of the patches, and whether the channels come first.
HOSTS = {
    "deit": ("blocks.0", "blocks.1", 1, False),
    "deit_distilled": ("blocks.0", "blocks.1", 2, False),
    "dinov2_registers": ("blocks.0", "blocks.1", 5, False),
    "cait": ("blocks.0", "blocks.1", 0, False),
    "hf_deit": ("deit.layers.0", "deit.layers.1", 2, False),
    "torchvision_vit": ("encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1", 1, False),
    CONVMIXER: ("blocks.0.0", "blocks.1.0", 0, True),
    "swin": (None, "layers.1.blocks.0", 0, False),
    "pvt_v2": (None, "stages.3.blocks.0", 0, False),
    "hf_swin": (None, "swin.encoder.layers.1.blocks.0", 0, False),
    "torchvision_swin": (None, "features.3.0", 0, False),
}


def training(name: str, spec: str = "diverse_patch") -> nn.Module:
    """A treated host in training mode whose passes are all alike."""
    model = treat(host(name), spec).train()
    for module in model.modules():
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    return model


def batch(name: str, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"image": (1, 3, 32, 32)} if name == CONVMIXER else {key: x.shape for key, x in example(name).items()}
    return {key: torch.randn(2, *shape[1:], generator=generator) for key, shape in shapes.items()}


def output(model: nn.Module, name: str, seed: int = 1) -> Tensor:
    out = first_tensor(run(model, batch(name, seed)))
    assert out is not None
    return out


def term(model: nn.Module) -> Tensor:
    actual = auxiliary_loss(model)
    assert actual is not None
    return actual


def stored(model: nn.Module) -> list[Tensor | None]:
    return [part.tokens for _, part in unsmooth.parts(model) if isinstance(part, TokenBuffer)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step(model: nn.Module, name: str, inner: nn.Module | None = None) -> dict[str, Tensor]:
    """The gradients of one training step with the term in its loss."""
    model.zero_grad()
    (output(model, name).square().mean() + term(model)).backward()
    return gradients(inner or model)


def same_gradients(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# On hosts.


@pytest.mark.parametrize("name", HOSTS)
def test_on_a_host_it_is_the_losses_of_the_patch_tokens(name: str) -> None:
    first, last, prefix, channels_first = HOSTS[name]
    model = training(name, "diverse_patch(cosine=0.3, contrastive=0.7)")
    seen: dict[str, np.ndarray] = {}

    def record(at: str, x: Tensor) -> None:
        tokens = x.flatten(2).mT if channels_first else x.flatten(1, -2)
        seen[at] = tokens[:, prefix:].detach().double().numpy()

    for at in filter(None, (first, last)):
        hook = lambda module, args, out, at=at: record(at, out[0] if isinstance(out, tuple) else out)  # noqa: E731
        model.get_submodule(at).register_forward_hook(hook)
    output(model, name)
    tokens = seen[last]
    wanted = 0.3 * numpy_cosine(tokens)
    if first is not None:
        wanted += 0.7 * numpy_contrastive(seen[first], tokens)
    assert term(model).item() == pytest.approx(wanted, rel=1e-4)


def test_weights_turn_terms_off() -> None:
    values = {}
    for spec in ("cosine=0", "contrastive=0", "cosine=1.0, contrastive=2.0"):
        model = training("deit", f"diverse_patch({spec})")
        output(model, "deit")
        assert len(stored(model)) == (1 if spec == "contrastive=0" else 2)
        values[spec] = term(model).item()
    both = 2 * values["contrastive=0"] + 4 * values["cosine=0"]
    assert values["cosine=1.0, contrastive=2.0"] == pytest.approx(both, rel=1e-5)


@pytest.mark.parametrize("name", ["deit", "hf_vit", "torchvision_vit", "swin", "cait"])
def test_gradients_reach_the_host(name: str) -> None:
    """All of it up to the last block, and nothing behind that."""
    model = training(name)
    output(model, name)
    term(model).backward()
    actual = gradients(model)
    last = [n for n, _ in unsmooth.parts(model)][-1].rpartition(".")[0]
    embedding = next(n for n, _ in model.named_parameters() if n.endswith(("proj.weight", "projection.weight")))
    for key in (embedding, *(n for n, _ in model.named_parameters() if n.startswith(last) and n.endswith("weight"))):
        assert actual[key].isfinite().all()
        assert actual[key].abs().max() > 0, key
    assert not any(key.startswith(("head", "classifier", "heads")) for key in actual)


def test_it_makes_tokens_differ() -> None:
    model = training("deit")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    values = []
    for _ in range(12):
        output(model, "deit")
        loss = term(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.7 * values[0]


def test_a_training_pass_is_the_hosts_own() -> None:
    model, plain = training("deit"), host("deit").train()
    assert torch.equal(output(model, "deit"), output(plain, "deit"))


# What is kept, and for how long.


def test_without_a_loss_remedy_there_is_no_term() -> None:
    assert auxiliary_loss(host("deit").train()) is None
    assert auxiliary_loss(treat(host("deit"), "attn_scale").train()) is None
    model = training("deit")
    unsmooth.remove(model)
    output(model, "deit")
    assert auxiliary_loss(model) is None


def test_nothing_is_stored_outside_of_training() -> None:
    model = training("deit")
    with torch.no_grad():
        output(model, "deit")
    assert stored(model) == [None, None]
    output(model.eval(), "deit")
    assert stored(model) == [None, None]
    with pytest.raises(UnsmoothError, match="diverse_patch saw no forward pass in training mode"):
        auxiliary_loss(model)


def test_a_pass_counts_once_and_a_pass_in_eval_mode_does_not_count() -> None:
    model = training("deit")
    output(model, "deit", seed=1)
    wanted = term(model).item()
    with pytest.raises(UnsmoothError, match="since the last"):
        auxiliary_loss(model)
    output(model, "deit", seed=1)
    with torch.no_grad():
        output(model, "deit", seed=2)
    assert term(model).item() == wanted
    output(model, "deit", seed=2)
    output(model, "deit", seed=1)
    assert term(model).item() == wanted, "the last pass counts"


def test_tokens_are_released() -> None:
    model = training("deit")
    output(model, "deit")
    watched = [weakref.ref(x) for x in stored(model)]
    assert len(watched) == 2
    assert all(ref() is not None for ref in watched)
    loss = term(model)
    assert stored(model) == [None, None]
    loss.backward()
    del loss
    assert all(ref() is None for ref in watched)


def test_stored_tokens_are_not_changed_in_place() -> None:
    """A host may add to its residual stream in place."""
    model = training("deit")
    (_, part), *_ = unsmooth.parts(model)
    assert isinstance(part, TokenBuffer)
    x = torch.randn(1, 5, 48, requires_grad=True) * 1.0
    before = x.detach().clone()
    assert part.treat(x, None) is x
    x.add_(1)
    tokens = part.take()
    assert tokens is not None
    assert torch.equal(tokens, before[:, 1:])


def test_accumulated_gradients_add_up() -> None:
    model = training("deit")
    wanted: dict[str, Tensor] = {}
    for seed in (1, 2):
        model.zero_grad()
        output(model, "deit", seed)
        term(model).backward()
        wanted = {key: value + wanted.get(key, 0) for key, value in gradients(model).items()}
    model.zero_grad()
    for seed in (1, 2):
        output(model, "deit", seed)
        term(model).backward()
    same_gradients(gradients(model), wanted)


# Copies and wrappers.


def test_copies_have_no_tokens_and_their_own_loss() -> None:
    model = training("deit")
    output(model, "deit")
    copied, average = copy.deepcopy(model), ModelEmaV3(model, decay=0.5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    wanted = term(model).item()
    for other in (copied, average.module, loaded):
        other.train()
        with pytest.raises(UnsmoothError, match="saw no forward pass"):
            auxiliary_loss(other)
        output(other, "deit")
        assert stored(model) == [None, None], "a copy keeps its own"
        assert term(other).item() == wanted
    average.update(model)
    unsmooth.remove(copied)
    assert len(stored(model)) == 2


def test_a_treated_submodule_of_a_larger_model_counts() -> None:
    inner = training("deit")
    outer = nn.Sequential(inner, nn.Linear(5, 3))
    images = batch("deit")["image"]
    outer(images)
    assert term(outer).item() > 0


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("unused", [False, True])
def test_distributed_training(unused: bool) -> None:
    model = training("deit")
    wanted = step(model, "deit")
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
    for _ in range(2):
        same_gradients(step(wrapped, "deit", model), wanted)
    assert stored(model) == [None, None]


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", ["deit", "swin", "hf_vit"])
def test_gradient_checkpointing(name: str, early_stop: bool) -> None:
    """Also where blocks run again to their very end, as those do that share a checkpoint."""
    model = training(name)
    wanted = step(model, name)
    if hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for _ in range(2):
        with set_checkpoint_early_stop(early_stop):
            same_gradients(step(model, name), wanted)
        assert all(x is None for x in stored(model)), "blocks that run again in the backward pass keep nothing"


def test_reentrant_checkpointing_raises_instead_of_dropping_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timm.layers.config._USE_REENTRANT_CKPT", True)
    model = training("deit")
    model.set_grad_checkpointing()
    out = output(model, "deit")
    with pytest.raises(UnsmoothError, match="use_reentrant=False"):
        auxiliary_loss(model)
    out.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deit", pytest.param("hf_vit", marks=pytest.mark.full)])
def test_compiled_without_a_break_and_once(name: str) -> None:
    model = training(name)
    wanted = step(model, name)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same_gradients(step(compiled, name, model), wanted)
    with torch._dynamo.config.patch(error_on_recompile=True):
        same_gradients(step(compiled, name, model), wanted)
    output(compiled.eval(), name)
    assert all(x is None for x in stored(model))
    torch.compiler.reset()


def test_half_precision_is_measured_in_single() -> None:
    model = training("deit")
    output(model, "deit")
    wanted = term(model).item()
    output(model, "deit")
    with torch.autocast("cpu", torch.bfloat16):
        assert term(model).item() == wanted
        output(model, "deit")
        assert term(model).item() == pytest.approx(wanted, rel=0.05)
    model.bfloat16()
    model(batch("deit")["image"].bfloat16())
    actual = term(model)
    assert actual.dtype == torch.float32
    assert actual.item() == pytest.approx(wanted, rel=0.05)
    actual.backward()
    assert all(value.isfinite().all() for value in gradients(model).values())


# What makes no sense.


def test_hosts_of_several_sizes_have_the_cosine_loss_alone() -> None:
    model = host("swin")
    with pytest.warns(
        UserWarning, match="not applied to block 0: the contrastive loss needs blocks of the same size; .*196 tokens"
    ):
        done = unsmooth.apply(model, "diverse_patch")
    assert done.sites == ("layers.1.blocks.0",)
    with pytest.raises(NotApplicable, match="blocks of the same size"):
        unsmooth.apply(host("swin"), "diverse_patch(cosine=0)")


def test_bad_input() -> None:
    with pytest.raises(UnsmoothError, match="leave no loss"):
        unsmooth.apply(host("deit"), "diverse_patch(cosine=0, contrastive=0)")
    with pytest.raises(UnsmoothError, match="cosine must be at least 0"):
        unsmooth.apply(host("deit"), "diverse_patch(cosine=-1)")
    with pytest.raises(UnsmoothError, match="takes no blocks"):
        unsmooth.apply(host("deit"), "diverse_patch", blocks="1:")
    shallow = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=1)"
    with pytest.raises(NotApplicable, match="the host has one; use contrastive=0"):
        unsmooth.create_model(f"{shallow}+diverse_patch")
    assert unsmooth.plan(unsmooth.create_model(shallow), "diverse_patch(contrastive=0)").sites == ("blocks.0",)
    coarse = "deit_tiny_patch16_224(img_size=32, patch_size=32, embed_dim=48, depth=2)"
    with pytest.raises(NotApplicable, match="fewer than two patch tokens"):
        unsmooth.create_model(f"{coarse}+diverse_patch")


def test_a_host_without_its_blocks_raises() -> None:
    model = training("deit")
    model.blocks = model.blocks[:1]
    output(model, "deit")
    with pytest.raises(UnsmoothError, match="were removed"):
        auxiliary_loss(model)


def test_blocks_that_change_size_while_training_raise() -> None:
    model = training("deit")
    model.blocks[0].register_forward_hook(lambda module, args, out: out[:, :-3])
    output(model, "deit")
    with pytest.raises(UnsmoothError, match=r"tokens of \(2, 16, 48\) .*contrastive=0"):
        auxiliary_loss(model)
