"""Random text and bytes where files and arguments are read: only our own errors, nothing written elsewhere.

Hypothesis draws the examples from a fixed seed. `UNSMOOTH_FUZZ` is the number of examples per test.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import warnings
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import unsmooth
from tests.support.small_hosts import host, treat
from unsmooth.cli.main import main
from unsmooth.data.images import ImageReadError, convert_channels, read_image
from unsmooth.errors import UnsmoothError
from unsmooth.papers import catalogue
from unsmooth.recipes.recipe import load_recipe
from unsmooth.spec import parse
from unsmooth.trials.compare import power

READ = catalogue._read
SMALL_VIT = "vit_tiny_patch16_224(img_size=8, patch_size=4, in_chans=1, embed_dim=12, num_heads=3, depth=1)"
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


def mutate(content: Any, data: Any, change: Any) -> None:
    """Replace a value somewhere inside."""
    node = content
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        inner = [key for key in keys if isinstance(node[key], dict | list) and node[key]]
        if not inner:
            break
        node = node[data.draw(st.sampled_from(inner))]
    node[data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))] = change


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


TOML = st.lists(
    st.sampled_from(["title", "kind", "groups", "arms", "host", "[", "]", "[[", "]]", "=", "1", "nan", '"', "x", "\n",
                     "{", "}", ".", "true", "1979-05-27", "0x", "\u0000"]),
    max_size=16,
).map(" ".join) | st.text(max_size=60) | st.just("a = " + "[" * 2_000)  # fmt: skip


@bounded
@given(TOML)
def test_experiment_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "part.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    monkeypatch.setattr(catalogue, "_folder", lambda paper: tmp_path)
    ours(lambda: catalogue._experiment.__wrapped__("paper", "part"))
    (tmp_path / "paper.toml").write_bytes((tmp_path / "part.toml").read_bytes())
    ours(lambda: catalogue._paper.__wrapped__("paper"))


EXPERIMENTS = [
    ("augmented_shortcuts", "table1"), ("context_broadcasting", "table_s1"), ("anti_oversmoothing", "figure1"),
    ("always_skip_attention", "mae"), ("adder_attention", "paper"), ("context_broadcasting", "paper"),
]  # fmt: skip


@bounded
@given(which=st.sampled_from(EXPERIMENTS), data=st.data(), change=JSON)
def test_values_of_experiments(monkeypatch: pytest.MonkeyPatch, which: tuple[str, str], data: Any, change: Any) -> None:
    content = copy.deepcopy(READ(*which))
    mutate(content, data, change)
    monkeypatch.setattr(catalogue, "_read", lambda paper, name: content)
    if which[1] == "paper":
        ours(lambda: catalogue._paper.__wrapped__(which[0]))
    else:
        ours(lambda: catalogue._experiment.__wrapped__(*which).fingerprint())


@bounded
@given(data=st.data(), change=JSON, extra=st.text(max_size=8))
def test_plans_of_trials(tmp_path: Path, data: Any, change: Any, extra: str) -> None:
    """What a plan of results/trials/ passes to `compare`: settings and recipe."""
    plan: Any = {
        "specs": [SMALL_VIT, SMALL_VIT + "+attn_scale"],
        "settings": {"seeds": 1, "vitals": "none", "sweep": {"lr": [0.1]}},
        "recipe": {"epochs": 1, "lr": 1e-3, "batch_size": 8, "train_images": 64},
    }
    mutate(plan, data, change)
    before = files(tmp_path)

    def stated() -> None:
        if not all(isinstance(plan.get(key), dict) for key in ("settings", "recipe")):
            return
        names = {**plan["settings"], **plan["recipe"], "out": tmp_path / "trial", **({extra: change} if extra else {})}
        power(plan["specs"], "digits", **names)

    ours(stated)
    assert files(tmp_path) == before


def picture(form: str, mode: str) -> bytes:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).convert(mode)
    file = BytesIO()
    image.save(file, form)
    return file.getvalue()


PICTURES = [
    (form, mode)
    for form, modes in {
        "PNG": ("L", "RGB", "RGBA", "P", "1", "LA", "I;16"), "JPEG": ("L", "RGB", "CMYK"),
        "TIFF": ("RGB", "LAB", "F", "I;16"),
        "GIF": ("P", "L"), "WEBP": ("RGB", "RGBA"), "BMP": ("RGB", "1"), "PPM": ("L", "RGB"),
    }.items()
    for mode in modes
]  # fmt: skip
SIZES = st.sampled_from([0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1])


@bounded
@given(
    which=st.sampled_from(PICTURES),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=4),
    cut=st.none() | st.floats(0, 1),
    size=st.none() | st.tuples(SIZES, SIZES),
    channels=st.sampled_from([1, 3]),
)
def test_images(
    tmp_path: Path, which: tuple[str, str], flips: Any, cut: float | None, size: tuple[int, int] | None, channels: int
) -> None:
    """Damaged, truncated, of odd modes, and with a header that claims another size, such as a huge one."""
    content = bytearray(picture(*which))
    if size is not None:
        content = resized(which[0], content, size)
    for place, bit in flips:
        content[place % len(content)] ^= 1 << bit
    if cut is not None:
        content = content[: int(cut * len(content))]
    file = tmp_path / f"a.{which[0].lower()}"
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours(lambda: convert_channels(read_image(file), channels))
        ours(lambda: convert_channels(read_image(bytes(content)), channels))


def resized(form: str, content: bytearray, size: tuple[int, int]) -> bytearray:
    """The same file with other sizes in its header."""
    width, height = size
    if form == "PNG":
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    elif form == "GIF":
        content[6:10] = struct.pack("<HH", width % 2**16, height % 2**16)
    elif form == "BMP":
        content[18:26] = struct.pack("<II", width, height)
    elif form == "JPEG":
        place = content.find(b"\xff\xc0") + 5
        content[place : place + 4] = struct.pack(">HH", height % 2**16, width % 2**16)
    elif form == "PPM":
        first, _, rest = bytes(content).partition(b"\n")
        content = bytearray(first + b"\n%d %d\n" % size + rest.partition(b"\n")[2])
    elif form == "TIFF":
        for tag, value in ((256, width), (257, height)):
            place = content.find(struct.pack("<HH", tag, 4))
            if place >= 0:
                content[place + 8 : place + 12] = struct.pack("<I", value)
    return content


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    content = resized("PNG", bytearray(picture("PNG", "RGB")), (40_000, 40_000))
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ImageReadError, match="exceeds limit"):
        read_image(tmp_path / "a.png")


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
    mutate(content, data, change)
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
