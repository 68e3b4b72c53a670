"""Saving and loading: what comes back, what is refused, and that a failure leaves the old checkpoint."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import unsmooth
from tests.small_hosts import HOSTS, example, host, look_trained, outputs, treat
from tests.test_laws import fingerprint, same
from unsmooth import UnsmoothError, storage
from unsmooth.hosts import run

TREATED = "attn_scale(blocks=1)+context_broadcast(kind=scaled)+no_skip(branch=mlp)+token_graying"
FILES = ["model.safetensors", "recipe.json"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a treated model."""
    unsmooth.save(treat(host("deit"), TREATED), tmp_path / "saved")
    return tmp_path / "saved"


# There and back.


@pytest.mark.parametrize("remedies", ["", TREATED])
def test_a_model_of_a_spec_comes_back_alone(remedies: str, tmp_path: Path) -> None:
    model = treat(host("deit"), remedies) if remedies else host("deit")
    unsmooth.save(model, tmp_path / "new" / "folder")
    assert sorted(files(tmp_path / "new" / "folder")) == FILES
    loaded = unsmooth.load(str(tmp_path / "new" / "folder")).eval()
    assert torch.equal(outputs(loaded, "deit"), outputs(model, "deit"))
    assert unsmooth.applied(loaded) == unsmooth.applied(model)
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == {
        name: p.requires_grad for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("remedies", ["", TREATED])
def test_a_model_without_a_spec_comes_back_into_its_host(remedies: str, tmp_path: Path) -> None:
    model = treat(host("torchvision_vit"), remedies) if remedies else host("torchvision_vit")
    unsmooth.save(model, tmp_path)
    with pytest.raises(UnsmoothError, match=r"not built from a spec.*; give it: load\(path, model=host\)"):
        unsmooth.load(tmp_path)
    into = look_trained(host("torchvision_vit"), seed=5)
    assert unsmooth.load(tmp_path, model=into) is into
    assert torch.equal(outputs(into, "torchvision_vit"), outputs(model, "torchvision_vit"))
    assert unsmooth.applied(into) == unsmooth.applied(model)


def test_the_host_of_a_folder_may_be_said_again(saved: Path) -> None:
    want = outputs(unsmooth.load(saved).eval(), "deit")
    assert torch.equal(outputs(unsmooth.load(saved, HOSTS["deit"]).eval(), "deit"), want)
    assert torch.equal(outputs(unsmooth.load(saved, f"{HOSTS['deit']}+{TREATED}").eval(), "deit"), want)
    with pytest.raises(UnsmoothError, match=r"saved holds .*, not .*\+adder; give its host alone, or nothing"):
        unsmooth.load(saved, HOSTS["deit"] + "+adder")


def test_a_second_save_replaces_the_first(saved: Path) -> None:
    unsmooth.save(host("hf_vit"), saved)
    assert sorted(files(saved)) == FILES
    assert torch.equal(outputs(unsmooth.load(saved).eval(), "hf_vit"), outputs(host("hf_vit"), "hf_vit"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_comes_back_in_its_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = treat(host("deit"), TREATED).to(dtype)
    unsmooth.save(model, tmp_path)
    loaded = unsmooth.load(tmp_path).eval()
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    image = {key: value.to(dtype) for key, value in example("deit").items()}
    assert torch.equal(run(loaded, image), run(model, image))
    into = unsmooth.load(tmp_path, model=host("deit"))
    assert {p.dtype for p in into.parameters()} == {torch.float32}, "a model that is given keeps its own"


def test_tied_and_transposed_weights_come_back(tmp_path: Path) -> None:
    """Safetensors takes no storage twice and nothing that is not contiguous."""
    model, loaded = host("torchvision_vit"), host("torchvision_vit")
    layers = [block.mlp[0] for block in model.encoder.layers]
    layers[1].weight = layers[0].weight
    layers[0].weight.data = layers[0].weight.data.mT.contiguous().mT
    assert not layers[0].weight.is_contiguous()
    unsmooth.save(model, tmp_path)
    unsmooth.load(tmp_path, model=loaded)
    assert torch.equal(outputs(loaded, "torchvision_vit"), outputs(model, "torchvision_vit"))


def test_a_model_compiled_in_place_is_saved(tmp_path: Path) -> None:
    model = treat(host("deit"), TREATED)
    want = outputs(model, "deit")
    model.compile()
    unsmooth.save(model, tmp_path)
    assert torch.equal(outputs(unsmooth.load(tmp_path).eval(), "deit"), want)


def test_the_recipe_is_plain(saved: Path) -> None:
    recipe = json.loads((saved / "recipe.json").read_text())
    assert recipe["format"] == 1
    assert recipe["spec"] == f"{HOSTS['deit']}+{TREATED}"
    assert recipe["remedies"][0] == {"name": "attn_scale", "options": {"blocks": 1}}
    assert recipe["versions"] == {"unsmooth": unsmooth.__version__, "torch": torch.__version__}


# Checkpoint files of others.


def nested(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {key: weights, "epoch": 3, "args": None}


def prefixed(prefix: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {prefix + name: value for name, value in weights.items()}


@pytest.mark.parametrize(
    "dress",
    [
        lambda weights: weights,
        nested("model"),
        nested("state_dict"),
        nested("state_dict_ema"),
        prefixed("module."),
        prefixed("_orig_mod."),
        prefixed("module._orig_mod."),
        lambda weights: nested("state_dict")(prefixed("module.")(weights)),
        lambda weights: {"model": {name: -value for name, value in weights.items()}, "model_ema": weights},
    ],
)
@pytest.mark.parametrize("suffix", ["pth", "bin"])
def test_checkpoints_of_training_scripts(dress: Callable[[dict[str, Any]], Any], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"checkpoint.{suffix}"
    torch.save(dress(host("deit").state_dict()), path)
    loaded = unsmooth.load(path, HOSTS["deit"]).eval()
    assert torch.equal(outputs(loaded, "deit"), outputs(host("deit"), "deit"))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors_files(prefix: str, tmp_path: Path) -> None:
    save_file(prefixed(prefix)(host("deit").state_dict()), tmp_path / "weights.safetensors")
    loaded = unsmooth.load(tmp_path / "weights.safetensors", HOSTS["deit"]).eval()
    assert torch.equal(outputs(loaded, "deit"), outputs(host("deit"), "deit"))


def test_weights_of_a_plain_host_go_below_remedies_at_their_start(tmp_path: Path) -> None:
    torch.save(host("deit").state_dict(), tmp_path / "plain.pth")
    loaded = unsmooth.load(tmp_path / "plain.pth", HOSTS["deit"] + "+attn_scale+feat_scale").eval()
    torch.testing.assert_close(outputs(loaded, "deit"), outputs(host("deit"), "deit"), rtol=1e-4, atol=1e-5)
    assert len(list(unsmooth.parts(loaded))) == 4


def test_weights_of_a_treated_model_go_into_its_spec(tmp_path: Path) -> None:
    model = treat(host("deit"), TREATED)
    torch.save({"model": model.state_dict()}, tmp_path / "treated.pth")
    loaded = unsmooth.load(tmp_path / "treated.pth", str(unsmooth.applied(model))).eval()
    assert torch.equal(outputs(loaded, "deit"), outputs(model, "deit"))
    with pytest.raises(UnsmoothError, match=r"3 not in the model \(blocks\.0\.mlp\.unsmooth_context_broadcast\.lam"):
        unsmooth.load(tmp_path / "treated.pth", HOSTS["deit"])
    with pytest.raises(UnsmoothError, match=r"1 not in the file \(blocks\.0\.attn\.unsmooth_attn_scale\.omega\)"):
        unsmooth.load(tmp_path / "treated.pth", HOSTS["deit"] + "+" + TREATED.replace("(blocks=1)", ""))


def test_a_host_whose_own_names_look_wrapped(tmp_path: Path) -> None:
    """A prefix that is the model's own stays."""
    model, into = nn.ModuleDict({"module": nn.Linear(2, 2)}), nn.ModuleDict({"module": nn.Linear(2, 2)})
    torch.save(model.state_dict(), tmp_path / "own.pth")
    unsmooth.load(tmp_path / "own.pth", into)
    assert torch.equal(into["module"].weight, model["module"].weight)


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
    with pytest.raises(UnsmoothError, match=r"load needs the untreated host, .*\+adder; remove\(model\) first"):
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
        (lambda f: rewrite(f, format=2), r"has format 2, and this version of unsmooth reads 1; update unsmooth"),
        (lambda f: rewrite(f, host="deit"), r"is not a recipe of unsmooth \(TypeError"),
        (lambda f: rewrite(f, host={"name": "deit", "options": "x"}), r"is not a recipe of unsmooth \(ValueError"),
        (lambda f: rewrite(f, remedies=[{"name": "adder"}]), r"is not a recipe of unsmooth \(KeyError: 'options'\)"),
        (lambda f: rewrite(f, remedies=[]), r"holds weights of 'deit.*token_graying' and a recipe\.json of 'deit"),
        (lambda f: cut(f / "model.safetensors", 2), r"cannot read weights from .*model\.safetensors"),
        (lambda f: cut(f / "model.safetensors", 500), r"cannot read weights from .*model\.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), r"cannot read weights from .*model\.safetensors"),
    ],
)
def test_a_broken_folder_is_told(break_it: Callable[[Path], Any], message: str, saved: Path) -> None:
    break_it(saved)
    for model in (None, host("deit")):
        with pytest.raises(UnsmoothError, match=message) as caught:
            unsmooth.load(saved, model)
        assert "\n" not in str(caught.value)


def rewrite(folder: Path, **changes: Any) -> None:
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, **changes}))


def cut(path: Path, shares: int) -> None:
    """Keep one of so many equal parts of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // shares])


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    for name, write in (("a.pth", torch.save), ("a.safetensors", save_file)):
        write(host("deit").state_dict(), tmp_path / name)
        cut(tmp_path / name, 2)
        with pytest.raises(UnsmoothError, match=rf"cannot read weights from .*{name}") as caught:
            unsmooth.load(tmp_path / name, HOSTS["deit"])
        assert "\n" not in str(caught.value)


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"nowhere does not exist: load takes a folder written by save, or a"):
        unsmooth.load(tmp_path / "nowhere")
    torch.save(host("deit").state_dict(), tmp_path / "a.pth")
    with pytest.raises(UnsmoothError, match=r"checkpoint file without a recipe; say what it is: load\(path, 'SPEC'\)"):
        unsmooth.load(tmp_path / "a.pth")
    with pytest.raises(UnsmoothError, match="expected a PyTorch module, got int"):
        unsmooth.load(tmp_path / "a.pth", 3)
    for content in ({"epoch": 3}, [1, 2], torch.zeros(2), {}):
        torch.save(content, tmp_path / "b.pth")
        with pytest.raises(UnsmoothError, match=r"b\.pth holds no weights: expected tensors by name, or a dict with"):
            unsmooth.load(tmp_path / "b.pth", HOSTS["deit"])


@pytest.mark.parametrize("thing", ["deit", nn.DataParallel(nn.Linear(2, 2))])
def test_what_cannot_be_saved_is_told(thing: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"expected a PyTorch module|wrapped in DataParallel; give model\.module"):
        unsmooth.save(thing, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_folded_model_is_not_saved(tmp_path: Path) -> None:
    folded = unsmooth.fold(treat(host("deit"), "attn_scale"))
    with pytest.raises(UnsmoothError, match=r"for inference only; go back to the model that fold\(\) was given"):
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
        ("unsmooth.storage.save_file", half_written, UnsmoothError),
        ("unsmooth.files.os.replace", no_rename, UnsmoothError),
        ("unsmooth.files.os.fsync", cannot_sync, UnsmoothError),
        ("unsmooth.storage.save_file", stopped, KeyboardInterrupt),
        ("pathlib.Path.write_text", stopped, KeyboardInterrupt),
        ("unsmooth.storage.json.dumps", stopped, KeyboardInterrupt),
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


def test_a_cut_between_the_two_renames_is_noticed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plain renames are not one: the weights name their spec, so that a mixed pair never loads."""
    replace = os.replace

    def cut_short(source: Path, target: Path) -> None:
        if Path(target).name == "recipe.json":
            raise KeyboardInterrupt
        replace(source, target)

    other = treat(host("deit"), TREATED.replace("branch=mlp", "branch=attn"))
    with monkeypatch.context() as broken:
        broken.setattr("unsmooth.files.os.replace", cut_short)
        with pytest.raises(KeyboardInterrupt):
            unsmooth.save(other, saved)
    assert sorted(files(saved)) == FILES
    with pytest.raises(UnsmoothError, match="a save was cut short; save again"):
        unsmooth.load(saved)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
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


def test_the_weights_are_ordinary_safetensors(saved: Path) -> None:
    with safe_open(saved / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", storage.SPEC: f"{HOSTS['deit']}+{TREATED}"}
        assert set(file.keys()) == set(treat(host("deit"), TREATED).state_dict())
