"""Random text and bytes where files and arguments are read: only our own errors, nothing written elsewhere.

Hypothesis draws the examples from a fixed seed. `UNSMOOTH_FUZZ` is the number of examples per test.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unsmooth
from tests.support.small_hosts import host, treat
from unsmooth.cli.main import main
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import load_recipe
from unsmooth.spec import parse

EXAMPLES = int(os.environ.get("UNSMOOTH_FUZZ", "40"))
bounded = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SPEC_WORDS = st.sampled_from(
    ["vit_tiny_patch16_224", "attn_scale", "hf:", "torchvision:", "depth", "=", "(", ")", "[", "]", "+", ",", "1", "-1",
     "1e999", "true", "'", '"', "..", "/", " ", "\n", "\x1b", "pretrained", "\udce9"]
)  # fmt: skip


def ours(action: Any) -> None:
    """Run; an error of ours is as good as success."""
    with suppress(UnsmoothError):
        action()


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@bounded
@given(st.lists(SPEC_WORDS, max_size=14).map("".join) | st.text(max_size=40))
def test_specs(text: str) -> None:
    ours(lambda: parse(text))


@bounded
@given(
    st.lists(st.sampled_from(["epochs", "lr", "=", "1", "-1", "nan", "[", "]", '"', "x", "\n", "{", "}", ".", "true"]),
             max_size=16).map(" ".join) | st.text(max_size=60)
)  # fmt: skip
def test_recipes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    ours(lambda: load_recipe(file))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = treat(unsmooth.create_model("vit_tiny_patch16_224(depth=1, img_size=16, patch_size=8)"), "attn_scale")
    unsmooth.save(model, folder)
    return folder


@bounded
@given(change=JSON, where=st.integers(0, 20), whole=st.booleans())
def test_recipe_json_of_a_saved_model(saved: Path, tmp_path: Path, change: Any, where: int, whole: bool) -> None:
    content = json.loads((saved / "recipe.json").read_text())
    if whole:
        content = change
    else:
        content[sorted(content)[where % len(content)]] = change
    folder = tmp_path / "copy"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
    (folder / "recipe.json").write_text(json.dumps(content))
    before = files(tmp_path)
    ours(lambda: unsmooth.load(folder))
    assert files(tmp_path) == before


@bounded
@given(position=st.integers(0, 400), byte=st.integers(0, 255), length=st.none() | st.integers(0, 2**64 - 1))
def test_headers_of_weights(saved: Path, tmp_path: Path, position: int, byte: int, length: int | None) -> None:
    data = bytearray((saved / "model.safetensors").read_bytes())
    data[position] = byte
    if length is not None:
        data[:8] = struct.pack("<Q", length)
    folder = tmp_path / "copy"
    folder.mkdir(exist_ok=True)
    (folder / "recipe.json").write_bytes((saved / "recipe.json").read_bytes())
    (folder / "model.safetensors").write_bytes(data)
    ours(lambda: unsmooth.load(folder))


@pytest.fixture(scope="module")
def result() -> str:
    text: str = unsmooth.diagnose(host("deit"), torch.randn(2, 3, 32, 32), "token_cosine", reference=False).to_json()
    return text


@bounded
@given(data=st.data(), change=JSON)
def test_results(result: str, tmp_path: Path, data: Any, change: Any) -> None:
    content: Any = json.loads(result)
    node = content
    for _ in range(data.draw(st.integers(0, 4))):  # somewhere inside
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        inner = [key for key in keys if isinstance(node[key], dict | list) and node[key]]
        if not inner:
            break
        node = node[data.draw(st.sampled_from(inner))]
    key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
    node[key] = change
    file = tmp_path / "result.json"
    file.write_text(json.dumps(content))
    ours(lambda: unsmooth.Diagnosis.from_json(file))


ARGUMENTS = st.lists(
    st.sampled_from(["train", "diagnose", "compare", "list", "check", "evaluate", "bench", "import", "--out", "--data",
                     "--epochs", "--limit", "--json", "-1", "nan", "x", "", "/", "..", "--", "--help", "remedies",
                     "vitals", "recipes", "\x1b[31m", "\udce9", "vit+", "nothing(", "attn_scale"]),
    min_size=1, max_size=6,
)  # fmt: skip


@bounded
@given(arguments=ARGUMENTS)
def test_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Every exit code is one of ours, and no traceback reaches the user."""
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert main(arguments) in (0, 2)
    assert files(tmp_path) == before
