"""What cannot work is one clear line, and what can go on goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torchvision
from huggingface_hub import constants
from torch import distributed as dist

import unsmooth
from tests.support.runs import HOST, free_port, small_run
from tests.support.small_hosts import host, treat
from unsmooth.data.batches import _raise_fatal
from unsmooth.errors import UnsmoothError
from unsmooth.hosts import build
from unsmooth.monitoring.writers import Records, TensorBoard
from unsmooth.spec import SpecItem


def test_an_optimizer_of_second_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match="'adahessian' needs second derivatives"):
        small_run(tmp_path / "run", HOST, {"optimizer": "adahessian"})


@pytest.mark.parametrize("remedy", ["attn_scale", "augmented_shortcut", "feat_scale"])
def test_a_treated_model_cannot_be_scripted(remedy: str) -> None:
    with pytest.raises(UnsmoothError, match=r"torch\.jit\.script cannot compile a treated model"):
        torch.jit.script(treat(host("deit"), remedy).eval())


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return index


def test_a_killed_loader_worker_is_one_line() -> None:
    loader = torch.utils.data.DataLoader(Slow(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(UnsmoothError, match="a process that loads images died"):
        next(_raise_fatal(iter(loader)))


def test_a_full_disk_at_the_tensorboard_file_ends_the_log_only(tmp_path: Path) -> None:
    class Full:
        def full(self, *args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        add_scalar = flush = close = full
        file_writer = type("Writer", (), {"event_writer": None})()

    def full_log() -> Records:
        log = TensorBoard(tmp_path)
        log.writer.close()
        log.writer = Full()
        return Records([log])

    log = full_log()
    with pytest.warns(UserWarning, match="stopped: No space left on device"):
        log.write(1, {"train_loss": 1.0})
    log.write(2, {"train_loss": 1.0})
    log.close()
    log = full_log()
    with pytest.warns(UserWarning, match="No space left"):
        log.close()


def test_a_sharded_model_is_diagnosed_and_saved(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    images = torch.randn(2, 3, 32, 32)
    model = treat(host("deit"), "attn_scale").eval()
    expected = unsmooth.diagnose(model, images, reference=False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        found = unsmooth.diagnose(model, images, reference=False)
        unsmooth.save(model, tmp_path / "saved")
    finally:
        dist.destroy_process_group()
    assert found.model.weights.sha256 == expected.model.weights.sha256
    assert found["token_cosine"] == pytest.approx(expected["token_cosine"], abs=1e-4)
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == state.keys() and all(torch.equal(saved[name], state[name]) for name in state)


def test_pretrained_torchvision_models_take_another_number_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torchvision.models.get_model

    def without_download(name: str, weights: str | None = None, **options: object) -> torch.nn.Module:
        assert not (weights and "num_classes" in options), "torchvision raises ValueError"
        return original(name, weights=None, **options)

    monkeypatch.setattr(torchvision.models, "get_model", without_download)
    monkeypatch.setattr(build, "_reachable", lambda address: True)
    for name, path in {"vit_b_32": "heads.head", "swin_t": "head"}.items():
        model = build.create_host(SpecItem(f"torchvision:{name}", {"num_classes": 7}), pretrained=True)
        assert model.get_submodule(path).out_features == 7


def test_the_hub_without_a_network_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"https://127.0.0.1:{free_port()}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "getproxies", dict)
    with build.offline_without_network():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)  # the hub's library waits between its attempts
    for name in ("hf:nobody/nothing", "hf-hub:nobody/nothing"):
        with pytest.raises(UnsmoothError):
            build.create_host(SpecItem(name, {}))
    assert not waits


def test_torchvision_weights_without_a_network_fail_before_the_host_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "_reachable", lambda address: False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torchvision.models, "get_model", lambda *_, **__: pytest.fail("the host was built"))
    with pytest.raises(UnsmoothError, match=r"not on this machine, and download\.pytorch\.org cannot be reached"):
        build.create_host(SpecItem("torchvision:vit_b_16", {}), pretrained=True)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/vit_b_16-c867db91.pth").touch()
    built: list[str] = []
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: built.append(name))
    build.create_host(SpecItem("torchvision:vit_b_16", {}), pretrained=True)
    assert built == ["vit_b_16"]
