"""Short paths give the results of a mode, are taken where they can be, and miss nothing without an error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.support.small_hosts import example, host, outputs, treat
from unsmooth.hosts.inputs import first_tensor, run
from unsmooth.seam import functional_view
from unsmooth.seam.functional_view import viewed
from unsmooth.seam.patched import ModulePatches, module_patches, patches_of
from unsmooth.seam.residual_sums import ResidualScale, ResidualStream

ATTENTION = ("attn_scale", "exclusive_attention", "graph_filter", "talking_heads", "l2_attention", "sink_logit")
RESIDUAL = ("no_skip", "no_skip(branch=mlp)", "no_skip(branch=both)", "orthogonal_residual")


class Watched(TorchFunctionMode):
    """A mode that changes nothing: inside it, no short path is taken."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def outputs_and_gradients(model: nn.Module, family: str) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(0)  # of dropout
    out = first_tensor(run(model, example(family)))
    assert out is not None
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("remedy", [*ATTENTION, *RESIDUAL, "no_skip+attn_scale"])
def test_a_short_path_gives_the_bits_of_a_mode(remedy: str, training: bool) -> None:
    model = treat(host("deit"), remedy).train(training)
    first = outputs_and_gradients(model, "deit")  # which finds out about the path
    short = outputs_and_gradients(model, "deit")
    with Watched():
        long = outputs_and_gradients(model, "deit")
    for a, b, c in zip(first, short, long, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)


def by_view(model: nn.Module) -> list[bool]:
    """What was found out about the attention of each patched module."""
    return [value for patches in patches_of(model) for kind, value in patches.memo.items() if isinstance(kind, tuple)]


@pytest.mark.parametrize(
    ("family", "short"), [("deit", True), ("hf_vit", False), ("torchvision_vit", False), ("swin", False)]
)
def test_the_view_is_used_where_a_forward_calls_fused_attention_itself(family: str, short: bool) -> None:
    model = treat(host(family), "attn_scale").eval()
    assert by_view(model) == []
    outputs(model, family)
    found = by_view(model)
    assert found
    assert all(value is short for value in found)


def test_no_mode_is_entered_on_a_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = treat(host("deit"), "attn_scale+no_skip(branch=mlp)").eval()
    wanted = outputs(model, "deit")

    def entered(self: Any) -> None:
        raise AssertionError("a mode was entered")

    monkeypatch.setattr("unsmooth.seam.patched.PatchedForward.__enter__", entered)
    assert torch.equal(outputs(model, "deit"), wanted)


def test_a_host_that_leaves_its_fused_attention_raises_once_and_is_treated_then() -> None:
    model = treat(host("deit"), "attn_scale").eval()
    wanted = outputs(model, "deit")
    for block in model.blocks:
        block.attn.fused_attn = False
    for _ in model.blocks:  # each block finds out for itself
        with pytest.raises(RuntimeError, match="did not reach the attention"):
            outputs(model, "deit")
    torch.testing.assert_close(outputs(model, "deit"), wanted, rtol=1e-4, atol=1e-4)


class Doubled(nn.Module):
    """A patch that doubles the output of attention."""

    attention_order, rescores, scores_product, reads_tokens, transforms = 0, False, 0, False, True

    def transform(self, attend: Any, v: Tensor, x: Tensor | None) -> Tensor:
        return 2 * attend(v)

    def change(self, call: Any) -> Any:
        attend = call.attend
        call.attend = lambda v: 2 * attend(v)
        return call

    def masked(self, q: Tensor, k: Tensor, options: Any) -> Any:
        return options

    def reweight(self, weights: Tensor, logits: Tensor) -> Tensor:
        return weights


def test_training_and_flags_are_found_out_apart() -> None:
    class Switching(nn.Module):
        """Attention that is fused in evaluation only, and unless a flag asks for the map."""

        def forward(self, x: Tensor, explicit: bool = False) -> Tensor:
            if self.training or explicit:
                return (x @ x.transpose(-2, -1) * x.shape[-1] ** -0.5).softmax(dim=-1) @ x
            return F.scaled_dot_product_attention(x, x, x)

    module, x = Switching().eval(), torch.randn(2, 3, 5, 4)
    wanted = 2 * module(x)
    module_patches(module).attention.append(Doubled())
    for _ in range(2):
        torch.testing.assert_close(module(x), wanted)
        torch.testing.assert_close(module(x, True), wanted)
        torch.testing.assert_close(module(x, explicit=True), wanted)
        torch.testing.assert_close(module.train()(x), wanted)
        module.eval()
    assert sorted(by_view(module)) == [False, False, False, True]


