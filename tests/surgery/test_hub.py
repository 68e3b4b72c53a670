"""Models go to the hub and come back: files only, no code, with a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import unsmooth
from tests.support.hub import LocalHub, use_local_hub
from tests.support.small_hosts import treat
from unsmooth.errors import UnsmoothError
from unsmooth.surgery.storage import open_model

HOST = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8, embed_dim=48, num_heads=3, num_classes=5)"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[LocalHub]:
    return use_local_hub(monkeypatch, tmp_path / "cache")


def files_of(hub: type[LocalHub], name: str) -> dict[str, Path]:
    snapshots = hub().folder(name) / "snapshots"
    commit = (snapshots.parent / "refs" / "main").read_text()
    return {path.name: path for path in (snapshots / commit).iterdir()}


def test_round_trip(hub: type[LocalHub]) -> None:
    model = treat(unsmooth.create_model(HOST), "attn_scale+feat_scale").eval()
    commit = unsmooth.push(model, "someone/treated")
    loaded = unsmooth.load("hf-hub:someone/treated").eval()
    assert str(unsmooth.applied(loaded)) == str(unsmooth.applied(model))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))
    again = unsmooth.load(f"hf-hub:someone/treated@{commit}").eval()
    assert torch.equal(again(images), model(images))
    assert str(unsmooth.applied(open_model("hf-hub:someone/treated")[0])) == str(unsmooth.applied(model))


def test_what_is_uploaded(hub: type[LocalHub]) -> None:
    model = treat(unsmooth.create_model(HOST), "attn_scale")
    unsmooth.push(model, "someone/treated")
    files = files_of(hub, "someone/treated")
    assert set(files) == {"model.safetensors", "recipe.json", "README.md", "diagnosis.json"}
    card = files["README.md"].read_text()
    diagnosis = unsmooth.Diagnosis.from_json(files["diagnosis.json"])
    assert card.startswith("---\nlibrary_name: unsmooth\n")
    assert 'unsmooth.load("hf-hub:someone/treated")' in card
    assert "- `attn_scale`" in card
    assert f"Verdict: **{diagnosis.verdict}**" in card
    assert f"{diagnosis['token_cosine'][-1]:.2f}" in card


def test_a_diagnosis_of_the_caller_or_none(hub: type[LocalHub]) -> None:
    model = unsmooth.create_model(HOST)
    made = unsmooth.diagnose(model, torch.randn(4, 3, 32, 32), vitals="token_cosine")
    unsmooth.push(model, "someone/one", made)
    assert "a tensor" in files_of(hub, "someone/one")["README.md"].read_text()
    unsmooth.push(model, "someone/two", False)
    assert "Diagnosis" not in files_of(hub, "someone/two")["README.md"].read_text()


def test_a_model_of_your_own_says_how_to_load_it(hub: type[LocalHub], tmp_path: Path) -> None:
    code = tmp_path / "private" / "mine.py"
    code.parent.mkdir()
    code.write_text(f"import unsmooth\n\ndef net(**options):\n    return unsmooth.create_model({HOST!r}, **options)\n")
    model = treat(unsmooth.create_model(f"{code}:net"), "attn_scale").eval()
    unsmooth.push(model, "someone/mine")
    files = files_of(hub, "someone/mine")
    assert 'unsmooth.load("hf-hub:someone/mine", model=host)' in files["README.md"].read_text()
    assert not any(b"private" in path.read_bytes() for path in files.values())
    with pytest.raises(UnsmoothError, match=r"names the host mine\.py:net, which is Python code"):
        unsmooth.load("hf-hub:someone/mine")
    loaded = unsmooth.load("hf-hub:someone/mine", model=f"{code}:net").eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))


def test_a_repository_cannot_name_code(hub: type[LocalHub], tmp_path: Path) -> None:
    marker, code = tmp_path / "ran", tmp_path / "evil.py"
    code.write_text(f"open({str(marker)!r}, 'w').close()\ndef net(): ...\n")
    unsmooth.push(unsmooth.create_model(HOST), "someone/evil", False)
    recipe = files_of(hub, "someone/evil")["recipe.json"]
    content = json.loads(recipe.read_text())
    for name in (f"{code}:net", f"torchhub:{tmp_path}:net"):
        content["host"], content["spec"] = {"name": name, "options": {}}, name
        recipe.write_text(json.dumps(content))
        with pytest.raises(UnsmoothError):
            unsmooth.load("hf-hub:someone/evil")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["model", "a/b/c", "a b/c", "/c", ""])
def test_names_are_checked_first(name: str, hub: type[LocalHub]) -> None:
    with pytest.raises(UnsmoothError, match="Use USER/NAME"):
        unsmooth.push(torch.nn.Linear(1, 1), name)
    with pytest.raises(UnsmoothError, match="Use USER/NAME"):
        unsmooth.load(f"hf-hub:{name}")


def test_what_is_not_there(hub: type[LocalHub]) -> None:
    with pytest.raises(UnsmoothError, match="cannot download someone/nothing from the hub"):
        unsmooth.load("hf-hub:someone/nothing")


def test_a_refused_upload_is_explained(hub: type[LocalHub], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("403 Forbidden")

    monkeypatch.setattr(LocalHub, "upload_folder", refuse)
    with pytest.raises(UnsmoothError, match="cannot push to someone/x: 403 Forbidden"):
        unsmooth.push(unsmooth.create_model(HOST), "someone/x", False)
