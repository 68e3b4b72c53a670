"""Surgery: which blocks, in which order, what is refused, and that a plan is what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import Attention, Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import unsmooth
from tests.small_hosts import CONVMIXER, HOSTS, example, host, look_trained, outputs, treat
from tests.test_laws import fingerprint, same
from unsmooth import UnsmoothError
from unsmooth.bands import mix
from unsmooth.errors import Refusal
from unsmooth.planning import select_blocks
from unsmooth.probe import probe

STACK = ("attn_scale", "feat_scale", "context_broadcast", "augmented_shortcut", "token_graying")


def deep_host(depth: int = 4) -> nn.Module:
    spec = HOSTS["deit"].replace("depth=2", f"depth={depth}")
    return look_trained(unsmooth.create_model(spec)).eval()


def seen(model: nn.Module, path: str, side: str = "output") -> Tensor:
    """What the module at `path` gives out (or takes in) when the model runs, its remedies included."""
    caught: list[Tensor] = []

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        caught.append((output if side == "output" else args[0]).detach().clone())

    handle = model.get_submodule(path).register_forward_hook(look)
    try:
        outputs(model, "deit")
    finally:
        handle.remove()
    return caught[0]


# Which blocks.


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        (":", [0, 1, 2, 3, 4, 5]),
        ("4:", [4, 5]),
        (":-4", [0, 1]),
        ("-2:", [4, 5]),
        ("0,3,5", [0, 3, 5]),
        ("5, 0", [0, 5]),
        ("-1", [5]),
        ("4", [4]),
        (4, [4]),
        ("1:3,5", [1, 2, 5]),
        ("2,2,1:3,-4", [1, 2]),
        ("3:99", [3, 4, 5]),
    ],
)
def test_blocks_are_selected(text: str | None, chosen: list[int]) -> None:
    assert select_blocks(text, 6) == chosen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6", r"blocks='6': there is no block 6; this model has 6, from 0 to 5"),
        ("-7", r"there is no block -7"),
        ("0,9", r"there is no block 9"),
        ("6:", r"blocks='6:' selects no block of 6"),
        ("3:3", r"selects no block of 6"),
        ("", r"cannot read blocks='': write '6:', ':-2', '0,3,5' or '4'"),
        ("1,", r"cannot read blocks='1,'"),
        ("a", r"cannot read blocks='a'"),
        ("1-3", r"cannot read blocks='1-3'"),
        ("::2", r"cannot read blocks='::2'"),
        ("1.5", r"cannot read blocks='1.5'"),
        (True, r"cannot read blocks=True"),
    ],
)
def test_blocks_that_are_not_there_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        select_blocks(text, 6)


@pytest.mark.parametrize("written", ["{}(blocks='1,-1')", "{}"])
@pytest.mark.parametrize(
    "remedy", ["attn_scale", "feat_scale", "context_broadcast", "augmented_shortcut", "no_skip", "adder"]
)
def test_only_the_chosen_blocks_are_touched(remedy: str, written: str) -> None:
    model, plain = deep_host(), deep_host()
    done = unsmooth.apply(model, written.format(remedy), blocks=None if "(" in written else "1,-1")
    assert [block.block for block in done.blocks] == [1, 3]
    for index in range(4):
        changed = fingerprint(model.blocks[index])["classes"] != fingerprint(plain.blocks[index])["classes"]
        changed |= any(module._forward_hooks for module in model.blocks[index].modules())
        assert changed == (index in (1, 3)), index
    image = example("deit")["image"]
    tokens = model.patch_embed(image)
    for index in range(4):
        unchanged = torch.equal(model.blocks[index](tokens), plain.blocks[index](tokens))
        assert unchanged == (index not in (1, 3) or done.exact), index
    assert str(unsmooth.applied(model)).endswith(f"+{remedy}(blocks='1,-1')")


# Several remedies.


@pytest.mark.parametrize(
    "stack", [STACK, STACK[::-1], (*STACK[2:], *STACK[:2]), ("adder_attention", "attn_scale"), ("no_skip", "adder")]
)
@pytest.mark.parametrize("name", ["deit", "swin", "hf_vit"])
def test_one_of_several_comes_off_as_if_it_had_never_been_there(name: str, stack: tuple[str, ...]) -> None:
    for going in stack:
        model = treat(host(name), "+".join(stack))
        assert [part.name for part in unsmooth.applied(model).remedies] == list(stack)
        everything = outputs(model, name)
        unsmooth.remove(model, going)
        rest = [remedy for remedy in stack if remedy != going]
        never = treat(host(name), "+".join(rest))
        never.load_state_dict(model.state_dict())
        assert torch.equal(outputs(model, name), outputs(never, name))
        assert not torch.allclose(outputs(model, name), everything, atol=1e-3 * float(everything.abs().max())), going
    unsmooth.remove(model)
    assert torch.equal(outputs(model, name), outputs(host(name), name))


def gate(x: Tensor) -> Tensor:
    return x * (x[:, :1] + 1)


def halve(x: Tensor) -> Tensor:
    return mix(x, 1.0, 0.5)


@pytest.mark.parametrize(("kind", "broadcast"), [("plain", halve), ("gate", gate)])
def test_taps_run_from_left_to_right(kind: str, broadcast: Callable[[Tensor], Tensor]) -> None:
    """Two mixes of bands commute, a gate and a mix do not."""
    plain = seen(host("deit"), "blocks.0.attn")
    first = treat(host("deit"), f"feat_scale+context_broadcast(branch=attn, kind={kind})")
    last = treat(host("deit"), f"context_broadcast(branch=attn, kind={kind})+feat_scale")
    gains = first.blocks[0].attn.unsmooth_feat_scale.gains()
    torch.testing.assert_close(last.blocks[0].attn.unsmooth_feat_scale.gains(), gains)
    expected_first, expected_last = broadcast(mix(plain, *gains)), mix(broadcast(plain), *gains)
    torch.testing.assert_close(seen(first, "blocks.0.attn"), expected_first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen(last, "blocks.0.attn"), expected_last, rtol=1e-4, atol=1e-5)
    assert torch.allclose(expected_first, expected_last, atol=1e-3) == (kind == "plain")


@pytest.mark.parametrize("scaled_last", [True, False])
def test_maps_are_changed_from_left_to_right(scaled_last: bool) -> None:
    """Scores first, whatever the order; then each remedy's change of the map in turn."""
    stack = ("adder_attention", "attn_scale")
    model = treat(host("deit"), "+".join(stack if scaled_last else stack[::-1]))
    bare = treat(host("deit"), "adder_attention(identity=false)")
    maps: dict[str, Tensor] = {}
    for name, observed in (("bare", bare), ("treated", model)):
        with probe(observed, on_attention=lambda block, _, call, name=name: maps.setdefault(name, call.map())):
            outputs(observed, "deit")
    scale, identity = model.blocks[0].attn.unsmooth_attn_scale.matrix, torch.eye(maps["bare"].shape[-1])
    expected = scale(maps["bare"] + identity) if scaled_last else scale(maps["bare"]) + identity
    torch.testing.assert_close(maps["treated"], expected)
    values = seen(model, "blocks.0.attn.qkv").unflatten(-1, (3, 3, 16)).permute(2, 0, 3, 1, 4)[2]
    mixed = (expected @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(seen(model, "blocks.0.attn.proj", "input"), mixed, rtol=1e-4, atol=1e-5)


def test_a_remedy_goes_twice_on_disjoint_blocks_only() -> None:
    model = deep_host()
    unsmooth.apply(model, "context_broadcast(blocks=:2)")
    unsmooth.apply(model, "context_broadcast(kind=scaled, blocks=3)")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=r"already applied on block 1; remove\(model, 'context_broadcast'\) first"):
        unsmooth.apply(model, "context_broadcast(blocks=1:)")
    same(before, fingerprint(model))
    assert [str(part) for part in unsmooth.applied(model).remedies] == [
        "context_broadcast(blocks=:2)",
        "context_broadcast(kind=scaled, blocks=3)",
    ]
    unsmooth.remove(model, "context_broadcast")
    same(fingerprint(deep_host()), fingerprint(model))


