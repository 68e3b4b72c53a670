"""Recipes: how a model is trained, as data. Each .toml file holds the fields of `unsmooth.recipes.recipe.Recipe`."""
