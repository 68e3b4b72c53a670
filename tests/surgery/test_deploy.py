"""A treated model is deployed like its host: compiled, exported, checkpointed, averaged, pickled, in any precision."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import CASES, ON_ALL_HOSTS, example, host, treat
from unsmooth.hosts.inputs import Example, first_tensor, run
from unsmooth.remedies.base import REGISTRY
from unsmooth.surgery.plan import anatomy_of

CANONICAL = CASES[: len(REGISTRY)]
ON_DEIT = [("deit", case) for case in (*CANONICAL, "token_graying(transform=svd)")]
# Other ways to attention: windows and an explicit softmax, talking heads, another library, one packed function.
ELSEWHERE = [
    ("swin", "attn_scale+feat_scale"),
    ("swin", "adder+no_skip"),
    ("cait", "attn_scale+context_broadcast"),
    ("cait", "adder_attention"),
    ("hf_vit", "l2_attention+augmented_shortcut"),
    ("torchvision_vit", "attn_scale+no_skip"),
    ("torchvision_vit", "adder"),
]
BOTH = [*ON_DEIT, *ELSEWHERE]
# Compiling takes seconds each: here one pair per kind of host, of the papers' remedies. Of the others, one for each
# mechanism is traced without the graph of its gradients, which finds graph breaks. `make test-all` has the rest.
FULLY = {
    ("swin", "adder+no_skip"), ("cait", "adder_attention"), ("cait", "attn_scale+context_broadcast"),
    ("torchvision_vit", "adder"), ("deit", "adder"),
    ("deit", "l2_attention"), ("deit", "logistic_attention"), ("deit", "attn_scale"), ("deit", "feat_scale"),
    ("deit", "context_broadcast"), ("deit", "augmented_shortcut"), ("deit", "no_skip"),
}  # fmt: skip
TRACED = {pair for pair in ON_DEIT if pair[1] not in ON_ALL_HOSTS}
# Of those that are traced, one for each way to act: on the map, its logits, its output, a weight, across blocks, on
# more tokens, on the loss.
MECHANISMS = {
    "shaped_attention", "sink_logit", "gated_attention", "sigma_reparam", "value_anchor", "specialized_norm",
    "registers", "attention_diversity", "gram_anchor",
}  # fmt: skip
COMPILED = [
    *(pytest.param(*pair, "aot_eager", marks=pytest.mark.full if pair in FULLY | TRACED else ()) for pair in BOTH),
    *(pytest.param(*pair, "eager", marks=() if pair[1] in MECHANISMS else pytest.mark.full)
      for pair in ON_DEIT if pair in TRACED),
]  # fmt: skip
EXPORTED = [
    pytest.param(*pair, marks=pytest.mark.full if pair in TRACED and pair[1] not in MECHANISMS else ()) for pair in BOTH
]
TO_INFER = [("deit", "attn_scale+feat_scale+context_broadcast+augmented_shortcut"), ELSEWHERE[0], ELSEWHERE[-1]]
COMPILED_TO_INFER = [
    *TO_INFER, *(pytest.param(*pair, marks=pytest.mark.full) for pair in BOTH if pair not in TO_INFER)
]  # fmt: skip


def inputs(name: str, dtype: torch.dtype = torch.float32) -> Example:
    """Two images of noise in place of the host's one example."""
    generator = torch.Generator().manual_seed(1)
    return {
        key: torch.randn(2, *value.shape[1:], generator=generator).to(dtype)
        if value.is_floating_point()
        else value.repeat(2, *(1,) * (value.ndim - 1))
        for key, value in example(name).items()
    }


def forward(model: nn.Module, given: Mapping[str, Any]) -> Tensor:
    torch.manual_seed(2)  # drop path in training; ViLT shuffles its patches
    out = first_tensor(run(model, given))
    assert out is not None
    return out