@pytest.mark.parametrize(
    ("first", "second"), permutations(["adder", "adder_attention", "l2_attention", "logistic_attention"], 2)
)
def test_two_scores_conflict_on_one_block_and_not_on_two(first: str, second: str) -> None:
    model = host("deit")
    unsmooth.apply(model, first, blocks="0")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=rf"both replace the scores on block 0; remove\(model, '{first}'\) first"):
        unsmooth.apply(model, second)
    same(before, fingerprint(model))
    unsmooth.apply(model, second, blocks="1")
    assert [part.name for part in unsmooth.applied(model).remedies] == [first, second]


# What is refused, with a word on what to do, and with nothing changed.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("atn_scale",), r"unknown remedy 'atn_scale'\. Did you mean 'attn_scale'\? Known: adder, "),
        (("attn_scale(omega=1)",), r"unknown option of attn_scale 'omega'\. There are none"),
        (("adder(gian=1)",), r"unknown option of adder 'gian'\. Did you mean 'gain'\?"),
        (("context_broadcast(kind=scale)",), r"unknown value of context_broadcast\(kind=…\) 'scale'\. .*'scaled'\?"),
        (("augmented_shortcut(count=17)",), r"\(count=17\): count must be at least 1 and at most 16"),
        (("augmented_shortcut(scale=0)",), r"\(scale=0\): scale must be above 0 and at most 1"),
        (("token_graying(epsilon=nan)",), r"epsilon must be above 0 and at most 1"),
        (("augmented_shortcut(count=two)",), r"\(count=two\): count must be a whole number"),
        (("adder(gain=true)",), r"gain must be a number"),
        (("adder_attention(identity=1)",), r"identity must be true or false"),
        (("augmented_shortcut(blocks_per_side=5)",), r"48 channels are not divisible by blocks_per_side=5; 4 would do"),
        (("token_graying(blocks=9)",), r"token_graying acts once.*takes no blocks, so leave them out"),
        (("token_graying", "0"), r"takes no blocks"),
        (("attn_scale", "2"), r"there is no block 2; this model has 2, from 0 to 1"),
        (("attn_scale(blocks=x)",), r"cannot read blocks='x': write '6:'"),
        (("attn_scale", None, {"image": torch.zeros(1, 3, 20, 20)}), r"could not run.*pass example=\{'image': …\}"),
        (("attn_scale", None, {"pixels": torch.zeros(1, 3, 32, 32)}), r"could not run.*pass example="),
        (("attn_scale", None, torch.zeros(1, 3, 32, 32)), r"could not run.*pass example="),
        (("attn_scale", None, {"image": torch.zeros(2, 3, 32, 32)}), r"this one is a batch; pass example=.*\[:1\]"),
        ((None,), r"expected a spec as a string, such as 'attn_scale', got NoneType"),
    ],
)
@pytest.mark.parametrize("operate", [unsmooth.apply, unsmooth.plan])
def test_a_mistake_is_one_line_and_changes_nothing(operate: Callable[..., object], call: tuple, message: str) -> None:
    model = host("deit")
    before = fingerprint(model)
    if operate is unsmooth.plan and "5)" in str(call[0]):
        assert "4 would do" in unsmooth.plan(model, *call).refused[0]  # a plan tells refusals block by block
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
            r"already applied on blocks 0, 1; remove\(model, ",
        ),
        (partial(unsmooth.plan, remedy="attn_scale(blocks=1)"), r"attn_scale is already applied on block 1; remove\("),
        (partial(unsmooth.apply, remedy="token_graying"), r"token_graying is already applied; remove\(model, "),
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
        (torch.compile, r"wrapped in OptimizedModule; give the model that was given to torch\.compile"),
        (compiled_in_place, r"compiled in place by model\.compile\(\); treat it before compiling"),
        (nn.DataParallel, r"wrapped in DataParallel; give model\.module, and use DistributedDataParallel"),
        (nn.parallel.DistributedDataParallel, r"wrapped in DistributedDataParallel; give model\.module"),
        (lambda model: nn.Sequential(nn.DataParallel(model)), r"wrapped in DataParallel \(at 0\); give model\.module"),
        (scripted, r"TorchScript, whose forward is frozen; treat the Python model"),
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_wrapped_is_refused(wrap: Callable[[nn.Module], nn.Module], message: str) -> None:
    model = host("deit")
    wrapped = wrap(model)
    before = fingerprint(model)
    for operate in (unsmooth.apply, unsmooth.plan):
        with pytest.raises(UnsmoothError, match=message) as caught:
            operate(wrapped, "attn_scale")
        assert "\n" not in str(caught.value)
    same(before, fingerprint(model))


