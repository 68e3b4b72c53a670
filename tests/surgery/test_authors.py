"""Checkpoints of the authors: the imported model gives what their equations give, with their own names and shapes."""

from __future__ import annotations

import argparse
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

import unsmooth
from tests.support import author_models as authors
from unsmooth.cli.import_ import import_
from unsmooth.errors import UnsmoothError
from unsmooth.surgery.authors import import_checkpoint
from unsmooth.surgery.authors.host_names import host_of

DEIT = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=5)"
CAIT = "cait_xxs24_224(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=5)"
SWIN = "swin_tiny_patch4_window7_224(depths=[2, 1], num_heads=[2, 4], img_size=56, embed_dim=16, num_classes=5)"


def deit_state(kind: str) -> authors.State:
    return authors.draw(authors.vit_shapes(kind, 48, 2, 3, 8, 16, 5))


def cait_state(kind: str) -> authors.State:
    return authors.draw(authors.cait_shapes(kind, 48, 2, 3, 8, 16, 5))


def images(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1)).double()


def check_equal(model: torch.nn.Module, state: authors.State, forward: Any, side: int = 32) -> None:
    wide = {name: value.double() for name, value in state.items()}
    with torch.no_grad():
        actual = model.double().eval()(images(side))
    torch.testing.assert_close(actual, forward(wide, images(side)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "doubled"),
    [("attn_scale", None), ("feat_scale", False), ("feat_scale", True), ("circulant2", None), ("linear2", None)],
)
def test_deit_gives_what_the_authors_equations_give(kind: str, doubled: bool | None) -> None:
    state = deit_state(kind)
    model = import_checkpoint(state, DEIT, doubled=doubled)
    check_equal(model, state, lambda w, x: authors.deit(w, x, 2, 3, 2.0 if doubled else 1.0))
    assert str(unsmooth.applied(model)).startswith(DEIT)


@pytest.mark.parametrize("kind", ["attn_scale", "feat_scale"])
def test_cait_gives_what_the_authors_equations_give(kind: str) -> None:
    state = cait_state(kind)
    check_equal(import_checkpoint(state, CAIT), state, lambda w, x: authors.cait(w, x, 2, 3))


@pytest.mark.parametrize("kind", ["attn_scale", "feat_scale"])
def test_swin_gives_what_the_authors_equations_give(kind: str) -> None:
    state = authors.draw(authors.swin_shapes(kind, 16, (2, 1), (2, 4), 56, 5))
    check_equal(import_checkpoint(state, SWIN), state, lambda w, x: authors.swin(w, x, (2, 1), (2, 4)), 56)


def test_the_references_do_see_the_remedies() -> None:
    """Each reference changes when its remedy's parameters do, or equality would prove nothing."""
    for kind in ("attn_scale", "feat_scale", "circulant2"):
        state = {name: value.double() for name, value in deit_state(kind).items()}
        before = authors.deit(state, images(32), 2, 3)
        name = next(name for name in state if "lamb" in name or "weight_list" in name)
        state[name] = state[name] + 0.5
        assert not torch.allclose(before, authors.deit(state, images(32), 2, 3))


