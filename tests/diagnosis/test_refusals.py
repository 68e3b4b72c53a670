"""What a diagnosis refuses, in words: images of a wrong size, ignored options, weights that cannot be read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import unsmooth
from unsmooth.cli.main import main
from unsmooth.errors import UnsmoothError
from unsmooth.surgery.storage import read_weights
from unsmooth.utils import devices

SPEC = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8, embed_dim=24, num_heads=2)"


def test_a_tensor_of_a_wrong_size_names_both_sizes() -> None:
    with pytest.raises(UnsmoothError, match="of 3 channels and 40 × 40 pixels") as caught:
        unsmooth.diagnose(SPEC, torch.randn(2, 3, 40, 40))
    message = str(caught.value)
    assert "expects 3 channels and 32 × 32 pixels" in message and "img_size=40" in message
    with pytest.raises(UnsmoothError, match="Resize them to 32 × 32"):
        unsmooth.diagnose(SPEC, torch.randn(2, 3, 32, 48))


def test_another_size_that_the_host_accepts_is_measured() -> None:
    flexible = SPEC.replace(")", ", dynamic_img_size=true)")
    assert unsmooth.diagnose(flexible, torch.randn(2, 3, 40, 40), quick=True).images.size == [3, 40, 40]


def test_an_error_of_the_host_itself_is_not_blamed_on_the_size() -> None:
    model = unsmooth.create_model(SPEC)
    unsmooth.diagnose(model, torch.randn(2, 3, 32, 32), quick=True)

    def fails(*_: object) -> None:
        raise ValueError("of its own")

    model.blocks[1].mlp.register_forward_pre_hook(fails)
    with pytest.raises(ValueError, match="of its own"):
        unsmooth.diagnose(model, torch.randn(2, 3, 32, 32), quick=True)


def test_options_that_a_file_would_ignore_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    unsmooth.diagnose(SPEC, limit=2, quick=True).to_json(path)
    assert main(["diagnose", str(path), "--limit", "4", "--vitals", "token_cosine", "--no-reference"]) == 2
    error = capsys.readouterr().err
    assert all(option in error for option in ("--limit", "--vitals", "--reference")) and "no effect" in error
    assert main(["diagnose", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert main(["diagnose", str(path), SPEC, "--limit", "2", "--quick"]) == 0  # they apply to the model


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"i\x00\x00", "it is not a file of torch.save"),
        (b"hello", "it is not a file of torch.save"),
        (b"PK\x03\x04" + bytes(100), "ends too early"),
        (pickle.dumps({"weights": Path("x")}), "Save only the state dict"),
    ],
)
def test_broken_weights_are_refused_in_words(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(UnsmoothError, match=r"cannot read weights from .*weights.pth: ") as caught:
        read_weights(path)
    assert reason in str(caught.value)


def test_the_device_is_the_best_that_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, chosen, in_double in (
        (True, True, "cuda", "cuda"), (False, True, "mps", "cpu"), (False, False, "cpu", "cpu"),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(devices, "_has_mps", lambda mps=mps: mps)
        assert devices.choose_device(None).type == devices.choose_device("").type == chosen
        assert devices.choose_device(None, mps=False).type == in_double
    assert devices.choose_device(torch.device("cpu")) == torch.device("cpu")


def test_check_takes_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", SPEC, "--device", "cpu"]) == 0
    assert main(["check", SPEC, "--device", "gpu"]) == 2
    assert "device 'gpu' cannot be used" in capsys.readouterr().err
