"""Without an optional package, one line says what needs it and which extra installs it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import unsmooth
from unsmooth.data.sources import open_source
from unsmooth.errors import UnsmoothError
from unsmooth.spec import parse_item
from unsmooth.surgery.plan import Plan
from unsmooth.tasks.huggingface import model_class
from unsmooth.tasks.segmentation.model import import_upernet
from unsmooth.tasks.vqa.text import build_vocabulary
from unsmooth.trials.ray_cluster import run_on_ray
from unsmooth.trials.runner import Job

ROOT = Path(__file__).parents[1]
DEVELOPMENT = {"dev", "docs"}
# Module that is missing, what needs it, extra.
CASES: dict[str, tuple[str, Callable[[], object], str]] = {
    "a Hugging Face host": ("transformers", lambda: unsmooth.create_model("hf:vit"), "hf"),
    "a Hugging Face task model": ("transformers", lambda: model_class("ViltForQuestionAnswering"), "hf"),
    "segmentation": ("transformers.models", import_upernet, "hf"),
    "vqa": ("tokenizers", lambda: build_vocabulary(["why?"]), "hf"),
    "a host of open_clip": ("open_clip", lambda: unsmooth.create_model("open_clip:ViT-B-32"), "open_clip"),
    "shards": ("webdataset", lambda: open_source("wds/toy", ROOT), "data"),
    "a Hugging Face data set": ("datasets", lambda: open_source("hfds/toy"), "data"),
    "a table of a plan": ("pandas", lambda: Plan(parse_item("attn_scale"), (), True).frame(), "notebook"),
    "a Ray cluster": ("ray", lambda: run_on_ray([Job("a", {})], 1, 0, "cpu", lambda *report: None), "ray"),
    "a streamed Hugging Face data set": ("datasets", lambda: open_source("hfids/toy"), "data"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_extra(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, use, extra = CASES[case]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsmoothError) as error:
        use()
    named = {"hf": "transformers", "open_clip": "open_clip_torch"}.get(extra, module)
    assert re.fullmatch(rf"[^\n]+ needs {named}\. pip install 'unsmooth\[{extra}\]'", str(error.value))


def test_tensorflow_datasets_have_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UnsmoothError, match=r"needs tensorflow_datasets\. pip install tensorflow-cpu"):
        open_source("tfds/toy")


def test_every_extra_has_a_case() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    tested = {extra for _, _, extra in CASES.values()}
    # A run without tensorboardX goes on with a warning: tests/training/test_settings.py. Without numba, adder remedies
    # run in torch: tests/remedies/test_adder_compiled.py.
    assert tested == extras - DEVELOPMENT - {"tensorboard", "fast"}
