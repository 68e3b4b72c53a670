"""Saving and loading: what is refused, and what a save that fails leaves."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unsmooth
from tests.support.small_hosts import HOSTS, host, look_trained, treat
from tests.surgery.test_laws import fingerprint, same
from tests.surgery.test_storage import FILES, TREATED, files, saved
from unsmooth import UnsmoothError

__all__ = ["saved"]


# What is refused.


class Malice:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def bare_pickle(thing: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(thing, protocol=2))


@pytest.mark.parametrize("write", [torch.save, bare_pickle])
def test_a_pickle_is_never_executed(write: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    write({"weight": Malice(tmp_path / "harm")}, tmp_path / "evil.pth")
    with pytest.raises(UnsmoothError, match=r"cannot read weights from .*evil\.pth") as caught:
        unsmooth.load(tmp_path / "evil.pth", HOSTS["deit"])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(Malice(tmp_path / "harm")))
    assert (tmp_path / "harm").exists(), "the test's own malice works"


def damage_missing(weights: dict[str, Any]) -> None:
    for name in ("blocks.0.attn.qkv.bias", "cls_token", "head.bias", "head.weight"):
        del weights[name]


def damage_extra(weights: dict[str, Any]) -> None:
    weights["head2.weight"] = torch.zeros(2)


def damage_size(weights: dict[str, Any]) -> None:
    weights["head.weight"] = torch.zeros(7, 48)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing, r": 4 not in the file \(blocks\.0\.attn\.qkv\.bias, cls_token, head\.bias, …\)$"),
        (damage_extra, r": 1 not in the model \(head2\.weight\)$"),
        (damage_size, r": 1 of another size \(head\.weight\)$"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    damage: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    weights = look_trained(host("deit"), seed=7).state_dict()
    damage(weights)
    torch.save(weights, tmp_path / "other.pth")
    model = host("deit")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=r"other\.pth does not fit deit_tiny_patch16_224\(.*\)" + message):
        unsmooth.load(tmp_path / "other.pth", model)
    same(before, fingerprint(model))
    with pytest.raises(UnsmoothError, match=r"does not fit VisionTransformer: "):
        unsmooth.load(tmp_path / "other.pth", host("torchvision_vit"))


def test_a_folder_that_does_not_fit_leaves_the_host_plain(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["head.weight"]
    save_file(weights, saved / "model.safetensors")
    model = host("deit")
    before = fingerprint(model)
    with pytest.raises(UnsmoothError, match=r"1 not in the file \(head\.weight\)"):
        unsmooth.load(saved, model)
    same(before, fingerprint(model))
    with pytest.raises(UnsmoothError, match=r"load needs the untreated host, .*\+adder\. Call remove\(model\) first"):
        unsmooth.load(saved, treat(model, "adder"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "recipe.json").unlink(), r"holds no recipe\.json: it was not written by save"),
        (lambda f: (f / "model.safetensors").unlink(), r"holds no model\.safetensors"),
        (lambda f: (f / "recipe.json").write_text("{"), r"recipe\.json is not a recipe of unsmooth \(JSONDecodeError"),
        (
            lambda f: (f / "recipe.json").write_bytes(b"\xff\xfe\x00"),
            r"not a recipe of unsmooth \(UnicodeDecodeError",
        ),
        (lambda f: (f / "recipe.json").write_text("[]"), r"is not a recipe of unsmooth \(TypeError"),
        (lambda f: (f / "recipe.json").write_text("{}"), r"is not a recipe of unsmooth \(KeyError: 'format'\)"),
        (lambda f: rewrite(f, format=2), r"has format 2; this version of unsmooth reads format 1\. Update unsmooth"),
        (lambda f: rewrite(f, host="deit"), r"is not a recipe of unsmooth \(TypeError"),
        (lambda f: rewrite(f, host={"name": "deit", "options": "x"}), r"is not a recipe of unsmooth \(ValueError"),
        (lambda f: rewrite(f, remedies=[{"name": "adder"}]), r"is not a recipe of unsmooth \(KeyError: 'options'\)"),
        (lambda f: rewrite(f, remedies=[]), r"holds weights of 'deit.*token_graying' and a recipe\.json of 'deit"),
        (lambda f: cut(f / "model.safetensors", 2), r"cannot read weights from .*model\.safetensors"),
        (lambda f: cut(f / "model.safetensors", 500), r"cannot read weights from .*model\.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), r"cannot read weights from .*model\.safetensors"),
    ],
)
def test_a_broken_folder_raises(break_it: Callable[[Path], Any], message: str, saved: Path) -> None:
    break_it(saved)
    for model in (None, host("deit")):
        with pytest.raises(UnsmoothError, match=message) as caught:
            unsmooth.load(saved, model)
        assert "\n" not in str(caught.value)


def test_the_folder_of_a_task_names_the_task(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "mae.json").write_text(json.dumps({"format": 1, "task": "mae"}))
    with pytest.raises(UnsmoothError, match=r"a model of the task mae\. Load it with .* unsmooth\.tasks\.mae$"):
        unsmooth.load(tmp_path)


@pytest.mark.parametrize("inside", ["last", "runs/plain-0a1b2c/seed0/last"])
def test_a_directory_of_runs_names_a_model_in_it(inside: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / inside).parent.mkdir(parents=True)
    saved.rename(tmp_path / "out" / inside)
    with pytest.raises(UnsmoothError, match=rf"out holds no recipe\.json: it holds saved models.*such as .*{inside}$"):
        unsmooth.load(tmp_path / "out")


def rewrite(folder: Path, **changes: Any) -> None:
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, **changes}))


def cut(path: Path, shares: int) -> None:
    """Keep one of so many equal parts of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // shares])


