"""ImageDataset as a host wants them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.runs import HOST
from unsmooth import UnsmoothError, create_model
from unsmooth.data.sampling import seed_everything
from unsmooth.data.transforms import preprocessing


def test_a_picture_of_the_hosts_size_is_taken_as_it_is():
    wanted = preprocessing(create_model(HOST))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    actual = wanted.eval_transform()(Image.fromarray(pixels))
    torch.testing.assert_close(actual[0], torch.from_numpy(pixels).float() / 255 * 2 - 1)
    assert wanted.eval_transform()(Image.fromarray(pixels).resize((20, 12))).shape == (1, 8, 8)


def test_sides_and_channels():
    assert preprocessing(create_model("convmixer_tiny(dim=8, depth=1)"), side=64).size == (3, 64, 64)
    with pytest.raises(UnsmoothError, match="takes 4 channels"):
        preprocessing(create_model(HOST.replace("in_chans=1", "in_chans=4")))


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "augmix-m5-w4-d2", "3a"])
def test_every_policy_survives_every_magnitude(policy):
    """Posterising to 0 bits, which timm may ask for and newer versions of Pillow refuse, is black."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    training = preprocessing(create_model("convmixer_tiny(dim=8, depth=1)")).train_transform(auto_augment=policy)
    for seed in range(20):
        seed_everything(seed)
        assert training(picture).shape == (3, 32, 32)
    policies = (op for step in training.transforms for policy in getattr(step, "policy", ()) for op in policy)
    ops = (op for step in training.transforms for op in getattr(step, "ops", ()))
    for op in (op for op in (*ops, *policies) if op.name.startswith("Posterize")):
        assert np.asarray(op.aug_fn(picture, 0)).max() == 0
        assert np.asarray(op.aug_fn(picture, 1)).max() == 128
        assert np.array_equal(op.aug_fn(picture, 8), picture)