def step(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The gradients of one training step, by name."""
    model.zero_grad()
    forward(model, given).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same_gradients(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "backend"), COMPILED)
def test_a_compiled_step_has_no_graph_break_and_the_same_gradients(name: str, case: str, backend: str) -> None:
    model, given = treat(host(name), case).train(), inputs(name)
    for module in model.modules():  # compiled code draws its random numbers in another order
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    plain, wanted = forward(model, given), step(model, given)
    model.zero_grad()
    torch.compiler.reset()
    out = forward(torch.compile(model, fullgraph=True, backend=backend), given)
    torch.testing.assert_close(out, plain)
    out.square().mean().backward()
    same_gradients({key: p.grad for key, p in model.named_parameters() if p.grad is not None}, wanted)
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), COMPILED_TO_INFER)
def test_a_compiled_model_has_the_same_outputs(name: str, case: str) -> None:
    """Compiled without gradients, which is another graph."""
    model, given = treat(host(name), case), inputs(name)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(forward(compiled, given), forward(model, given))
    torch.compiler.reset()


def exported(model: nn.Module, given: Example, strict: bool) -> nn.Module:
    named = dict(given)
    placed = (named.pop("image"),) if "image" in named else ()
    return torch.export.export(model, placed, named, strict=strict).module()


@pytest.mark.parametrize(("name", "case"), EXPORTED)
def test_an_exported_model_has_the_same_outputs(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    torch.testing.assert_close(forward(exported(model, given, strict=False), given), forward(model, given))


SCRIPTED = ("augmented_shortcut", "attn_scale", "no_skip", "registers")  # the others are in docs/compositions.md


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in SCRIPTED else pytest.mark.full) for c in CANONICAL])
def test_a_traced_model_has_the_same_outputs(case: str, gradients: bool) -> None:
    """A trace is checked without gradients, whether it was made with them or not."""
    model, image = treat(host("deit"), case), inputs("deit")["image"]
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, image)
    torch.testing.assert_close(traced(image), model(image))
    traced(image).sum().backward()


def test_a_folded_model_is_traced() -> None:
    model, image = unsmooth.fold(treat(host("deit"), "attn_scale+augmented_shortcut")), inputs("deit")["image"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, image)
    torch.testing.assert_close(traced(image), model(image))


@pytest.mark.parametrize("case", ["no_skip", "no_skip(branch=both)", "attn_scale+no_skip"])
def test_strict_export_never_drops_a_remedy_silently(case: str) -> None:
    """Its tracer may lose sight of the residual stream. Then it must say so."""
    model, given = treat(host("deit"), case), inputs("deit")
    torch.compiler.reset()
    try:
        program = exported(model, given, strict=True)
    except Exception as error:
        assert "unsmooth" in str(error)  # noqa: PT017
        return
    torch.testing.assert_close(forward(program, given), forward(model, given))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


# Eight bits of mantissa, through two blocks of sharp attention.
HALF_PRECISION = 0.06


@pytest.mark.parametrize(("name", "case"), BOTH)
def test_autocast_is_close_and_finite(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    wanted = forward(model, given)
    with torch.autocast("cpu", torch.bfloat16):
        out = forward(model, given)
    assert 0 < relative(out, wanted) < HALF_PRECISION
    out.float().square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "case", "dtype", "tolerance"),
    [
        *((*pair, torch.bfloat16, HALF_PRECISION) for pair in BOTH),
        *(pytest.param(*pair, torch.float64, 1e-5, marks=() if pair in ELSEWHERE else pytest.mark.full)
          for pair in BOTH),
    ],
)  # fmt: skip
def test_a_host_of_another_precision(name: str, case: str, dtype: torch.dtype, tolerance: float) -> None:
    """Treated and then converted, or converted and then treated: one model, close to the one in fp32."""
    single = treat(host(name), case)
    after = treat(host(name), case).to(dtype)
    before = treat(host(name).to(dtype), case)
    assert {key: value.dtype for key, value in before.state_dict().items()} == {
        key: value.dtype for key, value in after.state_dict().items()
    }
    before.load_state_dict(after.state_dict())  # fp32 draws, rounded, in both
    out = forward(after, inputs(name, dtype))
    assert out.dtype == dtype
    assert torch.equal(out, forward(before, inputs(name, dtype)))
    assert relative(out, forward(single, inputs(name))) < tolerance
    assert all(gradient.isfinite().all() for gradient in step(after, inputs(name, dtype)).values())


class Passes(nn.Module):
    """A forward hook that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, *_: Any) -> None:
        self.count += 1


