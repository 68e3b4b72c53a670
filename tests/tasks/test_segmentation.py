"""Segmenters: treated hosts under UperNet, trained, eval_model, saved and loaded."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.support.scenes import write_scenes
from tests.support.small_hosts import CASES, REFUSED, look_trained
from unsmooth import UnsmoothError
from unsmooth.data.batches import TrainingBatches, evaluation_batches
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.remedies.base import REGISTRY, LossRemedy
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.segmentation import evaluate_segmentation, load_segmenter, open_task, save_segmenter
from unsmooth.tasks.segmentation.build import build, resolve
from unsmooth.tasks.segmentation.items import Crops
from unsmooth.tasks.segmentation.layout import IGNORE
from unsmooth.tasks.segmentation.model import Segmenter, synchronise
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.training.run import train
from unsmooth.training.trainer import make_optimizer
from unsmooth.utils.options import read_texts

VIT = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=4)"
HOSTS = {
    "vit": VIT,
    "deit_distilled": "deit_tiny_distilled_patch16_224(img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=4)",
    "beit": "beit_base_patch16_224(img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=4)",
    "cait": "cait_xxs24_224(img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=4)",
    "swin": "swin_tiny_patch4_window7_224(depths=[2, 1, 1], num_heads=[2, 4, 4], img_size=64, embed_dim=8)",
    "pvt_v2": "pvt_v2_b0(depths=[1, 1, 1, 1], embed_dims=[8, 16, 40, 64])",
}
SMALL = {"hidden": "8", "classes": "5"}


def small(spec: str, **options: str) -> Segmenter:
    crop = {} if "img_size" in spec else {"crop": "64"}
    wanted = resolve(spec, read_texts(SegmentationOptions, {**SMALL, **crop, **options}, "segmentation"), Recipe())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(TaskRequest(spec, "", Recipe()), wanted)


def images_for(model: Segmenter, count: int = 2) -> torch.Tensor:
    side = model.options.window
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model: Segmenter) -> torch.Tensor:
    return model.eval()(images_for(model))


@pytest.mark.parametrize(
    ("host", "indices", "sides"),
    [("vit", [0, 1, 2, 3], [16, 8, 4, 2]), ("deit_distilled", [0, 1, 2, 3], [16, 8, 4, 2]),
     ("beit", [0, 1, 2, 3], [16, 8, 4, 2]), ("cait", [0, 1, 2, 3], [16, 8, 4, 2]),
     ("swin", [0, 1, 2], [16, 8, 4]), ("pvt_v2", [0, 1, 2, 3], [16, 8, 4, 2])],
)  # fmt: skip
def test_hosts_give_a_pyramid(host, indices, sides):
    model = small(HOSTS[host])
    assert model.indices == indices
    seen = []
    model.head.register_forward_pre_hook(lambda _, args: seen.extend(x.shape[-1] for x in args[0]))
    assert logits(model).shape == (2, 5, *images_for(model).shape[-2:])
    assert seen == sides
    main, other = model.train()(images_for(model))
    assert main.shape == other.shape == (2, 5, *images_for(model).shape[-2:])


def test_blocks_are_spread_evenly():
    assert small(VIT.replace("depth=4", "depth=12")).indices == [2, 5, 8, 11]
    assert small(VIT.replace("depth=4", "depth=3")).indices == [0, 1, 2]


def test_the_pyramid_of_a_plain_host_is_its_blocks_outputs():
    model = small(VIT).eval()
    seen, given = [], []
    for block in model.backbone.blocks:
        block.register_forward_hook(lambda *args: seen.append(args[-1]))
    model.head.register_forward_pre_hook(lambda _, args: given.extend(args[0]))
    logits(model)
    tokens = seen[2][:, 1:].transpose(1, 2).reshape(2, 24, 4, 4)  # the class token is left out
    assert torch.equal(given[2], tokens)
    last = seen[3][:, 1:].transpose(1, 2).reshape(2, 24, 4, 4)
    assert torch.equal(given[3], last.unflatten(2, (2, 2)).unflatten(4, (2, 2)).amax((3, 5)))


REMEDIES = [case for case in CASES[: len(REGISTRY)] if not isinstance(REGISTRY[case], LossRemedy)]


@pytest.mark.parametrize("host", ["vit", "swin", "pvt_v2"])
def test_remedies_act_in_a_segmenter_and_come_off_again(host):
    spec = HOSTS[host]
    plain = small(spec)
    look_trained(plain)
    before = logits(plain)
    for remedy in REMEDIES:
        if (host, remedy) in REFUSED:
            continue
        model = small(f"{spec}+{remedy}")
        missing = model.load_state_dict(plain.state_dict(), strict=False)
        assert not missing.unexpected_keys and all("unsmooth_" in name for name in missing.missing_keys)
        generator = torch.Generator().manual_seed(3)
        for _, part in unsmooth.parts(model.backbone):
            for parameter in part.parameters():
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        assert not torch.allclose(logits(model), before, atol=1e-4), remedy
        unsmooth.remove(model.backbone)
        assert torch.equal(logits(model), before), remedy


def test_remedies_where_the_pass_does_not_go_are_refused():
    backbone = unsmooth.create_model(f"{VIT}+attn_scale", num_classes=0)
    inside = backbone.forward_intermediates

    def shortcut(images, **how):  # a host that leaves its last block out
        blocks, backbone.blocks = backbone.blocks, backbone.blocks[:3]
        try:
            return inside(images, **how)
        finally:
            backbone.blocks = blocks

    backbone.forward_intermediates = shortcut
    with pytest.raises(UnsmoothError, match=r"attn_scale acts on blocks[.]3[.]attn, which segmentation does not run"):
        Segmenter(backbone, SegmentationOptions(crop=32, short=32, hidden=8, classes=5))


def test_loss_remedies_find_their_tokens():
    model = small(f"{VIT}+diverse_patch").train()
    model(images_for(model))
    assert unsmooth.auxiliary_loss(model).isfinite()


def test_the_head_starts_alike_whatever_remedies_are_on():
    one, other = small(VIT), small(f"{VIT}+augmented_shortcut")
    theirs = other.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def test_the_optimizer_knows_the_host():
    model = small(f"{VIT}+feat_scale")
    recipe = Recipe(layer_decay=0.5, lr=1.0)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = {names[id(p)]: group for group in make_optimizer(model, recipe).param_groups for p in group["params"]}
    assert groups["head.classifier.weight"]["lr_scale"] == 1.0
    scales = [groups[f"backbone.blocks.{i}.mlp.fc1.weight"]["lr_scale"] for i in range(4)]
    assert scales == sorted(scales) and scales[3] < 1 and scales[0] == scales[1] / 2
    assert groups["backbone.pos_embed"]["weight_decay"] == 0
    assert groups["backbone.blocks.0.mlp.fc1.weight"]["weight_decay"] == recipe.weight_decay


@pytest.mark.parametrize("spec", [f"{VIT}+attn_scale+context_broadcast", f"{HOSTS['swin']}+feat_scale"])
def test_a_segmenter_is_saved_and_loaded(spec, tmp_path):
    model = look_trained(small(spec))
    assert isinstance(model, Segmenter)
    model.train()(images_for(model))  # statistics of BatchNorm are no longer those of the start
    save_segmenter(model, tmp_path)
    loaded = load_segmenter(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.options == model.options and str(unsmooth.applied(loaded.backbone)).endswith(spec.split("+", 1)[1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["backbone", "head.safetensors", "segmenter.json"]
    assert all(p.requires_grad for p in loaded.parameters())
    unsmooth.load(tmp_path / "backbone")  # the host by itself, as any other


def test_parts_of_two_saves_are_refused(tmp_path):
    model = small(VIT)
    save_segmenter(model, tmp_path)
    look_trained(model.backbone, seed=1)
    unsmooth.save(model.backbone, tmp_path / "backbone")  # and then the machine went down
    with pytest.raises(UnsmoothError, match="a save was interrupted"):
        load_segmenter(tmp_path)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(UnsmoothError, match="head is missing"):
        load_segmenter(tmp_path)
    (tmp_path / "segmenter.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(UnsmoothError, match="has format 9"):
        load_segmenter(tmp_path)
    (tmp_path / "segmenter.json").write_text("{")
    with pytest.raises(UnsmoothError, match="cannot read"):
        load_segmenter(tmp_path)
    with pytest.raises(UnsmoothError, match="Use a folder that a segmenter was saved to"):
        load_segmenter(tmp_path / "backbone")


def test_a_trained_classifier_becomes_a_backbone(tmp_path):
    spec = f"{VIT}+attn_scale"
    trained = look_trained(unsmooth.create_model(VIT.replace("img_size=32", "img_size=64") + "+attn_scale"))
    unsmooth.save(trained, tmp_path / "classifier")
    task = open_task(TaskRequest(spec, write_scenes(tmp_path / "ade"), Recipe(batch_size=2), 0,
                     checkpoint=tmp_path / "classifier", options=SMALL))  # fmt: skip
    task.build()
    own, theirs = task.model.backbone.state_dict(), trained.state_dict()
    same = [name for name, value in own.items() if value.shape == theirs[name].shape]
    assert all(torch.equal(own[name], theirs[name]) for name in same)
    assert own.keys() - same == {"pos_embed"} and theirs.keys() - own.keys() == {"head.weight", "head.bias"}
    save_segmenter(task.model, tmp_path / "segmenter")
    again = build(
        TaskRequest(spec, "", Recipe(), 1, tmp_path / "segmenter" / "backbone"), task.options
    )  # a host without a head
    assert all(torch.equal(value, own[name]) for name, value in again.backbone.state_dict().items())
    with pytest.raises(UnsmoothError, match=r"none\.pth does not exist"):
        build(TaskRequest(spec, "", Recipe(), 1, tmp_path / "none.pth"), task.options)
    with pytest.raises(UnsmoothError, match="does not fit"):
        build(TaskRequest(HOSTS["deit_distilled"], "", Recipe(), 1, tmp_path / "classifier"), task.options)


def test_the_loss_is_that_of_both_heads(tmp_path):
    task = open_task(TaskRequest(VIT, write_scenes(tmp_path), Recipe(batch_size=2), 0, options=SMALL))
    task.build()
    model = task.model.train()
    labels = torch.randint(0, 5, (2, 32, 32), dtype=torch.int32)
    labels[0, :20] = IGNORE
    batch = Crops(images_for(model), labels)

    def mean(scores):  # plain NumPy: −log softmax at the label, zero where there is none
        scores = scores.detach().double().numpy()
        log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        chosen = np.take_along_axis(log, labels.clamp(min=0).long().numpy()[:, None], 1)[:, 0]
        return -(chosen * (labels != IGNORE).numpy()).mean()

    main, other = model(batch.images)
    loss = task.loss(model, batch)
    assert loss.item() == pytest.approx(mean(main) + 0.4 * mean(other), rel=1e-5)
    nothing = Crops(batch.images, torch.full_like(labels, IGNORE))
    assert task.loss(model, nothing).item() == 0
    alone = open_task(TaskRequest(VIT, tmp_path, Recipe(batch_size=2), 0, options={**SMALL, "auxiliary": "0"}))
    alone.build()
    assert alone.model.auxiliary is None
    assert isinstance(alone.model.train()(batch.images), torch.Tensor) and alone.loss(alone.model, batch) > 0


@pytest.mark.parametrize("spec", [f"{VIT}+context_broadcast", HOSTS["swin"] + "+attn_scale"])
def test_it_learns_four_pictures(spec, tmp_path):
    root = write_scenes(tmp_path, train=4, val=4, seed=1)
    for kind in ("images", "annotations"):  # the same four for validation
        for path in (root / kind / "training").iterdir():
            path.replace(root / kind / "validation" / path.name.replace("train", "val"))
        for path in (root / kind / "validation").iterdir():
            (root / kind / "training" / path.name).write_bytes(path.read_bytes())
    options = {"classes": "5", "hidden": "16", "smallest": "0.9", "largest": "1.1"}
    task = open_task(TaskRequest(spec, root, Recipe(batch_size=4, hflip=0.5), 0, options=options))
    task.build()
    optimizer = torch.optim.AdamW(task.model.parameters(), 4e-3)
    batches, losses = TrainingBatches(task.train, 4, seed=0), []
    task.model.train()
    for epoch in range(60):
        for batch in batches.from_step(epoch, 0):
            loss = task.loss(task.model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    score = task.merge_scores([task.score(task.model, evaluation_batches(task.val, 2), torch.device("cpu"), "none")])
    assert score.images == 4 and score.miou > 0.6, score.miou
    save_segmenter(task.model, tmp_path / "out")
    again = evaluate_segmentation(tmp_path / "out", root, device="cpu")
    assert (again.counts == score.counts).all()


def test_a_run_from_the_start_to_a_loaded_model(tmp_path):
    root = write_scenes(tmp_path / "ade", train=5, val=3)
    (root / "images/validation/ADE_val_00000002.jpg").write_bytes(b"")
    fields = {"epochs": 2, "batch_size": 4, "accumulate": 2, "ema": 0.9, "vitals_every": 1, "vitals_images": 2}
    result = train(f"{VIT}+attn_scale", root, task="segmentation", options=SMALL, **fields, out=tmp_path / "run")
    assert {"miou", "pixel_accuracy", "mean_accuracy", "class_iou"} <= set(result.keys())
    assert result.images == 2 and list(result.skipped["val"]) == ["images/validation/ADE_val_00000002.jpg"]
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["val_miou"] == result["miou"] and len(line["vitals"]["token_cosine"]) == 4
    seen: list[tuple[int, int]] = []
    score = evaluate_segmentation(tmp_path / "run" / "last", root, device="cpu", progress=lambda *at: seen.append(at))
    assert score.miou == result["miou"] and seen[-1] == (3, 3)
    assert evaluate_segmentation(tmp_path / "run" / "last", root, device="cpu", limit=1).images == 1


def test_vitals_of_a_segmenter_are_those_of_its_host():
    model = look_trained(small(f"{VIT}+attn_scale+context_broadcast")).eval()
    hosts, images = (model, model.backbone), images_for(model)
    inside, alone = (unsmooth.Monitor(host, every=None).measure(images).vitals for host in hosts)
    assert inside == alone


def test_what_broke_first_is_named(tmp_path):
    task = open_task(TaskRequest(VIT, write_scenes(tmp_path), Recipe(batch_size=2), 0, options=SMALL))
    task.build()
    device = torch.device("cpu")
    task.model.backbone.blocks[2].mlp.fc1.weight.data[0] = torch.nan
    assert "block 2 broke first" in task.locate_nonfinite(images_for(task.model), "none", device)
    task.model.head.classifier.weight.grad = torch.full_like(task.model.head.classifier.weight, torch.nan)
    assert "in the head" in task.locate_nonfinite(None, "none", device)
    task.model.head.classifier.weight.grad = None
    task.model.backbone.blocks[1].mlp.fc1.weight.grad = torch.full_like(
        task.model.backbone.blocks[1].mlp.fc1.weight, torch.inf
    )
    assert "block 1 broke first" in task.locate_nonfinite(None, "none", device)


@pytest.mark.parametrize("host", ["vit", "swin", "pvt_v2"])
def test_whole_pictures(host, tmp_path):
    root = write_scenes(tmp_path)
    model = look_trained(small(HOSTS[host], mode="whole")).eval()
    score = evaluate_segmentation(model, root)
    slid = evaluate_segmentation(model, root, options={"mode": "slide"})
    assert score.counts.sum() == slid.counts.sum() == 2 * 38 * 48  # all pixels with a label
    save_segmenter(model, tmp_path / "out")
    assert (evaluate_segmentation(tmp_path / "out", root, device="cpu").counts == score.counts).all()


def test_batch_norm_of_all_processes():
    model = look_trained(small(VIT)).eval()
    before = logits(model)
    keys = list(model.state_dict())
    synchronise(model)
    kinds = [type(module) for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert kinds and set(kinds) == {nn.SyncBatchNorm}
    assert torch.equal(logits(model), before) and list(model.state_dict()) == keys


REFUSALS = [
    ("hf:vit", {}, {}, "segmentation needs a timm host"),
    (VIT, {"crop": "64"}, {}, "img_size=32 of the spec and crop=64"),
    (VIT, {}, {"image_size": 64}, "img_size=32 of the spec and crop=64"),
    (VIT.replace("img_size=32", "img_size=[32, 48]"), {}, {}, "img_size must be one number"),
    (VIT, {"colour": "1"}, {}, "segmentation has no option 'colour'"),
    (VIT, {}, {"mixup": 0.8}, "mixup is not supported by the task segmentation"),
    (VIT, {}, {"auto_augment": "rand-m9"}, "auto_augment is not supported by the task segmentation"),
]


@pytest.mark.parametrize(("spec", "options", "fields", "message"), REFUSALS)
def test_mistakes_are_found_when_the_task_is_opened(spec, options, fields, message, tmp_path):
    root = write_scenes(tmp_path)
    with pytest.raises(UnsmoothError, match=message):
        open_task(TaskRequest(spec, root, Recipe(batch_size=2, **fields), 0, options={**SMALL, **options}))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (VIT.replace("img_size=32", "img_size=36"), {}, "multiple of 8 .*got 36.* Use the option crop=32 or crop=40"),
        (VIT.replace("depth=4", "depth=1"), {}, "has a single feature map"),
        (HOSTS["cait"], {"mode": "whole"}, "only accepts images of 32 × 32 pixels. Use mode=slide"),
        ("vit_tiny_patch16_244", {}, "timm has no model"),
        (VIT.replace("depth", "depht"), {}, "no option .depht."),
        (f"{VIT}+attn_scal", {}, "Did you mean 'attn_scale'"),
    ],
)
def test_hosts_that_cannot_be_segmented_with(spec, options, message):
    with pytest.raises(UnsmoothError, match=message):
        small(spec, **options)


def test_a_host_without_intermediate_features_cannot_be_segmented_with(monkeypatch):
    monkeypatch.setattr("timm.models.VisionTransformer.forward_intermediates", None)
    with pytest.raises(UnsmoothError, match="vit_tiny_patch16_224 does not provide intermediate feature maps"):
        small(VIT)


def test_other_refusals(tmp_path, monkeypatch):
    root = write_scenes(tmp_path)
    recipe = Recipe(batch_size=2, accumulate=2)
    with pytest.raises(
        UnsmoothError, match=r"at least 2 images per forward pass .got 1: batch_size=2, 1 processes, accumulate=2"
    ):
        open_task(TaskRequest(VIT, root, recipe, 0, options=SMALL)).build()
    with pytest.raises(UnsmoothError, match="checkpoint and pretrained exclude each other"):
        open_task(TaskRequest(VIT, root, Recipe(), 0, checkpoint="x", pretrained=True, options=SMALL))
    with pytest.raises(UnsmoothError, match="classes cannot be changed after training"):
        evaluate_segmentation(small(VIT), root, options={"classes": 7})
    with pytest.raises(UnsmoothError, match="this VisionTransformer only accepts images of 32 × 32 pixels"):
        evaluate_segmentation(small(VIT), root, options={"mode": "whole"})
    with pytest.raises(UnsmoothError, match=r"a segmenter or the folder of one .got Linear"):
        evaluate_segmentation(nn.Linear(1, 1), root)
    with pytest.raises(UnsmoothError, match="device 'cuba' cannot be used"):
        evaluate_segmentation(small(VIT), root, device="cuba")
    with pytest.raises(UnsmoothError, match="split must be one of train, val"):
        evaluate_segmentation(small(VIT), root, split="test")
    monkeypatch.setitem(sys.modules, "transformers.models", None)
    with pytest.raises(UnsmoothError, match=r"pip install 'unsmooth\[hf\]'"):
        open_task(TaskRequest(VIT, root, Recipe(), 0, options=SMALL))


def test_the_recipe_is_160_000_steps():
    recipe = load_recipe("segmentation")
    assert 20_210 // recipe.batch_size * recipe.epochs == pytest.approx(160_000, rel=0.01)
    assert (recipe.lr, recipe.weight_decay, recipe.schedule) == (6e-5, 0.01, "poly")
    resolved = resolve("deit_small_patch16_224+context_broadcast", SegmentationOptions(), recipe)
    assert (resolved.crop, resolved.short, resolved.classes) == (512, 512, 150)
