"""Checkpoint files that are hostile, damaged, or of other numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth
from unsmooth.errors import UnsmoothError

VIT = "vit_tiny_patch16_224(depth=1, img_size=8, patch_size=4, in_chans=1, embed_dim=12, num_heads=3, num_classes=10)"


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize("content", [{"model": Hostile()}, Hostile()])
def test_no_message_advises_to_load_unsafely(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(UnsmoothError) as raised:
        unsmooth.load(tmp_path / "a.pth", VIT)
    message = str(raised.value)
    assert "weights_only=False" not in message and "weights_only` to `False`" not in message
    assert "refuses it with weights_only=True" in message


@pytest.mark.parametrize("content", [b"e", b"eeee", b"\x80\x02", b"PK\x03\x04", b"", b"hello"])
def test_a_file_of_anything_says_what_it_is_not(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(UnsmoothError, match=r"cannot read weights from .*: .{12,}"):
        unsmooth.load(tmp_path / "a.pth", VIT)


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_tensors_without_dense_values_are_refused(tmp_path: Path, kind: str) -> None:
    weights = dict(unsmooth.create_model(VIT).state_dict())
    weight = weights["head.weight"]
    weights["head.weight"] = weight.to("meta") if kind == "meta" else weight.to_sparse()
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(UnsmoothError):
        unsmooth.load(tmp_path / "a.pth", VIT)


@pytest.mark.parametrize(("dtype", "accepted"), [(torch.float16, True), (torch.int8, False), (torch.complex64, False)])
def test_weights_of_another_kind_of_number_are_refused(tmp_path: Path, dtype: torch.dtype, accepted: bool) -> None:
    weights = {name: value.to(dtype) for name, value in unsmooth.create_model(VIT).state_dict().items()}
    torch.save(weights, tmp_path / "a.pth")
    if accepted:
        unsmooth.load(tmp_path / "a.pth", VIT)
        return
    with pytest.raises(UnsmoothError, match="of another kind of number"):
        unsmooth.load(tmp_path / "a.pth", VIT)


def test_training_starts_from_one_kind_of_weights(tmp_path: Path) -> None:
    unsmooth.save(unsmooth.create_model(VIT), tmp_path / "saved")
    with pytest.raises(UnsmoothError, match="either pretrained weights or a checkpoint, not both"):
        unsmooth.train(VIT, "digits", out=tmp_path / "run", checkpoint=tmp_path / "saved", pretrained=True, epochs=1)
