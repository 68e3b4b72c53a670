"""The figure of docs/guides/hosts.md, the patches of four kinds of input: python -m tools.input_figure

Each grid is the one that the anatomy of a host has (random weights; only its sizes are used).
"""

from __future__ import annotations

import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.signal import chirp, spectrogram
from sklearn.datasets import load_sample_image
from torch import nn

import unsmooth
from tools.markdown import DOCS
from unsmooth.hosts.examine import examine
from unsmooth.hosts.inputs import input_shape

SIDE = 96  # pixels
_S = "num_hidden_layers=1, hidden_size=24, num_attention_heads=3, intermediate_size=24"
SPECS = {
    "image": "vit_tiny_patch16_224(depth=1, img_size=96)",
    "clip": f"hf:videomae({_S}, image_size={SIDE}, num_frames=8)",
    "spectrogram": f"hf:audio-spectrogram-transformer({_S}, max_length=206, num_mel_bins=96)",
}


class Signal(nn.Module):
    """A transformer on a signal of one channel, with patches of 16 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.zeros(1, 1, 256)
        self.embed = nn.Conv1d(1, 24, 16, 16)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(24, 3, 24, batch_first=True)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.embed(x).mT)


def draw() -> None:
    """Write docs/images/inputs.png."""
    warnings.simplefilter("ignore")
    photograph = load_sample_image("china.jpg")[40:232, 60:444][::2, ::2]
    wave = chirp(np.linspace(0, 4, 4 * 8000), 200, 4, 3800)
    sound = np.log(spectrogram(wave, 8000, nperseg=190, noverlap=35)[2][:96, :206] + 1e-9)
    pictures = {
        "image": [photograph[:, 40 : 40 + SIDE]],
        "clip": [photograph[:, 24 * i : 24 * i + SIDE] for i in range(4)],
        "spectrogram": [sound[::-1]],
    }
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), width_ratios=[1, 1.35, 1.7, 1.7], layout="constrained")
    models = {name: unsmooth.create_model(spec).eval() for name, spec in SPECS.items()} | {"signal": Signal().eval()}
    for axis, (name, model) in zip(axes, models.items(), strict=True):
        embed = examine(model).patch_embed
        assert embed is not None
        axis.set_title(f"{name} {input_shape(model)}\n{' × '.join(map(str, embed.grid))} patches", fontsize=9)
        axis.set_axis_off()
        if name == "signal":
            _signal(axis, embed.grid[0])
            continue
        for i, picture in reversed(list(enumerate(pictures[name]))):  # the first frame in front
            height, width = picture.shape[:2]
            left, low = 14 * i, 14 * i
            cmap = "magma" if picture.ndim == 2 else None
            axis.imshow(picture, extent=(left, left + width, low, low + height), zorder=-i, cmap=cmap)
            if i == 0:
                _lines(axis, embed.grid[-2:], width, height)
        axis.set_xlim(0, width + 14 * (len(pictures[name]) - 1))
        axis.set_ylim(0, height + 14 * (len(pictures[name]) - 1))
    figure.savefig(DOCS / "images" / "inputs.png", dpi=130)


def _lines(axis: Any, grid: tuple[int, ...], width: int, height: int) -> None:
    for i in range(1, grid[0]):
        axis.plot([0, width], [i * height / grid[0]] * 2, color="white", lw=0.6)
    for i in range(1, grid[1]):
        axis.plot([i * width / grid[1]] * 2, [0, height], color="white", lw=0.6)


def _signal(axis: Any, patches: int) -> None:
    time = np.linspace(0, 1, 256)
    axis.plot(time, chirp(time, 2, 1, 14) * np.hanning(256) ** 0.3, lw=1)
    for i in range(patches + 1):
        axis.axvline(i / patches, color="0.7", lw=0.6)


if __name__ == "__main__":
    draw()
