"""What a run does: optimizer, schedule, losses, heads, moving average, metrics; against references written apart."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unsmooth
from tests.support.runs import HOST, SMALL, same_state, small_run
from unsmooth import UnsmoothError
from unsmooth.data.transforms import preprocessing
from unsmooth.recipes.recipe import load_recipe
from unsmooth.tasks.classification.losses import Distillation, split_outputs
from unsmooth.tasks.model_factory import build
from unsmooth.training.checkpoint import read_state, write_state
from unsmooth.training.trainer import make_optimizer

HF = "hf:vit(image_size=8, patch_size=2, num_channels=1, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)"  # noqa: E501


def small(**fields):
    return load_recipe("small", {**SMALL, **fields})


def test_a_run_learns_and_leaves_what_it_promises(tmp_path):
    result = small_run(
        tmp_path, fields={"epochs": 12, "train_images": 640, "crop_scale": (1, 1), "hflip": 0, "lr": 5e-3}
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert lines[-1]["train_loss"] < lines[0]["train_loss"] - 0.3
    assert result["top1"] == lines[-1]["val_top1"] > 0.25
    assert result.best["top1"] == max(line["val_top1"] for line in lines)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    settings = json.loads((tmp_path / "run.json").read_text())
    assert settings["recipe"]["lr"] == 5e-3 and settings["spec"] == HOST
    model = unsmooth.load(tmp_path / "last")
    evaluation = unsmooth.evaluate(model, "digits")  # the whole split, of which the run saw 40 images
    assert evaluation["validation"].images == 359
    with np.load(tmp_path / "scores.npz") as scores:
        assert scores["correct"].mean() == pytest.approx(result["top1"])


def test_the_same_host_starts_from_the_same_weights_whatever_is_on_it():
    plain = build(HOST, 10, small(), seed=3).state_dict()
    for remedy in ("+attn_scale", "+augmented_shortcut+feat_scale", "+adder", "+no_skip", "+token_graying"):
        treated = build(HOST + remedy, 10, small(), seed=3).state_dict()
        assert all(torch.equal(plain[name], treated[name]) for name in plain)
    other = build(HOST, 10, small(), seed=4).state_dict()
    assert not torch.equal(plain["patch_embed.proj.weight"], other["patch_embed.proj.weight"])


def test_remedies_do_not_decay_and_idle_weights_are_left_out():
    model = build(HOST + "+augmented_shortcut+feat_scale", 10, small(), seed=0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in make_optimizer(model, small(weight_decay=0.3)).param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            matrix_of_host = parameter.ndim > 1 and "unsmooth_" not in name and name not in ("pos_embed", "cls_token")
            assert group["weight_decay"] == (0.3 if matrix_of_host else 0.0), name
    model = build(HOST + "+adder", 10, small(), seed=0)
    held = {id(p) for group in make_optimizer(model, small()).param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}
    assert id(model.blocks[0].attn.qkv.weight) not in held


def test_the_schedule_is_a_warm_up_and_a_cosine(tmp_path):
    small_run(tmp_path, fields={"epochs": 4, "warmup_epochs": 1, "warmup_lr": 1e-5, "min_lr": 1e-4, "lr": 1e-3})
    given = [json.loads(line)["lr"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = 4
    last = np.arange(1, 5) * steps - 1  # the update before each line
    warm = 1e-5 + (1e-3 - 1e-5) * last / steps
    cosine = 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + np.cos(np.pi * last / (4 * steps)))
    assert given == pytest.approx(np.where(last < steps, warm, cosine).tolist())


def test_parts_of_a_batch_add_up(tmp_path):
    for name, parts in (("whole", 1), ("parts", 4)):
        small_run(tmp_path / name, HOST + "+attn_scale", {"accumulate": parts})
    whole, parts = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts"))
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], atol=2e-5, rtol=1e-4)


def test_the_moving_average_is_what_counts(tmp_path):
    small_run(tmp_path, fields={"ema": 0.9})
    state = read_state(tmp_path / "state.safetensors")["trainer"]
    last = load_file(tmp_path / "last" / "model.safetensors")
    assert all(torch.equal(last[name], state["ema"][name]) for name in last)
    assert not torch.equal(last["head.weight"], state["model"]["head.weight"])


@pytest.mark.parametrize("spec", [HF + "+attn_scale", "torchvision:vit_b_16"])
def test_hosts_of_other_libraries_train(tmp_path, spec, monkeypatch):
    if spec.startswith("torchvision"):
        from torchvision import models

        def little(**options):
            return models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=options["num_classes"])

        monkeypatch.setattr(models, "get_model", lambda name, weights, **options: little(**options))
        result = small_run(tmp_path, spec + "+feat_scale", {"epochs": 1, "image_size": 32}, val_data="digits")
    else:
        result = small_run(tmp_path, spec, {"epochs": 1, "amp": "bfloat16"})
    assert 0 <= result["top1"] <= 1


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_distillation_against_numpy(kind):
    torch.manual_seed(0)
    teacher = build(HOST, 10, small(), seed=1).eval()
    torch.nn.init.normal_(teacher.head.weight)
    recipe = small(distillation=kind, teacher=HOST, distillation_tau=2.0)
    student = preprocessing(teacher)
    images, logits = torch.randn(6, 1, 8, 8), torch.randn(6, 10)
    actual = Distillation(teacher, student, recipe, 10)(images, logits).item()

    def log_softmax(x):
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    with torch.no_grad():
        wanted = teacher(images).double().numpy()
    ours = logits.double().numpy()
    if kind == "hard":
        expected = -log_softmax(ours)[np.arange(6), wanted.argmax(axis=1)].mean()
    else:
        p, q = log_softmax(wanted / 2), log_softmax(ours / 2)
        expected = 4 * (np.exp(p) * (p - q)).sum(axis=1).mean()
    assert actual == pytest.approx(expected, rel=1e-4)


def test_a_distilled_host_trains_two_heads(tmp_path):
    spec = "deit_tiny_distilled_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
    small_run(tmp_path / "teacher", fields={"epochs": 1})
    fields = {
        "distillation": "hard",
        "teacher": HOST,
        "teacher_checkpoint": str(tmp_path / "teacher" / "last"),
        "epochs": 1,
    }
    small_run(tmp_path / "student", spec + "+attn_scale", fields)
    start, end = build(spec, 10, small(), seed=0), unsmooth.load(tmp_path / "student" / "last")
    for head in ("head", "head_dist"):
        assert not torch.equal(getattr(start, head).weight, getattr(end, head).weight)
    a, b = split_outputs((torch.ones(2, 3), torch.zeros(2, 3)))
    assert a.sum() == 6 and b.sum() == 0


def test_the_teachers_normalisation_is_its_own():
    teacher = build(HOST, 10, small(), seed=1).eval()
    torch.nn.init.normal_(teacher.head.weight)
    usual = preprocessing(teacher)
    other = dataclasses.replace(usual, mean=(0.2,), std=(0.7,))
    recipe = small(distillation="soft", teacher=HOST)
    pixels, logits = torch.rand(4, 1, 8, 8), torch.randn(4, 10)
    losses = [
        Distillation(teacher, way, recipe, 10)((pixels - way.mean[0]) / way.std[0], logits).item()
        for way in (usual, other)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_tuning_replaces_the_head_where_classes_differ(tmp_path):
    small_run(tmp_path / "first", HOST.replace("depth=2", "depth=2, num_classes=12"), {"epochs": 1})
    last = load_file(tmp_path / "first" / "last" / "model.safetensors")
    assert last["head.weight"].shape == (12, 16)
    with pytest.warns(UserWarning, match=r"has a head for other classes. Initialised randomly: head.weight, head.bias"):
        model = build(HOST + "+attn_scale", 10, small(), 0, tmp_path / "first" / "last")
    state = model.state_dict()
    assert all(torch.equal(state[name], last[name]) for name in last if not name.startswith("head."))
    assert state["head.weight"].shape == (10, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(HOST, 12, small(), 0, tmp_path / "first" / "last" / "model.safetensors")


def test_a_checkpoint_for_another_spec_names_the_keys(tmp_path):
    model = build(HOST, 10, small(), 0)
    save_file({**model.state_dict(), "blocks.7.norm1.weight": torch.ones(16)}, tmp_path / "other.safetensors")
    with pytest.raises(UnsmoothError, match=r"does not fit .* 1 not in the model \(blocks.7.norm1.weight\)"):
        small_run(tmp_path / "run", checkpoint=tmp_path / "other.safetensors")
    assert not (tmp_path / "run").exists()


def test_deep_hosts_get_their_dropout():
    recipe = small(deep_blocks=2, deep_dropout=0.2, drop_path=0.1)
    model = build(HOST, 10, recipe, 0)
    assert model.pos_drop.p == model.blocks[0].attn.proj_drop.p == model.blocks[1].mlp.drop1.p == 0.2
    assert model.blocks[1].drop_path1.drop_prob == pytest.approx(0.1)
    assert build(HOST, 10, small(deep_blocks=3, deep_dropout=0.2), 0).pos_drop.p == 0
    hf = build(HF, 10, recipe.__class__(**{**recipe.to_json(), "drop_path": 0.0}), 0)
    assert hf.config.hidden_dropout_prob == 0.2


def test_vitals_are_followed_without_touching_the_run(tmp_path):
    fields = {"vitals": "token_cosine,attention_entropy", "dropout": 0.2}
    small_run(tmp_path / "watched", fields={**fields, "vitals_every": 1, "vitals_images": 8})
    small_run(tmp_path / "alone", fields=fields)
    lines = [json.loads(line) for line in (tmp_path / "watched" / "metrics.jsonl").read_text().splitlines()]
    assert all(len(line["vitals"]["token_cosine"]) == 2 for line in lines)
    assert 0 < lines[-1]["vitals"]["attention_entropy"][1] < np.log(17)
    a, b = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("watched", "alone"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_without_skips_raises_an_alarm_once(tmp_path):
    """The monitor of a run is that of any loop: it warns in the first epoch, and the run directory says so."""
    with pytest.warns(UserWarning, match="falling_rank: the tokens of"):
        small_run(tmp_path, HOST + "+no_skip", {"vitals": "effective_rank", "vitals_every": 1, "vitals_images": 4})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [[alarm["kind"] for alarm in line.get("alarms", [])] for line in lines] == [["falling_rank"], []]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "adafactor", "lamb", "nadamw"])
def test_any_optimizer_comes_back_whole(tmp_path, optimizer):
    model = build(HOST + "+attn_scale", 10, small(), 0)
    made = make_optimizer(model, small(optimizer=optimizer))
    for _ in range(2):
        model(torch.randn(2, 1, 8, 8)).square().mean().backward()
        made.step()
    write_state(tmp_path / "s.safetensors", {"optimizer": made.state_dict(), "other": [1, 2.5, None, "x", (3,)]})
    state = read_state(tmp_path / "s.safetensors")
    assert state["other"] == [1, 2.5, None, "x", (3,)]
    again = make_optimizer(model, small(optimizer=optimizer))
    again.load_state_dict(state["optimizer"])
    assert same_state(again.state_dict(), made.state_dict())


def test_a_compiled_run_learns_the_same(tmp_path, monkeypatch):
    # Traced as for a GPU or a CPU; only the code generator, which takes a minute, is left out.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    small_run(tmp_path / "eager", HOST + "+attn_scale", {"epochs": 1})
    small_run(tmp_path / "compiled", HOST + "+attn_scale", {"epochs": 1, "compile": True})
    a, b = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("eager", "compiled"))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-3)


def test_the_second_beta_and_optimizers_without_one():
    model = build(HOST, 10, small(), seed=0)
    assert {group["betas"] for group in make_optimizer(model, small(beta2=0.95)).param_groups} == {(0.9, 0.95)}
    assert {group["betas"] for group in make_optimizer(model, small()).param_groups} == {(0.9, 0.999)}
    with pytest.raises(UnsmoothError, match="the optimizer 'sgd' has no second beta"):
        make_optimizer(model, small(optimizer="sgd", beta2=0.95))


def test_poly_falls_in_a_straight_line(tmp_path):
    small_run(tmp_path, fields={"epochs": 4, "schedule": "poly", "lr": 1e-3, "warmup_epochs": 0, "min_lr": 0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = SMALL["train_images"] // SMALL["batch_size"]
    assert [line["lr"] for line in lines] == pytest.approx(
        [1e-3 * (1 - (steps * e - 1) / (4 * steps)) for e in range(1, 5)]
    )


def test_tasks_that_are_not_there_and_words_that_a_task_lacks(tmp_path):
    with pytest.raises(UnsmoothError, match="unknown task 'segmentaton'"):
        small_run(tmp_path, task="segmentaton")
    with pytest.raises(UnsmoothError, match="classification has no option 'head'"):
        small_run(tmp_path, options={"head": "upernet"})
    with pytest.raises(UnsmoothError, match="val_data is not supported by the task vqa"):
        small_run(tmp_path, task="vqa", val_data="digits")
    assert not (tmp_path / "run.json").exists()
