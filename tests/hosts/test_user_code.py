"""Hosts that are code of the user, and those of open_clip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import unsmooth
from tests.support.small_hosts import treat
from unsmooth.cli.main import main
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.user_code import runs_code, without_folder
from unsmooth.recipes.recipe import Recipe
from unsmooth.tasks.model_factory import build_teacher

CODE = """
import beside
import timm

LOADED = beside.LOADED

def net(depth=2, num_classes=5):
    return timm.create_model("vit_tiny_patch16_224", depth=depth, img_size=32, patch_size=8, embed_dim=48, num_heads=3,
                             num_classes=num_classes)

def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of the user, as a file and as a hub of torch."""
    (tmp_path / "beside.py").write_text("LOADED = True\n")
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "hubconf.py").write_text(
        "dependencies = ['timm']\n" + CODE.replace("import beside\n", "").replace("LOADED = beside.LOADED\n", "")
    )
    return tmp_path


@pytest.mark.parametrize("name", ["{}/mine.py:net", "torchhub:{}:net"])
def test_built_treated_saved_and_loaded(name: str, folder: Path, tmp_path: Path) -> None:
    spec = name.format(folder)
    model = treat(unsmooth.create_model(f"{spec}(depth=1)"), "attn_scale").eval()
    assert str(unsmooth.applied(model)) == f"{spec}(depth=1)+attn_scale"
    unsmooth.save(model, tmp_path / "saved")
    short = without_folder(spec)
    assert json.loads((tmp_path / "saved" / "recipe.json").read_text())["host"]["name"] == short
    with pytest.raises(
        UnsmoothError, match=r"is Python code and not in it. If you trust that code, pass the host: load"
    ):
        unsmooth.load(tmp_path / "saved")
    loaded = unsmooth.load(tmp_path / "saved", model=f"{spec}(depth=1)").eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))


def test_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{folder}/mine.py:net(depth=1)"]) == 0
    assert "1 blocks, 16 patch tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}/mine.py:nett", "has no function 'nett'. Did you mean 'net'"),
        ("{}/mine.py:number", "returns int, not a PyTorch module"),
        ("{}/mine.py:net(depht=1)", "its code cannot build .*unexpected keyword argument 'depht'"),
        ("{}/none.py:net", "there is no file"),
        ("torchhub:{}:nett", "Cannot find callable nett"),
        ("torchhub:{}/none:net", r"hubconf\.py.*clone it first"),
    ],
)
def test_mistakes(name: str, message: str, folder: Path) -> None:
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.create_model(name.format(folder))


def test_names() -> None:
    assert runs_code("a/b.py:net")
    assert runs_code("torchhub:a/b:net")
    assert not any(map(runs_code, ("vit_tiny_patch16_224", "hf:a/b.py", "hf-hub:a/b", "torchvision:vit_b_16", "b.py")))
    assert without_folder("/folder/of/b.py:net") == "b.py:net"
    assert without_folder("torchhub:/folder/of/b:net") == "torchhub:b:net"


def test_a_saved_folder_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """Neither the user's own file nor any other that a recipe names, also under a prefix of the libraries."""
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef net(): ...\n")
    (folder / "hubconf.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef net(): ...\n")
    unsmooth.save(unsmooth.create_model(f"{folder}/mine.py:net"), tmp_path / "saved")
    recipe = tmp_path / "saved" / "recipe.json"
    names = ("{}/evil.py:net", "torchhub:{}:net", "file:{}/evil.py:net", "timm:{}/evil.py:net", "hf:{}/evil.py:net")
    for name in names:
        content = json.loads(recipe.read_text())
        content["host"] = {"name": name.format(folder), "options": {}}
        recipe.write_text(json.dumps(content))
        weights = tmp_path / "saved" / "model.safetensors"
        _without_metadata(weights)
        with pytest.raises(UnsmoothError):
            unsmooth.load(tmp_path / "saved")
        with pytest.raises(UnsmoothError):
            unsmooth.diagnose(tmp_path / "saved", limit=1)
    assert not marker.exists()


def _without_metadata(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), path)


def test_a_recipe_names_no_code(folder: Path) -> None:
    with pytest.raises(UnsmoothError, match="Recipes run no code"):
        build_teacher(Recipe(distillation="hard", teacher=f"{folder}/mine.py:net"), 5)


def test_the_vision_tower_of_open_clip() -> None:
    model = unsmooth.create_model("open_clip:ViT-B-32(layers=2, width=48, head_width=16, image_size=32, patch_size=8)")
    assert type(model).__name__ == "VisionTransformer"
    assert model.pretrained_cfg["mean"] == (0.48145466, 0.4578275, 0.40821073)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 512)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("open_clip:ViT-B-33", "unknown open_clip model 'ViT-B-33'"),
        ("open_clip:ViT-B-32(timm_model_name=vit_tiny_patch16_224)", "has no option 'timm_model_name'"),
        ("open_clip:ViT-B-32(pretrained=true)", "Name one: open_clip:ViT-B-32/TAG"),
    ],
)
def test_mistakes_with_open_clip(spec: str, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.create_model(spec)
