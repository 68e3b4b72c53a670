"""The callbacks inside the real trainers of transformers and Lightning."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.small_hosts import host
from unsmooth.errors import UnsmoothError
from unsmooth.integrations.huggingface import UnsmoothCallback as HuggingFaceCallback
from unsmooth.integrations.lightning import UnsmoothCallback as LightningCallback
from unsmooth.monitoring.alarms import AlarmRaised


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, Any]:
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(i))
        return {"pixel_values": image, "labels": i % 5}


def steps_of(callback: Any) -> list[int]:
    return [record.step for record in callback.monitor.history]


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def hf_train(out: Path, callbacks: list[Any], resume: bool = False, **arguments: Any) -> nn.Module:
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    defaults = {"max_steps": 5, "save_strategy": "no", "report_to": []}
    given = TrainingArguments(
        str(out), use_cpu=True, per_device_train_batch_size=4, disable_tqdm=True, logging_strategy="no",
        **(defaults | arguments),
    )  # fmt: skip
    Trainer(model, given, train_dataset=Images(), callbacks=callbacks).train(resume_from_checkpoint=resume or None)
    return model


@pytest.mark.filterwarnings("ignore")
def test_hugging_face(tmp_path: Path) -> None:
    """With gradient accumulation: the same weights as without the callback, and a record where the trainer reports."""
    callback = HuggingFaceCallback(every=2)
    options = {"gradient_accumulation_steps": 2}
    watched = hf_train(tmp_path, [callback], report_to=["tensorboard"], **options)
    assert steps_of(callback) == [0, 2, 4] and callback.monitor.alarms == []
    assert equal(watched, hf_train(tmp_path / "plain", [], **options))
    assert list((tmp_path / "unsmooth").iterdir()) and not watched._forward_pre_hooks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "arguments",
    [{"bf16": True}, {"gradient_checkpointing": True}, {"torch_compile": True, "torch_compile_backend": "eager"}],
    ids=["amp", "checkpointing", "compile"],
)
def test_hugging_face_in_other_ways(tmp_path: Path, arguments: dict[str, Any]) -> None:
    callback = HuggingFaceCallback(every=2)
    hf_train(tmp_path, [callback], **arguments)
    assert steps_of(callback) == [0, 2, 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_resumes_and_closes_after_an_alarm(tmp_path: Path) -> None:
    hf_train(tmp_path, [HuggingFaceCallback(every=2)], save_strategy="steps", save_steps=2, max_steps=2)
    callback = HuggingFaceCallback(every=2)
    hf_train(tmp_path, [callback], resume=True, max_steps=5)
    assert steps_of(callback) == [2, 4]
    callback = HuggingFaceCallback(every=2, alarms={"max_logit": 0.0}, on_alarm="raise")
    with pytest.raises(AlarmRaised, match="max_logit"):
        hf_train(tmp_path / "alarm", [callback])


def lightning() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pytorch_lightning
    return pytorch_lightning


def lit_train(out: Path, callbacks: list[Any], module: Any = None, ckpt_path: str | None = None, **options: Any) -> Any:
    pl = lightning()

    class Lit(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.vit = nn.BatchNorm2d(3), host("deit").train()

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self.vit(self.scale(batch["pixel_values"])), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Lit() if module is None else module
    defaults = {"max_steps": 5, "logger": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        default_root_dir=out, **(defaults | options),
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Images(), batch_size=4), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    """With gradient accumulation: the same weights as without the callback."""
    callback = LightningCallback(every=2)
    watched = lit_train(tmp_path, [callback], accumulate_grad_batches=2).lightning_module
    assert steps_of(callback) == [0, 2, 4] and not watched.vit._forward_pre_hooks
    assert equal(watched, lit_train(tmp_path, [], accumulate_grad_batches=2).lightning_module)


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_where_the_trainer_does_and_resumes(tmp_path: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    callback = LightningCallback("vit", every=2, alarms={"max_logit": 0.0}, on_alarm="ignore")
    logger = CSVLogger(tmp_path)
    trainer = lit_train(tmp_path, [callback], logger=logger, precision="bf16-mixed", max_steps=2)
    assert steps_of(callback) == [0] and callback.monitor._image_hook.autocast is torch.bfloat16
    logger.save()
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0]
    assert "unsmooth/token_cosine/block 1" in header and "unsmooth/alarms/max_logit" in header
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    again = LightningCallback("vit", every=2, alarms={"max_logit": 0.0}, on_alarm="ignore")
    lit_train(tmp_path, [again], ckpt_path=str(tmp_path / "state.ckpt"))
    assert steps_of(again) == [2, 4] and again.monitor.alarms == [], "the alarm of the first part still lasts"


@pytest.mark.filterwarnings("ignore")
def test_lightning_closes_after_an_alarm_and_names_what_is_missing(tmp_path: Path) -> None:
    callback = LightningCallback(every=2, alarms={"max_logit": 0.0}, on_alarm="raise")
    with pytest.raises(AlarmRaised, match="max_logit"):
        lit_train(tmp_path, [callback])
    assert callback.monitor._hook is None

    class Plain(lightning().LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return self.layer.weight.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    with pytest.raises(UnsmoothError, match=r"no vision transformer was found in Plain \(children: layer\)"):
        lit_train(tmp_path, [LightningCallback()], Plain())


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("huggingface", ["transformers"], r"needs transformers. pip install 'unsmooth\[hf\]'"),
        ("lightning", ["lightning.pytorch", "pytorch_lightning"], "needs lightning. pip install lightning"),
    ],
)
def test_a_missing_package_is_named(
    module: str, missing: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"unsmooth.integrations.{module}")
    with pytest.raises(UnsmoothError, match=message):
        import_module(f"unsmooth.integrations.{module}")