def test_a_truncated_file_raises(tmp_path: Path) -> None:
    for name, write in (("a.pth", torch.save), ("a.safetensors", save_file)):
        write(host("deit").state_dict(), tmp_path / name)
        cut(tmp_path / name, 2)
        with pytest.raises(UnsmoothError, match=rf"cannot read weights from .*{name}") as caught:
            unsmooth.load(tmp_path / name, HOSTS["deit"])
        assert "\n" not in str(caught.value)


def test_a_file_that_is_not_a_checkpoint_raises(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"nowhere does not exist\. Pass a folder written by save, or a"):
        unsmooth.load(tmp_path / "nowhere")
    torch.save(host("deit").state_dict(), tmp_path / "a.pth")
    with pytest.raises(UnsmoothError, match=r"checkpoint file without a recipe\. Pass its spec: load\(path, 'SPEC'\)"):
        unsmooth.load(tmp_path / "a.pth")
    with pytest.raises(UnsmoothError, match=r"expected a PyTorch module \(got int"):
        unsmooth.load(tmp_path / "a.pth", 3)
    for content in ({"epoch": 3}, [1, 2], torch.zeros(2), {}):
        torch.save(content, tmp_path / "b.pth")
        with pytest.raises(UnsmoothError, match=r"b\.pth holds no weights\. Expected tensors by name, or a dict with"):
            unsmooth.load(tmp_path / "b.pth", HOSTS["deit"])


@pytest.mark.parametrize("thing", ["deit", nn.DataParallel(nn.Linear(2, 2))])
def test_a_model_that_cannot_be_saved_raises(thing: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"expected a PyTorch module|wrapped in DataParallel\. Use model\.module"):
        unsmooth.save(thing, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_folded_model_is_not_saved(tmp_path: Path) -> None:
    folded = unsmooth.fold(treat(host("deit"), "attn_scale"))
    with pytest.raises(UnsmoothError, match=r"for inference only\. Use the model that was passed to fold\(\)"):
        unsmooth.save(folded, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


# A save that fails.


def half_written(tensors: Any, path: Path, metadata: Any = None) -> None:
    Path(path).write_bytes(b"half")
    raise OSError("no space left on device")


def no_rename(source: Path, target: Path) -> None:
    raise OSError("no rename today")


def cannot_sync(file: int) -> None:
    raise OSError("input/output error")


def stopped(*arguments: Any, **options: Any) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("target", "failure", "error"),
    [
        ("unsmooth.surgery.storage.save_file", half_written, UnsmoothError),
        ("unsmooth.utils.files.os.replace", no_rename, UnsmoothError),
        ("unsmooth.utils.files.os.fsync", cannot_sync, UnsmoothError),
        ("unsmooth.surgery.storage.save_file", stopped, KeyboardInterrupt),
        ("pathlib.Path.write_text", stopped, KeyboardInterrupt),
        ("unsmooth.surgery.storage.json.dumps", stopped, KeyboardInterrupt),
    ],
)
def test_a_failing_save_leaves_the_old_checkpoint(
    target: str, failure: Any, error: type[BaseException], saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(saved)
    with monkeypatch.context() as broken:
        broken.setattr(target, failure)
        with pytest.raises(error):
            unsmooth.save(treat(host("deit"), "adder"), saved)
    assert files(saved) == before
    unsmooth.load(saved)


def test_an_interrupt_between_the_two_renames_is_detected(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plain renames are not one: the weights name their spec, so that a mixed pair never loads."""
    replace = os.replace

    def cut_short(source: Path, target: Path) -> None:
        if Path(target).name == "recipe.json":
            raise KeyboardInterrupt
        replace(source, target)

    other = treat(host("deit"), TREATED.replace("branch=mlp", "branch=attn"))
    with monkeypatch.context() as broken:
        broken.setattr("unsmooth.utils.files.os.replace", cut_short)
        with pytest.raises(KeyboardInterrupt):
            unsmooth.save(other, saved)
    assert sorted(files(saved)) == FILES
    with pytest.raises(UnsmoothError, match=r"a save was interrupted\. Save again"):
        unsmooth.load(saved)


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    """A file in the way: also the super user, for whom no folder is read-only, cannot write there."""
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UnsmoothError, match=r"cannot write to .*file.*") as caught:
            unsmooth.save(host("deit"), folder)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "folder" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(UnsmoothError, match="cannot write to"):
        unsmooth.save(host("deit"), tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.safetensors"]