CALLS = 0


class Counting(nn.Module):
    """Attention that counts its calls in a global."""

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return F.scaled_dot_product_attention(x, x, x)


class CountingInside(nn.Module):
    """The same in a function that its forward defines."""

    def forward(self, x: Tensor) -> Tensor:
        def count() -> None:
            global CALLS
            CALLS += 1

        count()
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("kind", [Counting, CountingInside])
def test_a_forward_that_writes_a_global_writes_that_of_its_module(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(), nn.Identity())
    module_patches(model[0]).attention.append(Doubled())
    for _ in range(3):
        before = CALLS
        model(torch.randn(1, 2, 3, 4))
        assert before + 1 == CALLS


def test_a_viewed_function_reads_the_live_names_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    function = viewed(live_names)
    assert function is not None
    x = torch.randn(1, 2, 3, 4)
    assert torch.equal(function(x), live_names(x))
    monkeypatch.setitem(live_names.__globals__, "FACTOR", 3.0)
    assert torch.equal(function(x), live_names(x))
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: v)
    assert torch.equal(function(x), 3.0 * x)


FACTOR = 2.0


def live_names(x: Tensor) -> Tensor:
    return FACTOR * F.scaled_dot_product_attention(x, x, x)


def test_functions_without_the_name_have_no_view() -> None:
    assert viewed(torch.relu) is None
    assert viewed(functional_view.threading.Thread.start) is None


def test_copies_find_out_for_themselves() -> None:
    model = treat(host("deit"), "attn_scale").eval()
    wanted = outputs(model, "deit")
    copied = copy.deepcopy(model)
    assert by_view(copied) == []
    assert torch.equal(outputs(copied, "deit"), wanted)


def test_a_new_patch_is_found_out_about() -> None:
    model = treat(host("deit"), "attn_scale").eval()
    outputs(model, "deit")
    module_patches(model.blocks[0].attn)
    assert by_view(model) == [True] * (len(model.blocks) - 1)


def test_the_output_of_a_block_is_a_plain_tensor() -> None:
    model = treat(host("deit"), "no_skip(branch=attn)").eval()
    seen = []
    handles = [
        module.register_forward_hook(lambda module, args, out: seen.append((type(args[0]), type(out))))
        for module in (model.blocks[0], model.blocks[0].mlp, model.blocks[1])
    ]
    outputs(model, "deit")
    for handle in handles:
        handle.remove()
    assert seen == [(Tensor, Tensor)] * 3


def test_a_stream_is_followed_to_its_last_patched_sum() -> None:
    patches = ModulePatches(residuals=[ResidualScale("attn", 0.5, 2.0)], residual_branches=("attn", "mlp"))
    sums, x, branch = patches.sums(), torch.randn(2, 3), torch.randn(2, 3)
    stream = ResidualStream.of(x, sums)
    assert torch.equal(stream + 1.0, x + 1.0), "not a sum of two tensors"
    assert torch.equal(stream + branch[:1], x + branch[:1]), "nor of two of one shape"
    assert torch.equal(stream.add(branch, alpha=2.0), x + 2.0 * branch)
    assert not sums.complete
    out = stream + branch
    assert type(out) is Tensor
    assert sums.complete
    torch.testing.assert_close(out, 0.5 * x + 2.0 * branch)
    assert torch.equal(stream + branch, x + branch), "it is the stream no more"


def test_a_stream_works_inside_function_transforms() -> None:
    model = treat(host("deit"), "no_skip(branch=both)").eval()
    image = torch.randn(3, *example("deit")["image"].shape[1:])
    batched = torch.func.vmap(lambda x: model(x[None])[0])(image)
    torch.testing.assert_close(batched, model(image), rtol=1e-4, atol=1e-4)
