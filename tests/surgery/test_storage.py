"""Saving and loading: what comes back, what is refused, and that a failure leaves the old checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import unsmooth
from tests.support.small_hosts import HOSTS, example, host, look_trained, outputs, treat
from unsmooth import UnsmoothError
from unsmooth.hosts.inputs import run
from unsmooth.surgery import storage

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
def test_a_model_of_a_spec_loads_without_a_host(remedies: str, tmp_path: Path) -> None:
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
def test_a_model_without_a_spec_loads_into_its_host(remedies: str, tmp_path: Path) -> None:
    model = treat(host("torchvision_vit"), remedies) if remedies else host("torchvision_vit")
    unsmooth.save(model, tmp_path)
    with pytest.raises(UnsmoothError, match=r"not built from a spec.*\. Pass it: load\(path, model=host\)"):
        unsmooth.load(tmp_path)
    into = look_trained(host("torchvision_vit"), seed=5)
    assert unsmooth.load(tmp_path, model=into) is into
    assert torch.equal(outputs(into, "torchvision_vit"), outputs(model, "torchvision_vit"))
    assert unsmooth.applied(into) == unsmooth.applied(model)


def test_the_host_of_a_folder_may_be_given(saved: Path) -> None:
    want = outputs(unsmooth.load(saved).eval(), "deit")
    assert torch.equal(outputs(unsmooth.load(saved, HOSTS["deit"]).eval(), "deit"), want)
    assert torch.equal(outputs(unsmooth.load(saved, f"{HOSTS['deit']}+{TREATED}").eval(), "deit"), want)
    with pytest.raises(UnsmoothError, match=r"saved holds .*, not .*\+adder\. Pass its host only, or omit the model"):
        unsmooth.load(saved, HOSTS["deit"] + "+adder")


def test_a_second_save_replaces_the_first(saved: Path) -> None:
    unsmooth.save(host("hf_vit"), saved)
    assert sorted(files(saved)) == FILES
    assert torch.equal(outputs(unsmooth.load(saved).eval(), "hf_vit"), outputs(host("hf_vit"), "hf_vit"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_is_loaded_in_its_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    model = treat(host("deit"), TREATED).to(dtype)
    unsmooth.save(model, tmp_path)
    loaded = unsmooth.load(tmp_path).eval()
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    image = {key: value.to(dtype) for key, value in example("deit").items()}
    assert torch.equal(run(loaded, image), run(model, image))
    into = unsmooth.load(tmp_path, model=host("deit"))
    assert {p.dtype for p in into.parameters()} == {torch.float32}, "a model that is given keeps its own"


def test_tied_and_transposed_weights_are_restored(tmp_path: Path) -> None:
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


def test_weights_of_a_plain_host_keep_the_initial_remedies(tmp_path: Path) -> None:
    torch.save(host("deit").state_dict(), tmp_path / "plain.pth")
    loaded = unsmooth.load(tmp_path / "plain.pth", HOSTS["deit"] + "+attn_scale+feat_scale").eval()
    torch.testing.assert_close(outputs(loaded, "deit"), outputs(host("deit"), "deit"), rtol=1e-4, atol=1e-5)
    assert len(list(unsmooth.parts(loaded))) == 4


def test_weights_of_a_treated_model_load_into_its_spec(tmp_path: Path) -> None:
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


def test_the_weights_are_ordinary_safetensors(saved: Path) -> None:
    with safe_open(saved / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", storage.SPEC: f"{HOSTS['deit']}+{TREATED}"}
        assert set(file.keys()) == set(treat(host("deit"), TREATED).state_dict())
