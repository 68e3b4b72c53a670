"""Hosts are built by their libraries; `pretrained` is an option of every host."""

from __future__ import annotations

import pytest

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.surgery.storage import open_model

SMALL = "deit_tiny_patch16_224(depth=1, img_size=32"


def test_pretrained_is_no_part_of_the_architecture() -> None:
    model = unsmooth.create_model(f"{SMALL}, pretrained=false)+attn_scale")
    assert str(unsmooth.applied(model)) == f"{SMALL})+attn_scale"
    with pytest.raises(UnsmoothError, match="pretrained must be true or false"):
        unsmooth.create_model(f"{SMALL}, pretrained=2)")


def test_weights_come_from_one_place(tmp_path) -> None:
    model = unsmooth.create_model(f"{SMALL})")
    unsmooth.save(model, tmp_path)
    with pytest.raises(UnsmoothError, match="either pretrained weights or a checkpoint"):
        open_model(f"{SMALL})", tmp_path / "model.safetensors", pretrained=True)
    with pytest.raises(UnsmoothError, match="holds weights already"):
        open_model(tmp_path, pretrained=True)
    with pytest.raises(UnsmoothError, match="pretrained needs a spec"):
        unsmooth.diagnose(model, limit=1, pretrained=True)