def test_a_wrapped_model_is_not_taken_for_an_untreated_one(tmp_path: Path) -> None:
    wrapped = nn.DataParallel(treat(host("deit"), "attn_scale"))
    for operate in (unsmooth.remove, partial(unsmooth.save, folder=tmp_path)):
        with pytest.raises(UnsmoothError, match="wrapped in DataParallel"):
            operate(wrapped)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ("deit", r"expected a PyTorch module, got str; build one with unsmooth\.create_model\(spec\)"),
        (None, r"expected a PyTorch module, got NoneType"),
        (nn.ReLU(), r"no parameters, so it is no vision transformer"),
        (nn.Linear(4, 4), r"could not run Linear on one example image.*; pass example="),
    ],
)
def test_what_is_no_vision_model_is_refused(thing: object, message: str) -> None:
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
    with pytest.raises(Refusal, match=r"kind=gate multiplies by the class token, .*; use kind=plain"):
        unsmooth.apply(model, "context_broadcast(kind=gate)")
    same(before, fingerprint(model))


@pytest.mark.filterwarnings("ignore:adder_attention is not on block")
def test_blocks_that_refuse_are_left_out_with_a_warning() -> None:
    model = host("pvt_v2")
    with pytest.warns(UserWarning, match="adder_attention is not on block 0: .*; use identity=false"):
        done = unsmooth.apply(model, "adder_attention")
    assert list(done.refused) == [0, 1, 2]
    assert [block.block for block in done.blocks if block.sites] == [3]
    unsmooth.apply(model, "adder_attention(identity=false)", blocks=":3")  # where it is not, it can still go
    rebuilt = unsmooth.create_model(unsmooth.applied(model)).eval()
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(outputs(model, "pvt_v2"), outputs(rebuilt, "pvt_v2"))


