"""Initial weights of MAE in Hugging Face's model, as published.

transformers 5 initialises the fixed position embeddings of encoder and decoder with zeros, so that the model could not
distinguish patches. Here they are the published sines and cosines. Linear layers and the patch projection are Xavier
uniform (q, k and v as one matrix, as in MAE's code), and the class and mask tokens are normal with standard deviation
0.02.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

TOKEN_STD = 0.02
QKV = ("q_proj", "k_proj", "v_proj")


def positions(side: int, width: int) -> Tensor:
    """Sines and cosines of the column, then of the row, at width/4 frequencies each; zeros for the class token."""
    frequencies = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64).outer(frequencies)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([waves.repeat(side, 1), waves.repeat_interleave(side, 0)], dim=1)
    return torch.cat([grid.new_zeros(1, width), grid]).float()


@torch.no_grad()
def fill_positions(model: Any) -> None:
    """Fill position tables that are zero, such as the decoder's if only weights of the encoder were loaded."""
    side = math.isqrt(model.vit.embeddings.patch_embeddings.num_patches)
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        if not table.any():
            table.copy_(positions(side, table.shape[-1]))


@torch.no_grad()
def init_as_published(model: Any) -> None:
    """Initialise all weights of a ViTMAEForPreTraining, with torch's generator."""
    encoder, decoder = model.vit.embeddings, model.decoder
    nn.init.xavier_uniform_(encoder.patch_embeddings.projection.weight.flatten(1))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            rows, columns = module.weight.shape
            rows *= 3 if name.rpartition(".")[2] in QKV else 1
            bound = math.sqrt(6 / (rows + columns))
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for token in (encoder.cls_token, decoder.mask_token):
        nn.init.normal_(token, std=TOKEN_STD)