CHECKPOINTED = [
    *((name, case) for name, case in BOTH if name != "torchvision_vit"),  # which has no checkpointing
    ("hf_vilt", "adder"),
    ("hf_vilt", "augmented_shortcut"),
]


@pytest.mark.parametrize(("name", "case"), CHECKPOINTED)
def test_gradient_checkpointing_gives_the_same_gradients(name: str, case: str) -> None:
    model, given = treat(host(name), case).train(), inputs(name)
    wanted = step(model, given)
    if hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    passes = Passes()
    core = anatomy_of(model).blocks[0].attentions[0].core
    model.get_submodule(core).register_forward_hook(passes)
    same_gradients(step(model, given), wanted)
    assert passes.count == 2, "a checkpointed block runs again in the backward pass"


@pytest.mark.parametrize("case", ["attn_scale+feat_scale", "augmented_shortcut", "adder", "logistic_attention"])
@pytest.mark.parametrize("name", ["deit", "swin", "hf_vit", "torchvision_vit"])
def test_an_average_of_weights_is_an_independent_model(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    average = ModelEmaV3(model, decay=0.5)
    start = forward(average.module, given)
    assert torch.equal(start, forward(model, given))
    with torch.no_grad():
        for _, part in unsmooth.parts(model):
            for parameter in part.parameters():
                parameter.mul_(-1.0)
    assert torch.equal(forward(average.module, given), start), "the average must not read the model's parameters"
    average.update(model)  # half of p and half of −p: every new parameter is now zero
    new = [p for _, part in unsmooth.parts(average.module) for p in part.parameters()]
    assert new
    assert all(p.abs().max() < 1e-7 for p in new)
    moved = forward(average.module, given)
    assert not torch.allclose(moved, start, rtol=1e-3)
    assert not torch.allclose(moved, forward(model, given), rtol=1e-3)


@pytest.mark.parametrize(("name", "case"), [*BOTH, ("hf_vilt", "augmented_shortcut")])
def test_a_model_is_pickled_and_restored(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    wanted = forward(model, given)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert torch.equal(forward(back, given), wanted)
    assert str(unsmooth.applied(back)) == str(unsmooth.applied(model))
    unsmooth.remove(back)
    assert torch.equal(forward(back, given), forward(host(name), given))
    assert torch.equal(forward(model, given), wanted)


def onnx_outputs(model: nn.Module, image: Tensor) -> Tensor:
    import onnxruntime

    file = io.BytesIO()
    program = torch.onnx.export(model, (image,), dynamo=True, verbose=False)
    assert program is not None
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: image.numpy()})[0])


FOLDABLE = "attn_scale+feat_scale+context_broadcast+augmented_shortcut"


@pytest.mark.slow
@pytest.mark.parametrize("folded", [False, True], ids=["treated", "folded"])
def test_onnx_of_a_treated_and_of_a_folded_model(folded: bool) -> None:
    model, image = treat(host("deit"), FOLDABLE), inputs("deit")["image"]
    deployed = unsmooth.fold(model) if folded else model
    with torch.no_grad():
        torch.testing.assert_close(onnx_outputs(deployed, image), model(image), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["token_graying", "l2_attention+no_skip"])
def test_onnx_of_other_remedies(case: str) -> None:
    model, image = treat(host("deit"), case), inputs("deit")["image"]
    with torch.no_grad():
        torch.testing.assert_close(onnx_outputs(model, image), model(image), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("case", unsmooth.list_remedies())
def test_distributed_training_finds_no_idle_parameter(case: str) -> None:
    """DistributedDataParallel raises in the second pass where a trainable parameter got no gradient in the first."""
    model = treat(host("deit").train(), case)
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        wrapped(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
