"""Recipes: data files with checked fields, overridden by name."""

from __future__ import annotations

import pytest

from unsmooth import UnsmoothError
from unsmooth.recipes.recipe import (
    Recipe,
    differences,
    list_recipes,
    load_recipe,
    write_recipe,
)
from unsmooth.utils.options import read_options, read_text_values


def test_the_papers_numbers():
    deit, tune = load_recipe("deit"), load_recipe("finetune")
    assert (tune.epochs, tune.lr, tune.weight_decay) == (60, 5e-5, 5e-4)
    assert (deit.optimizer, deit.weight_decay, deit.warmup_epochs, deit.batch_size) == ("adamw", 0.05, 5, 1024)
    assert deit.scaled_lr == pytest.approx(5e-4 * 1024 / 512)
    assert (deit.mixup, deit.cutmix, deit.auto_augment) == (0.8, 1.0, "rand-m9-mstd0.5-inc1")
    assert (deit.erasing, deit.label_smoothing, deit.drop_path, deit.ema) == (0.25, 0.1, 0.1, 0.99996)
    assert (deit.repeated_augmentation, deit.deep_blocks, deit.deep_dropout) == (3, 24, 0.2)


def test_the_recipes_that_the_attn_scale_paper_refers_to():
    swin, cait, deep, tune = (load_recipe(name) for name in ("swin", "cait", "deit24", "finetune"))
    assert (swin.scaled_lr, swin.batch_size, swin.weight_decay, swin.epochs, swin.warmup_epochs) == (
        pytest.approx(1e-3), 1024, 0.05, 300, 20,
    )  # fmt: skip
    assert (swin.clip_grad, swin.drop_path, swin.ema, swin.repeated_augmentation) == (5.0, 0.3, 0.0, 0)
    assert (cait.epochs, cait.drop_path, cait.dropout, cait.scaled_lr) == (400, 0.1, 0.0, pytest.approx(1e-3))
    assert (deep.dropout, deep.mixup, deep.cutmix, deep.epochs) == (0.2, 0.0, 1.0, 300)
    for recipe in (swin, cait, deep, tune):
        assert (recipe.optimizer, recipe.schedule, recipe.label_smoothing, recipe.erasing) == (
            "adamw", "cosine", 0.1, 0.25,
        )  # fmt: skip
        assert (recipe.auto_augment, recipe.deep_dropout) == ("rand-m9-mstd0.5-inc1", 0.0)
    # Fine-tuning differs from CaiT's recipe in what G.1 and the authors' command say, and in nothing else.
    apart = {text.split()[0] for text in differences(cait.to_json(), tune.to_json())}
    assert apart == {
        "epochs", "batch_size", "lr", "weight_decay", "warmup_epochs", "min_lr", "vitals_every",
    }  # fmt: skip


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_survives_a_round_trip_through_a_file(name, tmp_path):
    recipe = load_recipe(name)
    (tmp_path / "mine.toml").write_text(write_recipe(recipe))
    assert load_recipe(tmp_path / "mine.toml") == recipe == read_options(Recipe, recipe.to_json(), "recipe")


def test_arguments_are_read_as_the_types_of_the_fields():
    texts = {"batch_size": "32", "lr": "3e-4", "compile": "true", "crop_scale": "0.5,1", "teacher": "x"}
    given = read_text_values(Recipe, {**texts, "distillation": "soft"}, "recipe")
    recipe = load_recipe("small", given)
    assert (recipe.batch_size, recipe.lr, recipe.compile, recipe.crop_scale) == (32, 3e-4, True, (0.5, 1.0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lrr": 1}, r"recipe has no option 'lrr'.*\blr\b"),
        ({"lr": 0}, "lr must be above 0"),
        ({"lr": "fast"}, r"recipe: lr must be a number \(got 'fast'\)"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"hflip": 2}, "hflip must be at least 0 and at most 1"),
        ({"compile": "perhaps"}, "compile must be true or false"),
        ({"crop_scale": "0.5"}, "crop_scale must be numbers, separated by commas"),
        ({"crop_scale": "0.9,0.5"}, "the smaller first"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"vitals": "token_cosin"}, "unknown vital"),
        ({"warmup_epochs": 99}, "warmup_epochs must be at most epochs, 20 .got 99."),
        ({"mixup": 0.8, "batch_size": 33}, "an even batch_size .got 33."),
        ({"distillation": "hard"}, "distillation and teacher must be set together"),
        ({"teacher": "x"}, "distillation and teacher must be set together"),
    ],
)
def test_invalid_fields_are_reported(fields, message):
    with pytest.raises(UnsmoothError, match=message):
        load_recipe("small", fields)


def test_missing_recipes_are_reported(tmp_path):
    with pytest.raises(UnsmoothError, match=r"unknown recipe 'diet'\. Did you mean 'deit'"):
        load_recipe("diet")
    with pytest.raises(UnsmoothError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("lr = = 3")
    with pytest.raises(UnsmoothError, match="cannot read the recipe"):
        load_recipe(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no_lr", "1", "recipe has no option"),
        ("lr", "fast", "lr must be a number .got 'fast'."),
        ("lr", "-1", "lr must be above 0 .got '-1'."),
        ("lr", "nan", "lr must be finite"),
        ("epochs", "1.5", "epochs must be a whole number"),
        ("compile", "perhaps", "compile must be true or false"),
        ("crop_scale", "0.5", "crop_scale must be numbers, separated by commas"),
        ("schedule", "cosin", "Did you mean 'cosine'"),
    ],
)
def test_invalid_texts_are_reported(name, text, message):
    with pytest.raises(UnsmoothError, match=message):
        read_text_values(Recipe, {name: text}, "recipe")


def test_differences_are_listed():
    one, other = Recipe().to_json(), Recipe(lr=0.5, hflip=0.0).to_json()
    assert differences(one, other) == ["lr was 0.001 and is 0.5", "hflip was 0.5 and is 0.0"]
