"""The weights that MAE starts from, drawn into Hugging Face's model.

transformers 5 builds the model with all fixed positions at zero, of encoder and decoder, so that from scratch it could
not tell one patch from another. Here they are the published sines and cosines; the rest starts as published too:
linear layers and the patch projection Xavier uniform (q, k and v as the one matrix that they are in MAE's code), the
class and mask tokens normal with standard deviation 0.02.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

TOKEN_STD = 0.02
QKV = ("q_proj", "k_proj", "v_proj")


def positions(side: int, width: int) -> Tensor:
    """Sines and cosines of column, then of row, at width/4 frequencies each; zero for the class token."""
    frequencies = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64).outer(frequencies)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([waves.repeat(side, 1), waves.repeat_interleave(side, 0)], dim=1)
    return torch.cat([grid.new_zeros(1, width), grid]).float()


@torch.no_grad()
def give_positions(model: Any) -> None:
    """Fill the fixed tables of positions that are empty: weights of an encoder alone bring none for the decoder."""
    side = math.isqrt(model.vit.embeddings.patch_embeddings.num_patches)
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        if not table.any():
            table.copy_(positions(side, table.shape[-1]))


@torch.no_grad()
def start_as_published(model: Any) -> None:
    """Draw all weights of a ViTMAEForPreTraining anew, from torch's generator."""
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
