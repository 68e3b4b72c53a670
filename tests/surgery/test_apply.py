"""Surgery: which blocks, in which order, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import timm
import torch
from timm.layers import Attention, Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import CONVMIXER, HOSTS, example, host, look_trained, outputs, treat
from tests.surgery.test_laws import fingerprint, same
from unsmooth import UnsmoothError
from unsmooth.bands import mix
from unsmooth.diagnosis.probe import probe
from unsmooth.errors import NotApplicable
from unsmooth.remedies.base import REPLACE_SCORES
from unsmooth.surgery.plan import select_blocks

STACK = ("attn_scale", "feat_scale", "context_broadcast", "augmented_shortcut", "token_graying")


def deep_host(depth: int = 4) -> nn.Module:
    spec = HOSTS["deit"].replace("depth=2", f"depth={depth}")
    return look_trained(unsmooth.create_model(spec)).eval()


def seen(model: nn.Module, path: str, side: str = "output") -> Tensor:
    """What the module at `path` gives out (or takes in) when the model runs, its remedies included."""
    caught: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        caught.append((output if side == "output" else args[0]).detach().clone())

    handle = model.get_submodule(path).register_forward_hook(record)
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
        ("6", r"blocks='6': there is no block 6\. This model has 6 blocks, 0 to 5"),
        ("-7", r"there is no block -7"),
        ("0,9", r"there is no block 9"),
        ("6:", r"blocks='6:' selects none of the 6 blocks"),
        ("3:3", r"selects none of the 6 blocks"),
        ("", r"cannot read blocks=''. Write '6:', ':-2', '0,3,5' or '4'"),
        ("1,", r"cannot read blocks='1,'"),
        ("a", r"cannot read blocks='a'"),
        ("1-3", r"cannot read blocks='1-3'"),
        ("::2", r"cannot read blocks='::2'"),
        ("1.5", r"cannot read blocks='1.5'"),
        (True, r"cannot read blocks=True"),
    ],
)
def test_missing_blocks_raise(text: str, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        select_blocks(text, 6)


@pytest.mark.parametrize("written", ["{}(blocks='1,-1')", "{}"])
@pytest.mark.parametrize(
    "remedy", ["attn_scale", "feat_scale", "context_broadcast", "augmented_shortcut", "no_skip", "adder"]
)
def test_only_the_selected_blocks_are_changed(remedy: str, written: str) -> None:
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
def test_removing_one_of_several_remedies_equals_never_applying_it(name: str, stack: tuple[str, ...]) -> None:
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
def test_token_hooks_run_from_left_to_right(kind: str, broadcast: Callable[[Tensor], Tensor]) -> None:
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


def test_a_remedy_is_applied_twice_on_disjoint_blocks_only() -> None:
    model = deep_host()
    unsmooth.apply(model, "context_broadcast(blocks=:2)")
    unsmooth.apply(model, "context_broadcast(kind=scaled, blocks=3)")
    before = fingerprint(model)
    with pytest.raises(
        UnsmoothError, match=r"already applied on block 1\. Call remove\(model, 'context_broadcast'\) first"
    ):
        unsmooth.apply(model, "context_broadcast(blocks=1:)")
    same(before, fingerprint(model))
    assert [str(part) for part in unsmooth.applied(model).remedies] == [
        "context_broadcast(blocks=:2)",
        "context_broadcast(kind=scaled, blocks=3)",
    ]
    unsmooth.remove(model, "context_broadcast")
    same(fingerprint(deep_host()), fingerprint(model))


@pytest.mark.parametrize(("first", "second"), permutations(REPLACE_SCORES, 2))
def test_two_scores_conflict_on_one_block_and_not_on_two(first: str, second: str) -> None:
    model = host("deit")
    unsmooth.apply(model, first, blocks="0")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=rf"both replace the scores on block 0.* remove\(model, '{first}'\) first"):
        unsmooth.apply(model, second)
    same(before, fingerprint(model))
    unsmooth.apply(model, second, blocks="1")
    assert [part.name for part in unsmooth.applied(model).remedies] == [first, second]


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


TOKENS_ONLY = {"no_skip", "token_graying", "diverse_patch", "gram_anchor"}  # which need no attention


@pytest.mark.parametrize("key", sorted(set(unsmooth.list_remedies()) - TOKENS_ONLY))
def test_attention_remedies_do_not_fit_convmixer(key: str) -> None:
    model = host(CONVMIXER)
    before = fingerprint(model)
    with pytest.raises(NotApplicable, match=rf"{key} does not fit this model: .*(attention|MLP)"):
        unsmooth.apply(model, key)
    same(before, fingerprint(model))


# What else is left alone.


def test_applied_remedies_are_written_as_a_spec() -> None:
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
    monkeypatch.setattr("unsmooth.surgery.create.create_host", None)
    for spec in ("deit+attn_scal", "deit+adder(gian=1)"):
        with pytest.raises(UnsmoothError, match=r"unknown|has no option"):
            unsmooth.create_model(spec)
    with pytest.raises(UnsmoothError, match=r"has no host\. Use HOST\+adder"):
        unsmooth.create_model(unsmooth.spec.ModelSpec(None, (unsmooth.spec.SpecItem("adder"),)))


def test_removing_a_linear_patch_restores_requires_grad() -> None:
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


DRAWS = ("adder", "augmented_shortcut", "logistic_attention", "registers")  # their parameters start at random


@pytest.mark.parametrize("remedy", unsmooth.list_remedies())
def test_training_flags_and_random_state_do_not_change(remedy: str) -> None:
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
def test_a_path_that_was_not_traced_raises(
    remedy: str, owner: type[nn.Module], passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remedy is never silently off: a host that takes another way than at its examination raises."""
    model = host("deit")
    unsmooth.apply(model, remedy)
    monkeypatch.setattr(owner, "forward", lambda self, x, *args, **kwargs: x * 2)
    with pytest.raises(RuntimeError, match=rf"did not reach the .*{passed}.* silently off"):
        outputs(model, "deit")
