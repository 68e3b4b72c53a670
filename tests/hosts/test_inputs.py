"""Hosts of clips, spectrograms, signals, flat patches and noise: small, with random weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import look_trained
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.examine import examine
from unsmooth.hosts.inputs import batch_inputs, example_input, first_tensor, input_shape, run
from unsmooth.hosts.token_layout import distances, extent_of, grid_of, on_planes, prefix_of

DIT = Path(__file__).parents[2] / "notebooks" / "dit.py"
_S = "num_hidden_layers=2, hidden_size=48, num_attention_heads=3"
_M = f"{_S}, intermediate_size=96"
SPECS = {
    "videomae": f"hf:videomae({_M}, image_size=32, patch_size=8, num_frames=4)",
    "vivit": f"hf:vivit({_M}, image_size=32, tubelet_size=[2, 8, 8], num_frames=4)",
    "timesformer": f"hf:timesformer({_M}, image_size=32, patch_size=8, num_frames=4)",
    "vjepa2": f"hf:vjepa2({_S}, crop_size=32, patch_size=8, frames_per_clip=4, num_pooler_layers=1, "
    "pred_hidden_size=48, pred_num_attention_heads=3, pred_num_hidden_layers=1)",
    "ast": f"hf:audio-spectrogram-transformer({_M}, max_length=64, num_mel_bins=32)",
    "siglip2": f"hf:siglip2_vision_model({_M}, patch_size=8, num_patches=16)",
    "sam": f"hf:sam_vision_model({_S}, image_size=32, patch_size=8, window_size=2, global_attn_indexes=[1], "
    "output_channels=16)",
    "segformer": "hf:segformer(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])",
    "vitdet": f"hf:vitdet({_S}, image_size=32, patch_size=8)",
    "yolos": f"hf:yolos({_M}, image_size=[32, 32], patch_size=8)",
    "dpt": f"hf:dpt({_M}, image_size=32, patch_size=8)",
    "open_clip": "open_clip:ViT-B-32(layers=2, width=48, head_width=16, image_size=32, patch_size=8)",
    "dit": f"{DIT}:dit(width=48)",
}
# The shape of one input, the grid of patches (None: the hosts say nothing of it), tokens before the patches, blocks.
EXPECTED: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "videomae": ((4, 3, 32, 32), (2, 4, 4), 0, 2),
    "vivit": ((4, 3, 32, 32), (2, 4, 4), 1, 2),
    "timesformer": ((4, 3, 32, 32), (4, 4, 4), 1, 2),
    "vjepa2": ((4, 3, 32, 32), (2, 4, 4), 0, 3),
    "ast": ((64, 32), (2, 5), 2, 2),
    "siglip2": ((3, 32, 32), (), 0, 2),
    "sam": ((3, 32, 32), (4, 4), 0, 2),
    "segformer": ((3, 224, 224), (56, 56), 0, 4),
    "vitdet": ((3, 32, 32), (4, 4), 0, 2),
    "yolos": ((3, 32, 32), (4, 4), 0, 2),
    "dpt": ((3, 32, 32), (4, 4), 1, 2),
    "open_clip": ((3, 32, 32), (4, 4), 1, 2),
    "dit": ((4, 32, 32), (8, 8), 0, 2),
}
# Hosts that this test applies a remedy to: their blocks have one attention each.
TREATED = ("videomae", "vivit", "vjepa2", "ast", "siglip2", "dpt", "open_clip", "dit")


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return look_trained(unsmooth.create_model(SPECS[name])).eval()


def outputs(model: nn.Module) -> Tensor:
    items = torch.randn(2, *input_shape(model), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = first_tensor(run(model, batch_inputs(model, items)))
    assert out is not None
    return out


@pytest.mark.parametrize("name", SPECS)
def test_the_anatomy_of_every_kind_of_input(name: str) -> None:
    model = built(name)
    shape, grid, prefix, blocks = EXPECTED[name]
    assert input_shape(model) == shape
    anatomy = examine(model)
    embed = anatomy.patch_embed
    assert embed is not None
    assert embed.grid == grid
    assert embed.tokens == (math.prod(grid) if grid else 16)
    assert prefix_of(anatomy.blocks[0], anatomy) == prefix
    assert len(anatomy.blocks) == blocks


@pytest.mark.parametrize("name", TREATED)
def test_remedies_start_exactly_and_leave_no_trace(name: str) -> None:
    model = built(name)
    plain = outputs(model)
    plan = unsmooth.apply(model, "attn_scale")
    assert not plan.refused
    assert torch.allclose(outputs(model), plain, atol=1e-4 * float(plain.abs().max()))
    for _, part in unsmooth.parts(model):
        part.omega.data += 1.0
    assert not torch.allclose(outputs(model), plain, atol=1e-3 * float(plain.abs().max()))
    unsmooth.remove(model)
    assert torch.equal(outputs(model), plain)


@pytest.mark.parametrize("name", ["videomae", "ast", "siglip2", "dit"])
def test_diagnosis(name: str, tmp_path: Path) -> None:
    model = built(name)
    items = torch.randn(3, *input_shape(model))
    diagnosis = unsmooth.diagnose(model, items, vitals="token_cosine,grid_rayleigh,attention_distance", reference=False)
    assert diagnosis.images.size == list(input_shape(model))
    assert all(len(diagnosis[key]) == 2 for key in ("token_cosine", "grid_rayleigh", "attention_distance"))
    assert len(diagnosis.samples) == 2
    diagnosis.save(tmp_path / "page.html")


def test_grid_vitals_of_a_clip_are_means_over_its_frames() -> None:
    from unsmooth.vitals.grid_rayleigh import grid_rayleigh

    tokens = torch.randn(3, 2 * 4 * 5, 6)
    by_frame = torch.stack([grid_rayleigh(frame.unflatten(1, (4, 5)))[""] for frame in tokens.split(20, dim=1)])
    planes = grid_rayleigh(on_planes(tokens, (2, 4, 5)))[""].unflatten(0, (3, 2))
    assert torch.allclose(planes.mean(1), by_frame.mean(0))


def test_grids() -> None:
    assert grid_of(12, (48, 64)) == (3, 4)
    assert grid_of(24, (2, 48, 64)) == (2, 3, 4)
    assert grid_of(25, (2, 48, 64)) is None
    assert grid_of(7, (112,)) == (7,)


def test_distances_ignore_time() -> None:
    one = distances((3, 4), (48, 64))
    clip = distances((2, 3, 4), (2, 48, 64))
    assert one[0, 1] == 16
    assert one[0, 5] == 16 * math.sqrt(2)
    assert torch.equal(clip, one.repeat(2, 2))
    assert torch.equal(distances((4,), (32,))[0], torch.tensor([0.0, 8.0, 16.0, 24.0], dtype=torch.float64))


def test_flat_patches_are_those_of_the_processor() -> None:
    """SigLIP 2 reads patches with their pixels in the order row, column, channel."""
    model = built("siglip2")
    image = torch.randn(1, 3, 32, 32)
    given = batch_inputs(model, image)
    expected = [
        [image[0, c, 8 * r + i, 8 * s + j].item() for i in range(8) for j in range(8) for c in range(3)]
        for r in range(4)
        for s in range(4)
    ]
    assert torch.equal(given["pixel_values"][0], torch.tensor(expected))
    assert given["spatial_shapes"].tolist() == [[4, 4]]
    assert given["pixel_attention_mask"].shape == (1, 16)


class Signal(nn.Module):
    """A transformer on a signal of two channels, which says what it takes as Lightning modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.zeros(1, 2, 64)
        self.embed = nn.Conv1d(2, 24, 8, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(24, 3, 48, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).mT
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def test_a_signal() -> None:
    model = Signal().eval()
    anatomy = examine(model)
    assert anatomy.patch_embed is not None
    assert anatomy.patch_embed.grid == (8,)
    assert extent_of(torch.zeros(1, 2, 64), anatomy) == (64,)
    diagnosis = unsmooth.diagnose(model, torch.randn(3, 2, 64), vitals="token_cosine,grid_rayleigh", reference=False)
    assert len(diagnosis["grid_rayleigh"]) == 2
    assert diagnosis.samples == []


def test_an_example_of_the_model_itself_is_used() -> None:
    model: Any = Signal()
    model.example_input_array = {"x": torch.ones(1, 2, 64)}
    assert torch.equal(example_input(model)["x"], torch.ones(1, 2, 64))


def test_images_are_refused_by_a_host_of_clips(tmp_path: Path) -> None:
    model = built("videomae")
    for images in (None, torch.randn(2, 3, 32, 32), "photographs"):
        with pytest.raises(UnsmoothError, match=r"takes clips of shape \(4, 3, 32, 32\).*\(N, 4, 3, 32, 32\)"):
            unsmooth.diagnose(model, images, reference=False)


def test_clips_from_a_file(tmp_path: Path) -> None:
    import numpy as np

    model = built("videomae")
    np.savez(tmp_path / "clips.npz", images=torch.randint(0, 256, (2, 4, 3, 32, 32), dtype=torch.uint8).numpy())
    diagnosis = unsmooth.diagnose(model, tmp_path / "clips.npz", vitals="token_cosine", reference=False)
    assert diagnosis.images.count == 2
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UnsmoothError, match="needs an array `images`"):
        unsmooth.diagnose(model, tmp_path / "other.npz", reference=False)


def test_a_relative_position_table_is_not_the_size_of_an_image() -> None:
    from torchvision.models import swin_t

    assert input_shape(swin_t()) == (3, 224, 224)
