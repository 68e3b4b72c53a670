"""Recipes: data files with checked fields, overridden by name."""

from __future__ import annotations

import pytest

from unsmooth import UnsmoothError
from unsmooth.recipes.recipe import (
    Recipe,
    differences,
    list_recipes,
    load_recipe,
    read_overrides,
    recipe_of,
    write_recipe,
)


def test_the_papers_numbers():
    deit, tune = load_recipe("deit"), load_recipe("finetune")
    assert (tune.epochs, tune.lr, tune.weight_decay) == (60, 5e-5, 5e-4)
    assert (deit.optimizer, deit.weight_decay, deit.warmup_epochs, deit.batch_size) == ("adamw", 0.05, 5, 1024)
    assert deit.scaled_lr == pytest.approx(5e-4 * 1024 / 512)
    assert (deit.mixup, deit.cutmix, deit.auto_augment) == (0.8, 1.0, "rand-m9-mstd0.5-inc1")
    assert (deit.erasing, deit.label_smoothing, deit.drop_path, deit.ema) == (0.25, 0.1, 0.1, 0.99996)
    assert (deit.repeated_augmentation, deit.deep_blocks, deit.deep_dropout) == (3, 24, 0.2)


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_goes_to_a_file_and_back(name, tmp_path):
    recipe = load_recipe(name)
    (tmp_path / "mine.toml").write_text(write_recipe(recipe))
    assert load_recipe(tmp_path / "mine.toml") == recipe == recipe_of(recipe.to_json())


def test_text_is_read_as_the_fields_type():
    given = read_overrides(["--batch-size", "32", "--lr=3e-4", "--compile", "--crop-scale", "0.5,1", "--teacher", "x",
                            "--distillation=soft"])  # fmt: skip
    recipe = load_recipe("small", given)
    assert (recipe.batch_size, recipe.lr, recipe.compile, recipe.crop_scale) == (32, 3e-4, True, (0.5, 1.0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lrr": 1}, r"unknown recipe field 'lrr'.*\blr\b"),
        ({"lr": 0}, "lr must be above 0"),
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": "nan"}, "lr must be a number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"hflip": 2}, "hflip must be at most 1"),
        ({"compile": "perhaps"}, "compile must be true or false"),
        ({"crop_scale": "0.5"}, "crop_scale must be two numbers"),
        ({"crop_scale": "0.9,0.5"}, "the smaller first"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"vitals": "token_cosin"}, "unknown vital"),
        ({"warmup_epochs": 99}, "warmup_epochs .99. must be at most epochs"),
        ({"mixup": 0.8, "batch_size": 33}, "batch_size must be even"),
        ({"distillation": "hard"}, "distillation needs a teacher"),
        ({"teacher": "x"}, "a teacher needs distillation"),
    ],
)
def test_mistakes_are_named(fields, message):
    with pytest.raises(UnsmoothError, match=message):
        load_recipe("small", fields)


def test_recipes_that_are_not_there(tmp_path):
    with pytest.raises(UnsmoothError, match=r"unknown recipe 'diet'\. Did you mean 'deit'"):
        load_recipe("diet")
    with pytest.raises(UnsmoothError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("lr = = 3")
    with pytest.raises(UnsmoothError, match="cannot read the recipe"):
        load_recipe(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr"], "--lr needs a value"),
        (["lr"], "unexpected argument 'lr'"),
        (["--no-lr", "1"], "unknown recipe field"),
    ],
)
def test_options_that_make_no_sense(words, message):
    with pytest.raises(UnsmoothError, match=message):
        read_overrides(words)


def test_differences_are_shown_in_words():
    one, other = Recipe().to_json(), Recipe(lr=0.5, hflip=0.0).to_json()
    assert differences(one, other) == ["lr was 0.001 and is 0.5", "hflip was 0.5 and is 0.0"]
