"""Nothing in a spec or a saved folder runs code, or loads from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth
from unsmooth.errors import UnsmoothError

VIT = "vit_tiny_patch16_224(depth=1, img_size=32, patch_size=8, embed_dim=12, num_heads=3, num_classes=2)"
CODE = """
from pathlib import Path
from transformers import PretrainedConfig
Path({marker!r}).write_text("ran")
class C(PretrainedConfig):
    model_type = {kind!r}
"""


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of a Hugging Face model with its own code, and the file that the code writes when it runs."""
    folder, marker = tmp_path / "hostile", tmp_path / "ran"
    folder.mkdir()
    auto = {"AutoConfig": "code.C", "AutoModel": "code.M", "AutoModelForImageClassification": "code.M"}
    config = {"model_type": "home_made", "auto_map": auto, "hidden_size": 12}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(CODE.format(marker=str(marker), kind="home_made"))
    return folder, marker


def saved_with(folder: Path, host: dict[str, Any]) -> Path:
    """A saved model whose recipe names another host."""
    unsmooth.save(unsmooth.create_model(VIT), folder)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["host"] = host
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "model.safetensors").write_bytes(plain_weights(folder))
    return folder


def plain_weights(folder: Path) -> bytes:
    """The weights without the spec in their metadata, which would already tell that the recipe was changed."""
    from safetensors.torch import load_file, save

    return save(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("options", ["", "(trust_remote_code=true)", "(code_revision=main, trust_remote_code=true)"])
def test_a_spec_runs_no_code_of_a_folder(hostile: tuple[Path, Path], options: str) -> None:
    folder, marker = hostile
    with pytest.raises(UnsmoothError):
        unsmooth.create_model(f"hf:{folder}{options}")
    assert not marker.exists()


def test_a_recipe_runs_no_code_of_a_folder(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    folder, marker = hostile
    host = {"name": f"hf:{folder}", "options": {"trust_remote_code": True}}
    with pytest.raises(UnsmoothError):
        unsmooth.load(saved_with(tmp_path / "saved", host))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"checkpoint_path": "/tmp/x.pth"}),
        ("vit_tiny_patch16_224", {"cache_dir": "/tmp"}),
        ("vit_tiny_patch16_224", {"pretrained_cfg": "x"}),
        ("vit_tiny_patch16_224", {"pretrained_cfg_overlay": ["x"]}),
        ("torchvision:vit_b_16", {"weights": "DEFAULT"}),
        ("torchvision:vit_b_16", {"progress": False}),
        ("hf:vit", {"trust_remote_code": True}),
        ("hf:vit", {"_name_or_path": "x"}),
        ("hf:vit", {"auto_map": "x"}),
        ("hf:dpt", {"backbone_config": "x"}),
        ("hf:timm_wrapper", {"architecture": "x"}),
    ],
)
def test_options_of_the_loader_are_refused_by_name(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UnsmoothError, match=f"has no option '{next(iter(options))}'"):
        unsmooth.create_model(name, **options)


def test_attention_code_of_the_hub_is_refused() -> None:
    small = "num_hidden_layers=1, hidden_size=12, num_attention_heads=3, image_size=16, patch_size=8"
    with pytest.raises(UnsmoothError, match="Use one of eager, sdpa"):
        unsmooth.create_model(f"hf:vit({small}, attn_implementation=someone/kernel)")
    assert unsmooth.create_model(f"hf:vit({small}, attn_implementation=eager)").config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["hf-hub:someone/model", "local-dir:/tmp", "hf:someone/model"])
def test_a_saved_folder_reaches_nothing_outside(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(UnsmoothError):
        unsmooth.load(saved_with(tmp_path / "saved", {"name": name, "options": {}}))


def test_a_saved_folder_brings_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pretrained` in a recipe does not download weights that would be replaced anyway."""
    model = unsmooth.create_model(VIT)
    unsmooth.save(model, tmp_path / "saved")
    recipe = json.loads((tmp_path / "saved/recipe.json").read_text())
    recipe["host"]["options"]["pretrained"] = True
    (tmp_path / "saved/recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "saved/model.safetensors").write_bytes(plain_weights(tmp_path / "saved"))
    import timm.models._builder as builder

    monkeypatch.setattr(builder, "load_pretrained", lambda *_, **__: pytest.fail("weights were asked for"))
    loaded = unsmooth.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_a_recipe_holds_plain_values_only(tmp_path: Path) -> None:
    host = {"name": "vit_tiny_patch16_224", "options": {"pretrained_cfg": {"file": "/tmp/x.pth"}}}
    with pytest.raises(UnsmoothError, match="must be numbers, words or lists"):
        unsmooth.load(saved_with(tmp_path / "saved", host))


def test_every_option_of_the_architecture_still_works() -> None:
    model = unsmooth.create_model(
        VIT.replace("depth=1", "depth=1, qk_norm=true, init_values=0.1, class_token=false, global_pool=avg")
    )
    assert model.num_prefix_tokens == 0
