"""MAE pre-training: what the encoder sees, what is hidden and scored, and what can be fine-tuned afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.fft
import torch
from safetensors.torch import load_file

import unsmooth
from tests.support.runs import StopAt, same_state, trainer_state
from tests.support.small_hosts import look_trained
from unsmooth import UnsmoothError
from unsmooth.data.batches import evaluation_batches
from unsmooth.recipes.recipe import load_recipe
from unsmooth.spec import parse
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.mae import load_mae
from unsmooth.tasks.mae.encoder import as_classifier
from unsmooth.tasks.mae.items import MaskedImages
from unsmooth.tasks.mae.model import build, ordered_noise, unmasked
from unsmooth.tasks.mae.start import positions
from unsmooth.tasks.mae.task import open_task
from unsmooth.tasks.model_factory import build as build_classifier
from unsmooth.training.run import Interrupted, train

SIZES = "image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64"  # noqa: E501
DECODER = (
    "decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=32"
)
HOST = f"hf:vit_mae({SIZES}, {DECODER})"
FEW = {"epochs": 2, "batch_size": 32, "train_images": 96, "val_images": 40, "vitals_every": 0, "lr": 2e-3}
CPU = torch.device("cpu")


def opened(spec=HOST, recipe=None, **options):
    task = open_task(TaskRequest(spec, "digits", recipe or load_recipe("small", FEW), 0, options=options))
    task.build()
    return task


def trained(spec):
    """A model of no particular weights, in eval mode: at its start much is zero and proves nothing."""
    task = opened(spec)
    look_trained(task.model)
    return task.model.eval()


@pytest.mark.parametrize(("transform", "epsilon"), [("dct", 0.7), ("svd", 0.5)])
def test_the_encoder_sees_grayed_tokens_then_positions_then_the_mask(transform, epsilon):
    model = trained(f"{HOST}+token_graying(transform={transform}, epsilon={epsilon})")
    images, noise = torch.randn(3, 1, 8, 8), torch.rand(3, 16)
    seen = []
    model.vit.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(pixel_values=images, noise=noise)

    embeddings = model.vit.embeddings
    weight, bias, place, token = (
        value.detach().double().numpy()
        for value in (
            embeddings.patch_embeddings.projection.weight, embeddings.patch_embeddings.projection.bias,
            embeddings.position_embeddings[0], embeddings.cls_token[0, 0],
        )
    )  # fmt: skip
    for image, draw, tokens in zip(images.double().numpy()[:, 0], noise.numpy(), seen[0].detach(), strict=True):
        patches = np.stack([image[i : i + 2, j : j + 2] for i in range(0, 8, 2) for j in range(0, 8, 2)])
        x = patches.reshape(16, 4) @ weight.reshape(32, 4).T + bias
        if transform == "dct":
            spectrum = scipy.fft.dctn(x, norm="ortho")
            peak = abs(spectrum).max()
            gray = scipy.fft.idctn(peak * np.sign(spectrum) * (abs(spectrum) / peak) ** epsilon, norm="ortho")
        else:
            u, s, v = np.linalg.svd(x, full_matrices=False)
            gray = u @ np.diag(np.where(s > 1e-6 * s[0], s[0] * (s / s[0]) ** epsilon, 0)) @ v
        wanted = np.vstack([token + place[0], (gray + place[1:])[np.argsort(draw)[:4]]])
        np.testing.assert_allclose(tokens.numpy(), wanted, atol=2e-5)


def test_graying_lets_what_is_seen_depend_on_what_is_hidden():
    images, noise = torch.randn(1, 1, 8, 8), torch.arange(16.0).unsqueeze(0)  # the upper row of patches is seen
    other = images.clone()
    other[..., 2:, :] = torch.randn(6, 8)
    for remedies, same in (("", True), ("+token_graying", False)):
        encoder = trained(HOST + remedies).vit
        one, two = (encoder(pixel_values=x, noise=noise).last_hidden_state for x in (images, other))
        assert torch.allclose(one, two, atol=1e-5) == same


def test_the_loss_is_the_squared_error_of_hidden_patches():
    model = trained(HOST)
    images, noise = torch.randn(2, 1, 8, 8), torch.rand(2, 16)
    actual = model(pixel_values=images, noise=noise)
    errors = []
    for image, draw, drawn in zip(images.numpy()[:, 0], noise.numpy(), actual.logits.detach().numpy(), strict=True):
        patches = [image[i : i + 2, j : j + 2].ravel() for i in range(0, 8, 2) for j in range(0, 8, 2)]
        for hidden in np.argsort(draw)[4:]:
            pixels = patches[hidden]
            wanted = (pixels - pixels.mean()) / np.sqrt(pixels.var(ddof=1) + 1e-6)
            errors.append(np.mean((drawn[hidden] - wanted) ** 2))
    assert len(errors) == 24
    assert actual.loss.item() == pytest.approx(np.mean(errors), rel=1e-5)


def test_the_score_is_that_loss_under_the_mask_of_each_place():
    task = opened()
    assert isinstance(task.val, MaskedImages)
    whole, small = (
        task.score(task.model, evaluation_batches(task.val, size), CPU, "none") for size in (task.val.count, 7)
    )
    assert whole.images == small.images == 40
    assert whole.loss == pytest.approx(small.loss, rel=1e-6)
    losses = []
    for place in range(40):
        batch = task.val.collate([task.val[(place, None)]])
        losses.append(task.loss(task.model, batch).item())
    assert whole.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert whole.primary_metric == -whole.loss
    halves = [task.score(task.model, evaluation_batches(task.val, 8, rank=r, world=2), CPU, "none") for r in (0, 1)]
    assert task.merge_scores(halves).loss == pytest.approx(whole.loss, rel=1e-6)


def test_masks_are_of_the_items_seed_and_of_nothing_else():
    items = opened().train
    torch.manual_seed(1)
    one, same, other = items[(3, 11)], items[(3, 11)], items[(3, 12)]
    assert torch.equal(one.noise, same.noise)
    assert torch.equal(one.item.image, same.item.image)
    assert not torch.equal(one.noise, other.noise)
    assert torch.equal(items[(3, None)].noise, items[(3, None)].noise)
    assert not torch.equal(items[(3, None)].noise, items[(4, None)].noise)
    batch = items.collate([one, other])
    assert [len(part) for part in batch.microbatches(2)] == [1, 1]
    assert torch.equal(batch.microbatches(2)[1].noise[0], other.noise)


def test_from_scratch_the_weights_are_maes():
    model = opened(HOST).model
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        width = table.shape[-1]
        wanted = np.zeros((17, width))
        for row in range(4):
            for column in range(4):
                for k in range(width // 4):
                    rate = 1 / 10000 ** (k / (width / 4))
                    waves = [np.sin(column * rate), np.cos(column * rate), np.sin(row * rate), np.cos(row * rate)]
                    wanted[1 + 4 * row + column, k :: width // 4] = waves
        np.testing.assert_allclose(table[0].numpy(), wanted, atol=1e-6)
        assert not table.requires_grad
    layer = model.vit.layers[0]
    for weight, bound in (
        (layer.mlp.fc1.weight, np.sqrt(6 / (32 + 64))),
        (layer.attention.q_proj.weight, np.sqrt(6 / (32 + 3 * 32))),
        (layer.attention.o_proj.weight, np.sqrt(6 / (32 + 32))),
        (model.vit.embeddings.patch_embeddings.projection.weight, np.sqrt(6 / (32 + 4))),
    ):
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.9 * bound
        assert weight.std().item() == pytest.approx(bound / np.sqrt(3), rel=0.15)
    assert model.decoder.mask_token.std() > 0.005
    assert torch.equal(opened(HOST).model.decoder.mask_token, opened(f"{HOST}+token_graying").model.decoder.mask_token)


def test_positions_are_those_of_the_published_weights():
    from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

    rows_first = build_2d_sinusoidal_position_embedding(
        5, 5, 24, cls_token=True
    )  # published weights have the columns first
    assert torch.allclose(positions(5, 24), torch.cat([rows_first[:, 12:], rows_first[:, :12]], 1), atol=1e-6)


@pytest.mark.parametrize(
    "remedies", ["+token_graying(epsilon=0.8)", "+attn_scale+feat_scale", "+context_broadcast(kind=gate)", ""]
)
def test_the_encoder_goes_on_as_a_classifier(remedies):
    model = trained(HOST + remedies)
    classifier = as_classifier(model.vit, 7).eval()
    images = torch.randn(2, 1, 8, 8)
    with unmasked(model.vit):
        wanted = model.vit(pixel_values=images, noise=ordered_noise(2, 16, CPU)).last_hidden_state
    assert torch.allclose(classifier.vit(pixel_values=images).last_hidden_state, wanted, atol=1e-6)
    assert classifier(pixel_values=images).logits.shape == (2, 7)
    assert model.config.mask_ratio == 0.75


def test_what_is_saved_is_loaded_bit_for_bit_and_can_be_fine_tuned(tmp_path):
    remedies = "+token_graying(epsilon=0.8)+attn_scale"
    task = opened(HOST + remedies, mask_ratio="0.5", norm_pix_loss="false")
    model = look_trained(task.model).eval()
    task.save(model, tmp_path)
    again = load_mae(tmp_path).eval()
    assert again.config.mask_ratio == 0.5
    assert not again.config.norm_pix_loss
    assert same_state(dict(model.state_dict()), dict(again.state_dict()))
    images, noise = torch.randn(2, 1, 8, 8), torch.rand(2, 16)
    with torch.no_grad():
        one, other = (m(pixel_values=images, noise=noise) for m in (model, again))
    assert torch.equal(one.loss, other.loss)
    assert torch.equal(one.logits, other.logits)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json", ".safetensors"}
    assert [part.name for part in unsmooth.applied(again.vit).remedies] == ["token_graying", "attn_scale"]

    # As `train` starts from it: the same tokens, a head of its own for other classes.
    recipe = load_recipe("small")
    with pytest.warns(UserWarning, match=r"Initialised randomly: classifier.weight, classifier.bias"):
        tuned = build_classifier(f"hf:vit({SIZES}){remedies}", 4, recipe, 0, tmp_path / "encoder").eval()
    with unmasked(model.vit):
        wanted = model.vit(pixel_values=images, noise=ordered_noise(2, 16, CPU)).last_hidden_state
    assert torch.allclose(tuned.vit(pixel_values=images).last_hidden_state, wanted, atol=1e-6)
    kept = unsmooth.load(tmp_path / "encoder")
    assert kept(pixel_values=images).logits.shape == (2, 10)  # digits

    # And pre-training goes on from either: this task's folder, and transformers' own.
    onward = open_task(
        TaskRequest(HOST + remedies, "digits", recipe, 1, checkpoint=tmp_path, options={"mask_ratio": "0.5"})
    )
    onward.build()
    assert same_state(dict(model.state_dict()), dict(onward.model.state_dict()))


def test_weights_of_transformers_are_taken_and_an_encoder_alone_gets_positions(tmp_path):
    from transformers import ViTMAEModel

    model = trained(HOST)
    model.save_pretrained(tmp_path / "whole")
    task = open_task(
        TaskRequest(f"hf:{tmp_path / 'whole'}+token_graying", "digits", load_recipe("small", FEW), 0, pretrained=True)
    )
    task.build()
    assert same_state(dict(model.state_dict()), dict(task.model.state_dict()))
    assert task.model.config.norm_pix_loss

    ViTMAEModel(model.config).save_pretrained(tmp_path / "half")
    task = open_task(TaskRequest(f"hf:{tmp_path / 'half'}", "digits", load_recipe("small", FEW), 0, pretrained=True))
    task.build()
    assert torch.allclose(task.model.decoder.decoder_pos_embed[0], positions(4, 16))


def test_a_run_that_was_cut_ends_bit_equal_and_learns(tmp_path):
    fields = {**FEW, "accumulate": 2, "ema": 0.9}
    how = {"task": "mae", "recipe": "mae", **fields, "warmup_epochs": 0, "validate_every": 1}
    spec = f"{HOST}+token_graying"
    result = train(spec, "digits", out=tmp_path / "whole", **how)
    with pytest.raises(Interrupted):
        train(spec, "digits", out=tmp_path / "cut", observer=StopAt(1, 1), **how)
    train(spec, "digits", out=tmp_path / "cut", **how)
    assert same_state(trainer_state(tmp_path / "whole"), trainer_state(tmp_path / "cut"))
    one, other = (load_file(tmp_path / run / "last" / "model.safetensors") for run in ("whole", "cut"))
    assert same_state(one, other)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert lines[-1]["val_loss"] < lines[0]["val_loss"]
    assert result["loss"] == lines[-1]["val_loss"]
    assert result.best["neg_loss"] == max(-line["val_loss"] for line in lines)
    assert load_mae(tmp_path / "cut" / "best").config.mask_ratio == 0.75


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("deit_tiny_patch16_224", {}, "the task mae needs hf:vit_mae .got deit_tiny_patch16_224"),
        ("hf:vit", {}, "the task mae needs hf:vit_mae .got hf:vit of type vit"),
        (HOST, {"mask": "0.5"}, "mae has no option 'mask'. Did you mean 'mask_ratio'"),
        (HOST, {"mask_ratio": "most"}, "mae: mask_ratio must be a number .got 'most'."),
        (HOST, {"mask_ratio": "1.5"}, "mask_ratio must be above 0 and at most 1"),
        (HOST, {"mask_ratio": "0.99"}, "leaves 0 of 16 patches visible"),
        (HOST, {"norm_pix_loss": "perhaps"}, "norm_pix_loss must be true or false"),
        ("hf:vit_mae(mask_ratio=0.5)", {"mask_ratio": "0.5"}, "mask_ratio is set in the spec and as an option"),
        ("hf:vit_mae(image_size=30)", {}, "image_size must be a multiple of patch_size"),
        ("hf:vit_mae(hidden_size=54, num_attention_heads=2)", {}, "hidden_size must be a multiple of 4"),
        (HOST + "+token_greying", {}, "Did you mean 'token_graying'"),
        (HOST + "+token_graying(epsilon=2)", {}, "epsilon must be"),
    ],
)
def test_mistakes_are_named(spec, options, message):
    with pytest.raises(UnsmoothError, match=message):
        open_task(TaskRequest(spec, "digits", load_recipe("small"), 0, options=options))


def test_other_mistakes_are_named(tmp_path):
    recipe = load_recipe("small")
    with pytest.raises(UnsmoothError, match="is a model type without weights"):
        open_task(TaskRequest(HOST, "digits", recipe, 0, pretrained=True))
    with pytest.raises(UnsmoothError, match=r"none.*does not exist"):
        open_task(TaskRequest(HOST, "digits", recipe, 0, checkpoint=tmp_path / "none"))
    with pytest.raises(UnsmoothError, match="Set image_size in the spec"):
        open_task(TaskRequest(HOST, "digits", load_recipe("small", {"image_size": 16}), 0))
    with pytest.raises(UnsmoothError, match=r"holds no mae.json"):
        load_mae(tmp_path)
    model = build(opened().config, parse(HOST))
    other = opened(HOST.replace("hidden_size=32", "hidden_size=48")).model
    opened().save(model, tmp_path)
    with pytest.raises(UnsmoothError, match="of another size"):
        unsmooth.load(tmp_path / "model.safetensors", other)