# A host without attention.


def test_convmixer_loses_its_skip() -> None:
    model = host(CONVMIXER)
    done = unsmooth.apply(model, "no_skip")
    assert done.sites == ("blocks.0.0", "blocks.1.0")
    plain, image = host(CONVMIXER), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x = plain.stem(image)
    for residual, *rest in plain.blocks:
        x = nn.Sequential(*rest)(residual.fn(x))
    torch.testing.assert_close(model(image), plain.forward_head(x))
    assert not torch.allclose(model(image), plain(image), atol=1e-2)


@pytest.mark.parametrize("key", sorted(set(unsmooth.list_remedies()) - {"no_skip", "token_graying"}))
def test_convmixer_refuses_what_needs_attention(key: str) -> None:
    model = host(CONVMIXER)
    before = fingerprint(model)
    with pytest.raises(Refusal, match=rf"{key} makes no sense on this model: .*(attention|MLP)"):
        unsmooth.apply(model, key)
    same(before, fingerprint(model))


# Plans.


@pytest.mark.parametrize("remedy", [*unsmooth.list_remedies(), "augmented_shortcut(scale=0.5, branch=mlp)"])
@pytest.mark.parametrize("name", ["deit", "torchvision_swin"])
def test_a_plan_is_what_is_done(name: str, remedy: str) -> None:
    model = host(name)
    old = sum(p.numel() for p in model.parameters())
    planned = unsmooth.plan(model, remedy)
    assert unsmooth.apply(model, remedy) == planned
    assert sum(p.numel() for p in model.parameters()) - old == planned.parameters
    changed = {at for at, cls in fingerprint(model)["classes"] if hasattr(cls, "_unsmooth_host")}
    hooked = {at for at, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks}
    # A stand-in for a linear layer is planned by its weight, and hangs on the block that holds it.
    weights = {site for site in planned.sites if site.endswith("weight")}
    holders = {min((at for at in changed if weight.startswith(at + ".")), key=len) for weight in weights}
    assert changed | hooked == {*planned.sites} - weights | holders


@pytest.fixture(scope="module")
def deit_small() -> nn.Module:
    with torch.device("meta"):  # a plan needs sizes only
        return unsmooth.create_model("deit_small_patch16_224")


@pytest.mark.parametrize(
    ("remedy", "parameters", "flops"),
    [
        ("augmented_shortcut", 92_160, None),
        ("attn_scale", 12 * 6, 12 * 3 * 197 * 384),
        ("feat_scale", 12 * 2 * 384, 12 * 3 * 197 * 384),
        ("context_broadcast", 0, 12 * 3 * 197 * 384),
        ("context_broadcast(position=mid)", 0, 12 * 3 * 197 * 4 * 384),
        ("context_broadcast(kind=scaled)", 12 * 384, 12 * 2 * 197 * 384),
        ("no_skip", 0, 0),
    ],
)
def test_published_counts_of_deit_small(deit_small: nn.Module, remedy: str, parameters: int, flops: int | None) -> None:
    planned = unsmooth.plan(deit_small, remedy)
    assert planned.parameters == parameters
    assert flops is None or planned.flops == flops
    assert f"{parameters:,} new parameters" in str(planned)
    assert len(planned.blocks) == 12


