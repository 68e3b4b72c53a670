"""Training: recipes, batches that depend on nothing but their place, checkpoints that lose nothing."""
