"""Treated models inside transformers and peft: saved, trained and adapted by these libraries' own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unsmooth
from tests.support.small_hosts import HOSTS, look_trained, treat
from unsmooth.errors import UnsmoothError

REMEDIES = "attn_scale+feat_scale"


def host() -> Any:
    return look_trained(unsmooth.create_model(HOSTS["hf_vit"])).eval()


def logits(model: Any, seed: int = 1) -> Tensor:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model.eval()(pixel_values=images).logits


def test_save_pretrained_and_back(tmp_path: Path) -> None:
    """transformers saves the remedies' parameters too; a spec of the folder builds the model, and load fills it."""
    model = treat(host(), REMEDIES)
    model.save_pretrained(tmp_path)
    loaded = unsmooth.load(tmp_path / "model.safetensors", f"hf:{tmp_path}+{REMEDIES}")
    assert torch.equal(logits(loaded), logits(model))


def test_from_pretrained_gives_the_host(tmp_path: Path) -> None:
    """Without unsmooth, the same folder is the plain host: a remedy only adds keys."""
    from transformers import AutoModelForImageClassification

    model = treat(host(), REMEDIES)
    model.save_pretrained(tmp_path)
    plain = AutoModelForImageClassification.from_pretrained(tmp_path)
    unsmooth.remove(model)
    assert type(plain) is type(model)
    assert torch.equal(logits(plain), logits(model))


def test_a_model_from_pretrained_is_treated_and_saved(tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification

    host().save_pretrained(tmp_path / "host")
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "host")
    treat(model, REMEDIES)
    unsmooth.save(model, tmp_path / "treated")
    with pytest.raises(UnsmoothError, match="Pass it"):
        unsmooth.load(tmp_path / "treated")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "host")
    assert torch.equal(logits(unsmooth.load(tmp_path / "treated", model=again)), logits(model))


class Noise(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        images = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(i))
        return {"pixel_values": images, "labels": torch.tensor(i % 2)}


def trainer(model: Any, folder: Path, steps: int) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, save_steps=2, learning_rate=1e-2, seed=0,
        report_to="none", use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=Noise())


@pytest.mark.slow
def test_trainer_trains_and_saves(tmp_path: Path) -> None:
    model = treat(host(), REMEDIES)
    before = {name: {k: v.clone() for k, v in part.state_dict().items()} for name, part in unsmooth.parts(model)}
    trainer(model, tmp_path, 2).train()
    for name, part in unsmooth.parts(model):
        assert all(not torch.equal(value, before[name][key]) for key, value in part.state_dict().items()), name
    saved = tmp_path / "checkpoint-2"
    assert torch.equal(logits(unsmooth.load(saved / "model.safetensors", f"hf:{saved}+{REMEDIES}")), logits(model))


@pytest.mark.slow
def test_trainer_resumes(tmp_path: Path) -> None:
    """On a type that the Trainer can resume: those whose tensors transformers renames when it saves are not."""
    spec = HOSTS["hf_vit"].replace("hf:vit(", "hf:data2vec-vision(drop_path_rate=0.0, ")

    def start() -> Any:
        return treat(look_trained(unsmooth.create_model(spec)), REMEDIES)

    model, resumed = start(), start()
    trainer(model, tmp_path, 4).train()
    trainer(resumed, tmp_path, 4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.allclose(logits(resumed), logits(model), atol=1e-5)


def lora(model: Any, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "query", "value"], **options))
    generator = torch.Generator().manual_seed(5)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:  # B starts at zero, which would hide mistakes
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return adapted


def test_lora_on_a_treated_host(tmp_path: Path) -> None:
    model = treat(host(), REMEDIES)
    names = [name for name, _ in unsmooth.parts(model)]
    treated = logits(model)
    adapted = lora(model, modules_to_save=["unsmooth_attn_scale", "unsmooth_feat_scale"])
    changed = logits(adapted)
    assert not torch.allclose(changed, treated, atol=1e-3)
    with adapted.disable_adapter():
        assert torch.allclose(logits(adapted), treated, atol=1e-5)
    adapted.save_pretrained(tmp_path)
    merged = adapted.merge_and_unload()
    assert [name for name, _ in unsmooth.parts(merged)] == names
    assert torch.allclose(logits(merged), changed, atol=1e-4)


def test_a_remedy_on_a_lora_host() -> None:
    """In place on the model inside the wrapper of peft: LoRA, remedy and both together work."""
    adapted = lora(host())
    plain = logits(adapted)
    inner = adapted.get_base_model()
    unsmooth.apply(inner, "attn_scale")
    assert torch.allclose(logits(adapted), plain, atol=1e-5)  # it starts exactly
    for _, part in unsmooth.parts(inner):
        part.omega.data += 0.5
    changed = logits(adapted)
    assert not torch.allclose(changed, plain, atol=1e-3)
    adapted.train()(pixel_values=torch.randn(2, 3, 32, 32)).logits.square().sum().backward()
    assert all(part.omega.grad is not None for _, part in unsmooth.parts(inner))
    unsmooth.remove(inner)
    assert torch.equal(logits(adapted), plain)


def test_a_remedy_on_the_wrapper_of_peft() -> None:
    adapted = lora(host())
    plain = logits(adapted)
    unsmooth.apply(adapted, "attn_scale")
    assert torch.allclose(logits(adapted), plain, atol=1e-5)
    diagnosis = unsmooth.diagnose(adapted, torch.randn(2, 3, 32, 32), vitals="token_cosine", reference=False)
    assert len(diagnosis["token_cosine"]) == 2
    unsmooth.remove(adapted)
    assert torch.equal(logits(adapted), plain)