def test_a_plan_tells_where_it_does_not_work() -> None:
    planned = unsmooth.plan(host("pvt_v2"), "adder_attention")
    first, *rest = str(planned).split("\n")
    assert first.startswith("adder_attention: 1 sites")
    assert [line.split(":")[0] for line in rest] == [f"  not on block {i}" for i in (0, 1, 2)]


# What else is left alone.


def test_what_is_on_a_model_is_written_as_a_spec() -> None:
    model = host("deit")
    assert str(unsmooth.applied(model)) == HOSTS["deit"]
    unsmooth.apply(model, "attn_scale(blocks=:1)")
    unsmooth.apply(model, "context_broadcast", kind="scaled", branch="both")
    unsmooth.apply(model, "no_skip", blocks="0,1", branch="mlp")
    unsmooth.apply(model, "token_graying(epsilon=0.9)", transform="svd")
    remedies = "attn_scale(blocks=:1)+context_broadcast(kind=scaled, branch=both)+no_skip(branch=mlp, blocks='0,1')"
    assert str(unsmooth.applied(model)) == f"{HOSTS['deit']}+{remedies}+token_graying(epsilon=0.9, transform=svd)"
    unsmooth.remove(model)
    assert str(unsmooth.applied(model)) == HOSTS["deit"]
    assert str(unsmooth.applied(timm.create_model("deit_tiny_patch16_224"))) == ""


def test_host_options_join_the_spec_unless_they_cannot_be_written() -> None:
    spec = "deit_tiny_patch16_224(depth=1)"
    model = unsmooth.create_model(spec, num_classes=7, img_size=[32, 32])
    assert str(unsmooth.applied(model)) == "deit_tiny_patch16_224(depth=1, num_classes=7, img_size=[32, 32])"
    unknown = unsmooth.create_model(spec + "+attn_scale", norm_layer=nn.LayerNorm)
    assert str(unsmooth.applied(unknown)) == "attn_scale"


def test_a_mistake_in_a_remedy_is_found_before_the_host_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.create.create_host", None)
    for spec in ("deit+attn_scal", "deit+adder(gian=1)"):
        with pytest.raises(UnsmoothError, match="unknown"):
            unsmooth.create_model(spec)
    with pytest.raises(UnsmoothError, match=r"names no host: write HOST\+adder"):
        unsmooth.create_model(unsmooth.spec.ModelSpec(None, (unsmooth.spec.Part("adder"),)))


def test_flags_of_gradients_come_back_with_the_linear_layers() -> None:
    """Adder freezes the weights that it makes idle; those that were frozen before stay so."""
    model = host("deit")
    model.blocks[0].attn.qkv.weight.requires_grad_(False)
    before = fingerprint(model)
    unsmooth.apply(model, "adder")
    linears = [m for block in model.blocks for m in block.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 8
    assert not any(p.requires_grad for linear in linears for p in linear.parameters())
    assert all(p.requires_grad for _, part in unsmooth.parts(model) for p in part.parameters())
    assert model.patch_embed.proj.weight.requires_grad
    assert model.head.weight.requires_grad
    unsmooth.remove(model)
    same(before, fingerprint(model))


DRAWS = ("adder", "augmented_shortcut", "logistic_attention")  # their parameters start at random


@pytest.mark.parametrize("remedy", unsmooth.list_remedies())
def test_training_flags_and_random_state_are_left_alone(remedy: str) -> None:
    model = host("deit").train()
    model.blocks[1].eval()
    modules = list(model.modules())
    flags, random = [m.training for m in modules], torch.get_rng_state()
    unsmooth.plan(model, remedy)
    assert torch.equal(torch.get_rng_state(), random)
    unsmooth.apply(model, remedy)
    assert torch.equal(torch.get_rng_state(), random) == (remedy not in DRAWS)
    assert [m.training for m in modules] == flags
    for name, part in unsmooth.parts(model):
        assert part.training == ("blocks.1" not in name), name


@pytest.mark.parametrize(
    ("remedy", "owner", "passed"),
    [("attn_scale", Attention, "attention"), ("adder", Mlp, "linear layers"), ("no_skip", Block, "residual sums")],
)
def test_a_path_that_was_not_seen_raises(
    remedy: str, owner: type[nn.Module], passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remedy is never silently off: a host that takes another way than at its examination is told."""
    model = host("deit")
    unsmooth.apply(model, remedy)
    monkeypatch.setattr(owner, "forward", lambda self, x, *args, **kwargs: x * 2)
    with pytest.raises(RuntimeError, match=rf"went past the .*{passed}.* silently off"):
        outputs(model, "deit")
