"""The parameters of `unsmooth.models` have the names of the authors' repositories, so that their checkpoints load."""

from __future__ import annotations

import pytest

from tests.models.test_models import BLOCKS, small


def _of(prefix: str, *layers: str) -> set[str]:
    """Weight and bias of layers; a layer that ends in ! has no bias."""
    return {
        f"{prefix}{layer.rstrip('!')}.{part}"
        for layer in layers
        for part in (("weight",) if layer.endswith("!") else ("weight", "bias"))
    }


def _norms(prefix: str, *layers: str) -> set[str]:
    running = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {f"{prefix}{layer}.{part}" for layer in layers for part in running}


def test_names_of_pvt() -> None:
    wanted = {"cls_token", *(f"pos_embed{i}" for i in (1, 2, 3, 4))} | _of("", "norm", "head")
    for i in (1, 2, 3, 4):
        wanted |= _of(f"patch_embed{i}.", "proj", "norm")
    for block in BLOCKS["pvt"]:
        wanted |= _of(f"{block}.", "norm1", "norm2", "attn.q", "attn.kv", "attn.proj", "mlp.fc1", "mlp.fc2")
        if not block.startswith("block4"):
            wanted |= _of(f"{block}.attn.", "sr", "norm")
    assert small("pvt").state_dict().keys() == wanted


def test_names_of_localvit() -> None:
    wanted = {"cls_token", "pos_embed"} | _of("", "patch_embed.proj", "norm", "head")
    for block in BLOCKS["localvit"]:
        wanted |= _of(f"{block}.", "norm1", "attn.qkv", "attn.proj", "conv.conv.6.fc.0", "conv.conv.6.fc.2")
        wanted |= _of(f"{block}.conv.conv.", "0!", "3!", "7!") | _norms(f"{block}.conv.conv.", "1", "4", "8")
    assert small("localvit").state_dict().keys() == wanted


@pytest.mark.parametrize("name", ["t2t", "t2t_t"])
def test_names_of_t2t(name: str) -> None:
    wanted = {"cls_token", "pos_embed"} | _of("", "tokens_to_token.project", "norm", "head")
    for i in (1, 2):
        layer = f"tokens_to_token.attention{i}."
        if name == "t2t":
            wanted |= {f"{layer}w"} | _of(layer, "norm1", "norm2", "kqv", "proj", "mlp.0", "mlp.2")
        else:
            wanted |= _of(layer, "norm1", "norm2", "attn.qkv!", "attn.proj", "mlp.fc1", "mlp.fc2")
    for block in BLOCKS[name]:
        wanted |= _of(f"{block}.", "norm1", "norm2", "attn.qkv!", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert small(name).state_dict().keys() == wanted


def test_names_of_deepvit() -> None:
    wanted = {"cls_token", "pos_embed"} | _of("", "patch_embed.proj", "norm", "head")
    wanted |= _of("patch_embed.", "conv1!", "conv2!") | _norms("patch_embed.", "bn1", "bn2")
    for block in BLOCKS["deepvit"]:
        wanted |= _of(f"{block}.", "norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    for block in BLOCKS["deepvit"][1:]:
        wanted |= _of(f"{block}.attn.", "reatten_matrix") | _norms(f"{block}.attn.", "var_norm")
    assert small("deepvit").state_dict().keys() == wanted