def test_the_form_of_feat_scale_is_warned_about_unless_given() -> None:
    with pytest.warns(UserWarning, match=r"1\+2s.*doubled=True"):
        named = import_checkpoint(deit_state("feat_scale"), DEIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = import_checkpoint(deit_state("feat_scale"), DEIT, doubled=False)
        twice = import_checkpoint(deit_state("feat_scale"), DEIT, doubled=True)
    for (_, a), (_, b), (_, c) in zip(*(unsmooth.parts(m) for m in (named, plain, twice)), strict=True):
        assert torch.equal(a.s, b.s) and torch.equal(2 * b.s, c.s) and torch.equal(2 * b.t, c.t)
    for state, spec in (
        (deit_state("attn_scale"), DEIT),
        (authors.draw(authors.cait_shapes("feat_scale", 48, 2, 3, 8, 16, 5)), CAIT),
    ):
        with pytest.raises(UnsmoothError, match="never doubled"):
            import_checkpoint(state, spec, doubled=True)


FULL = {
    "deit_small_patch16_224": ("attn_scale", authors.vit_shapes("attn_scale", 384, 12, 6)),
    "deit_small_patch16_224(depth=24)": ("feat_scale", authors.vit_shapes("feat_scale", 384, 24, 6)),
    "deit_base_patch16_224(num_classes=9)": ("attn_scale", authors.vit_shapes("attn_scale", 768, 12, 12, classes=9)),
    "deit_base_patch16_384": ("attn_scale", authors.vit_shapes("attn_scale", 768, 12, 12, patches=576)),
    "vit_small_patch16_224": ("augmented_shortcut", authors.vit_shapes("circulant2", 384, 12, 6)),
    "cait_s24_224": ("attn_scale", authors.cait_shapes("attn_scale", 384, 24, 8)),
    "cait_xxs36_384": ("feat_scale", authors.cait_shapes("feat_scale", 192, 36, 4, patches=576)),
    "swin_small_patch4_window7_224": (
        "feat_scale", authors.swin_shapes("feat_scale", 96, (2, 2, 18, 2), (3, 6, 12, 24))
    ),
}  # fmt: skip


@pytest.mark.parametrize("spec", FULL)
def test_the_host_is_found_by_shapes(spec: str) -> None:
    remedy, shapes = FULL[spec]
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    assert str(host_of(state, remedy)) == spec


def test_names_and_shapes_of_a_whole_deit_small() -> None:
    """152 tensors of timm's DeiT-S, and 12 of AttnScale with a gain for each of 6 heads."""
    shapes = FULL["deit_small_patch16_224"][1]
    assert sum("lamb" not in name for name in shapes) == 152 and sum("lamb" in name for name in shapes) == 12
    model = import_checkpoint({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert str(unsmooth.applied(model)) == "deit_small_patch16_224+attn_scale"
    assert sum(p.numel() for p in model.parameters()) == 22_050_664 + 72


def test_files_of_training_scripts_are_read(tmp_path: Path) -> None:
    """DeiT's script saves its arguments, an average and the wrapper's names; the model itself is what it evaluates."""
    state = deit_state("attn_scale")
    other = {name: value + 1 for name, value in state.items()}
    content = {
        "model": {f"module.{name}": value for name, value in state.items()},
        "model_ema": other, "epoch": 3, "args": argparse.Namespace(lr=0.1, model="attnscale_small_12"),
    }  # fmt: skip
    torch.save(content, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    expected = import_checkpoint(state, DEIT).state_dict()
    for name in ("a.pth", "a.safetensors"):
        actual = import_checkpoint(tmp_path / name, DEIT).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in actual.items())
    average = import_checkpoint(tmp_path / "a.pth", DEIT, entry="model_ema").state_dict()
    assert torch.equal(average["norm.weight"], other["norm.weight"])
    with pytest.raises(UnsmoothError, match="has no entry"):
        import_checkpoint(tmp_path / "a.pth", DEIT, entry="state_dict")


def test_a_file_of_swins_script_is_read_without_its_settings_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CfgNode(dict[str, Any]):
        pass

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    library = types.ModuleType("yacs.config")
    library.CfgNode = CfgNode  # type: ignore[attr-defined]
    state = authors.draw(authors.swin_shapes("attn_scale", 16, (2, 1), (2, 4), 56, 5))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
        patch.setitem(sys.modules, "yacs.config", library)
        settings = CfgNode(MODEL=CfgNode(NAME="attnscale"))
        settings.__dict__["frozen"] = True
        torch.save({"model": state, "max_accuracy": 83.4, "config": settings}, tmp_path / "swin.pth")
    assert str(unsmooth.applied(import_checkpoint(tmp_path / "swin.pth", SWIN))).endswith("+attn_scale")


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"model": deit_state("attn_scale"), "args": Path("x")}, tmp_path / "odd.pth")
    with pytest.raises(UnsmoothError, match=r"odd\.pth: it holds a pathlib\.\S+, which could run code"):
        import_checkpoint(tmp_path / "odd.pth", DEIT)
    with pytest.raises(UnsmoothError, match="is not a file"):
        import_checkpoint(tmp_path / "missing.pth")


def without(state: authors.State, *words: str) -> authors.State:
    return {name: value for name, value in state.items() if not any(word in name for word in words)}


PATH = "blocks.0.augs.0"
# Their variant with one path around each branch has no activation, and so no place in a Sequential.
SINGLE = {
    name.replace("augs_attn.0.", "augs_attn.").replace("augs.0.", "augs."): value
    for name, value in without(deit_state("circulant2"), "augs2", "augs_attn2").items()
}


@pytest.mark.parametrize(
    ("state", "spec", "options", "words"),
    [
        (without(deit_state("attn_scale"), "lamb"), DEIT, {}, "a plain host with unsmooth.load"),
        (deit_state("attn_scale"), DEIT, {"source": "feat_scale"}, "must hold feat_scale only.*attn_scale"),
        (deit_state("attn_scale"), DEIT, {"source": "attn"}, "unknown source 'attn'. Did you mean 'attn_scale'"),
        (deit_state("attn_scale") | deit_state("feat_scale"), DEIT, {}, "not: attn_scale, feat_scale"),
        (deit_state("attn_scale"), f"{DEIT}+feat_scale", {}, "holds attn_scale, not feat_scale"),
        (deit_state("attn_scale"), f"{DEIT}+attn_scale(blocks=1:)", {}, "Pass the host only"),
        (deit_state("circulant2"), f"{DEIT}+augmented_shortcut(scale=1.0)", {}, r"scale=0\.75.*not.*scale=1\.0"),
        (deit_state("circulant2"), f"{DEIT}+augmented_shortcut(branch=attn)", {}, "Pass the host only"),
        (without(deit_state("feat_scale"), "0.lamb2"), DEIT, {}, r"lacks 1 \(blocks\.0\.lamb2\)"),
        (without(deit_state("circulant2"), "1.augs2.0.weight"), DEIT, {}, r"blocks\.1\.augs2\.0\.weight_list"),
        (without(deit_state("attn_scale"), "1.attn.lamb"), DEIT, {}, r"no parameters of attn_scale for 1 \(blocks\.1"),
        (deit_state("attn_scale"), DEIT.replace("depth=2", "depth=1"), {}, r"more blocks than the host has: 1"),
        (without(deit_state("attn_scale"), "fc2"), DEIT, {}, r"4 not in the file \(blocks\.0\.mlp\.fc2\.bias"),
        ({**deit_state("attn_scale"), "extra": torch.ones(1)}, DEIT, {}, r"1 not in the model \(extra"),
        (deit_state("attn_scale"), DEIT.replace("num_heads=3", "num_heads=4"), {}, r"omega"),
        (deit_state("attn_scale"), None, {}, "no deit of timm has 48 channels and patches of 8"),
        ({"blocks.0.attn.lamb": torch.zeros(3)}, None, {}, "not a DeiT, CaiT or Swin"),
        ({"epoch": 3}, DEIT, {}, "holds no weights"),
        ({**deit_state("circulant2"), f"{PATH}.index_matrix": torch.zeros(48, 48)}, DEIT, {}, "index_matrix is not"),
        ({**deit_state("circulant2"), f"{PATH}.weight_list": torch.zeros(96)}, DEIT, {}, "96 weights, not 192"),
        ({**deit_state("attn_scale"), "blocks.0.augs.bias": torch.zeros(48)}, DEIT, {}, "one of"),
        (SINGLE, DEIT, {}, "without an activation"),
    ],
)  # fmt: skip
def test_errors_name_the_mistake(state: Any, spec: str | None, options: dict[str, Any], words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsmoothError, match=words) as error:
            import_checkpoint(state, spec, **options)
    assert "\n" not in str(error.value)


def test_the_spec_may_name_the_remedy_and_the_weights_complete_its_options() -> None:
    model = import_checkpoint(deit_state("circulant2"), f"{DEIT}+augmented_shortcut", source="augmented_shortcut")
    assert str(unsmooth.applied(model)) == f"{DEIT}+augmented_shortcut(scale=0.75)"
    dense = import_checkpoint(deit_state("linear2"), DEIT)
    assert str(unsmooth.applied(dense)) == f"{DEIT}+augmented_shortcut(blocks_per_side=48, scale=0.75)"


def test_position_embeddings_are_resampled_for_another_size_as_timm_does() -> None:
    model = import_checkpoint(deit_state("attn_scale"), DEIT.replace("img_size=32", "img_size=64"))
    assert model.pos_embed.shape == (1, 65, 48)
    assert torch.equal(model.pos_embed[:, :1], deit_state("attn_scale")["pos_embed"][:, :1])  # of the class token


def test_the_command_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command("import")(import_)
    torch.save({"model": deit_state("feat_scale")}, tmp_path / "feat.pth")
    arguments = [str(tmp_path / "feat.pth"), "--spec", DEIT, "--out", str(tmp_path / "out")]
    app([*arguments, "--doubled"], standalone_mode=False)
    assert capsys.readouterr().out.startswith(f"{DEIT}+feat_scale: ")
    loaded = unsmooth.load(tmp_path / "out")
    expected = import_checkpoint(deit_state("feat_scale"), DEIT, doubled=True).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsmoothError, match="Use a directory as --out"):
        app([*arguments[:-1], str(tmp_path / "file")], standalone_mode=False)
