"""What is refused: one line with a word on what to do, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import example, host, outputs, treat
from tests.surgery.test_laws import fingerprint, same
from unsmooth import UnsmoothError
from unsmooth.errors import NotApplicable


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("atn_scale",), r"unknown remedy 'atn_scale'\. Did you mean 'attn_scale'\? Known: adder, "),
        (("attn_scale(omega=1)",), r"attn_scale has no option 'omega'\. There are none"),
        (("adder(gian=1)",), r"adder has no option 'gian'\. Did you mean 'gain'\?"),
        (
            ("context_broadcast(kind=scale)",),
            r"context_broadcast: kind must be one of .*\(got 'scale'\)\. .*'scaled'\?",
        ),
        (("augmented_shortcut(count=17)",), r"augmented_shortcut: count must be at least 1 and at most 16 \(got 17\)"),
        (("augmented_shortcut(scale=0)",), r"scale must be above 0 and at most 1 \(got 0\)"),
        (("token_graying(epsilon=nan)",), r"epsilon must be finite"),
        (("augmented_shortcut(count=two)",), r"count must be a whole number \(got 'two'\)"),
        (("adder(gain=true)",), r"gain must be a number"),
        (("adder_attention(identity=1)",), r"identity must be true or false"),
        (("augmented_shortcut(blocks_per_side=5)",), r"48 channels are not divisible by blocks_per_side=5; use .*=4"),
        (("token_graying(blocks=9)",), r"token_graying is applied once.*takes no blocks \(got 9\)"),
        (("token_graying", "0"), r"takes no blocks"),
        (("attn_scale", "2"), r"there is no block 2\. This model has 2 blocks, 0 to 1"),
        (("attn_scale(blocks=x)",), r"cannot read blocks='x'\. Write '6:'"),
        (
            ("attn_scale", None, {"image": torch.zeros(1, 3, 20, 20)}),
            r"could not run.*Pass one that it accepts: example=\{'image': torch",
        ),
        (
            ("attn_scale", None, {"pixels": torch.zeros(1, 3, 32, 32)}),
            r"could not run.*Pass one that it accepts: example=",
        ),
        (("attn_scale", None, torch.zeros(1, 3, 32, 32)), r"could not run.*Pass one that it accepts: example="),
        (
            ("attn_scale", None, {"image": torch.zeros(2, 3, 32, 32)}),
            r"the example is a batch\. Pass one image: example=.*\[:1\]",
        ),
        ((None,), r"expected a spec as a string, such as 'attn_scale', got NoneType"),
    ],
)
@pytest.mark.parametrize("operate", [unsmooth.apply, unsmooth.plan])
def test_a_mistake_is_one_line_and_changes_nothing(operate: Callable[..., object], call: tuple, message: str) -> None:
    model = host("deit")
    before = fingerprint(model)
    if operate is unsmooth.plan and "5)" in str(call[0]):
        assert "use blocks_per_side=4" in unsmooth.plan(model, *call).refused[0]  # a plan has refusals per block
    else:
        with pytest.raises(UnsmoothError, match=message) as caught:
            operate(model, *call)
        assert "\n" not in str(caught.value)
    same(before, fingerprint(model))


@pytest.mark.parametrize(
    ("operate", "message"),
    [
        (
            partial(unsmooth.apply, remedy="attn_scale"),
            r"already applied on blocks 0, 1\. Call remove\(model, ",
        ),
        (
            partial(unsmooth.plan, remedy="attn_scale(blocks=1)"),
            r"attn_scale is already applied on block 1\. Call remove\(",
        ),
        (partial(unsmooth.apply, remedy="token_graying"), r"token_graying is already applied\. Call remove\(model, "),
        (
            partial(unsmooth.remove, remedy="feat_scale"),
            r"nothing to remove: .*\(it has: attn_scale, token_graying\)",
        ),
        (partial(unsmooth.remove, remedy="feet_scale"), r"Did you mean 'feat_scale'\?"),
    ],
)
def test_a_mistake_on_a_treated_model_changes_nothing(operate: Callable[[nn.Module], object], message: str) -> None:
    model = treat(host("deit"), "attn_scale+token_graying")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=message) as caught:
        operate(model)
    assert "\n" not in str(caught.value)
    same(before, fingerprint(model))


def test_nothing_is_removed_from_a_plain_host() -> None:
    with pytest.raises(UnsmoothError, match=r"nothing to remove: .*\(it has: none\)"):
        unsmooth.remove(host("deit"))


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def scripted(model: nn.Module) -> nn.Module:
    return torch.jit.trace(model, example("deit")["image"])


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (torch.compile, r"wrapped in OptimizedModule\. Use the model before torch\.compile"),
        (compiled_in_place, r"compiled in place by model\.compile\(\)\. Treat it before compiling"),
        (nn.DataParallel, r"wrapped in DataParallel\. Use model\.module, and DistributedDataParallel"),
        (nn.parallel.DistributedDataParallel, r"wrapped in DistributedDataParallel\. Use model\.module"),
        (lambda model: nn.Sequential(nn.DataParallel(model)), r"wrapped in DataParallel \(at 0\)\. Use model\.module"),
        (scripted, r"TorchScript, whose forward cannot be patched\. Treat the Python model"),
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_wrapped_models_raise(wrap: Callable[[nn.Module], nn.Module], message: str) -> None:
    model = host("deit")
    wrapped = wrap(model)
    before = fingerprint(model)
    for operate in (unsmooth.apply, unsmooth.plan):
        with pytest.raises(UnsmoothError, match=message) as caught:
            operate(wrapped, "attn_scale")
        assert "\n" not in str(caught.value)
    same(before, fingerprint(model))


def test_a_wrapped_model_is_not_treated_as_a_plain_one(tmp_path: Path) -> None:
    wrapped = nn.DataParallel(treat(host("deit"), "attn_scale"))
    for operate in (unsmooth.remove, partial(unsmooth.save, folder=tmp_path)):
        with pytest.raises(UnsmoothError, match="wrapped in DataParallel"):
            operate(wrapped)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ("deit", r"expected a PyTorch module \(got str\)\. Build one with unsmooth\.create_model\(spec\)"),
        (None, r"expected a PyTorch module \(got NoneType\)"),
        (nn.ReLU(), r"no parameters, so it is not a vision transformer"),
        (nn.Linear(4, 4), r"could not run Linear on one example image.*Pass one that it accepts: example="),
    ],
)
def test_models_that_are_not_vision_models_raise(thing: object, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message) as caught:
        unsmooth.apply(thing, "attn_scale")
    assert "\n" not in str(caught.value)


def test_a_convolutional_network_is_refused() -> None:
    model = timm.create_model("resnet18")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=r"ResNet ran no attention.*is it a vision transformer\?") as caught:
        unsmooth.apply(model, "no_skip")
    assert "\n" not in str(caught.value)
    same(before, fingerprint(model))


def test_a_gate_needs_a_class_token() -> None:
    model = host("swin")
    before = fingerprint(model)
    with pytest.raises(NotApplicable, match=r"kind=gate multiplies by the class token, .*; use kind=plain"):
        unsmooth.apply(model, "context_broadcast(kind=gate)")
    same(before, fingerprint(model))


@pytest.mark.filterwarnings("ignore:adder_attention is not applied to block")
def test_blocks_that_do_not_fit_are_skipped_with_a_warning() -> None:
    model = host("pvt_v2")
    with pytest.warns(UserWarning, match="adder_attention is not applied to block 0: .*; use identity=false"):
        done = unsmooth.apply(model, "adder_attention")
    assert list(done.refused) == [0, 1, 2]
    assert [block.block for block in done.blocks if block.sites] == [3]
    unsmooth.apply(model, "adder_attention(identity=false)", blocks=":3")  # where it is not, it can still go
    rebuilt = unsmooth.create_model(unsmooth.applied(model)).eval()
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(outputs(model, "pvt_v2"), outputs(rebuilt, "pvt_v2"))
