"""The distinctive parts of `unsmooth.models` against plain NumPy, written from their equations."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.models.test_models import images, small
from tests.support.small_hosts import look_trained
from unsmooth.models.deepvit import ReAttention
from unsmooth.models.localvit import LocalFeedForward
from unsmooth.models.pvt import Block
from unsmooth.models.t2t_vit import sinusoids
from unsmooth.models.tokens_to_token import TokenPerformer, TokensToToken, TokenTransformer

Array = NDArray[np.float64]


def numbers(x: Tensor) -> Array:
    return x.detach().double().numpy()


def linear(x: Array, layer: nn.Linear) -> Array:
    return x @ numbers(layer.weight).T + (0 if layer.bias is None else numbers(layer.bias))


def layer_norm(x: Array, norm: nn.LayerNorm) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + norm.eps) * numbers(norm.weight) + numbers(norm.bias)


def batch_norm(x: Array, norm: nn.BatchNorm2d) -> Array:
    """x (channels, …) by running statistics."""
    shape = (-1, *(1,) * (x.ndim - 1))
    mean, variance, weight, bias = (
        numbers(v).reshape(shape) for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(variance + norm.eps) * weight + bias


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def hard_swish(x: Array) -> Array:
    return x * np.clip(x + 3, 0, 6) / 6


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_spatial_reduction_attention() -> None:
    rows, columns, d, heads, r = 6, 4, 12, 3, 2
    block = look_trained(Block(d, heads, 2.0, r, 0.0, 0.0, 0.0)).eval()
    x = tokens(1, rows * columns, d)
    z, attn = numbers(x)[0], block.attn
    h = layer_norm(z, block.norm1)
    grid = h.reshape(rows, columns, d)
    kernel = numbers(attn.sr.weight)  # (out, in, r, r)
    reduced = np.array([
        np.einsum("yxi,oiyx->o", grid[y : y + r, c : c + r], kernel) + numbers(attn.sr.bias)
        for y in range(0, rows, r) for c in range(0, columns, r)
    ])  # fmt: skip
    keys, values = np.split(linear(layer_norm(reduced, attn.norm), attn.kv), 2, axis=-1)
    queries = linear(h, attn.q)
    parts = []
    for i in range(heads):
        part = slice(i * d // heads, (i + 1) * d // heads)
        weights = softmax(queries[:, part] @ keys[:, part].T / math.sqrt(d // heads))
        assert weights.shape == (rows * columns, rows * columns // r**2)
        parts.append(weights @ values[:, part])
    z = z + linear(np.concatenate(parts, -1), attn.proj)
    z = z + linear(gelu(linear(layer_norm(z, block.norm2), block.mlp.fc1)), block.mlp.fc2)
    np.testing.assert_allclose(numbers(block(x, (rows, columns)))[0], z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_re_attention(scale: float) -> None:
    n, d, heads = 7, 12, 3
    attn = look_trained(ReAttention(d, heads, qkv_bias=True)).eval()
    attn.var_norm.running_mean.copy_(torch.tensor([0.1, 0.2, -0.1]))
    attn.var_norm.running_var.copy_(torch.tensor([0.5, 2.0, 1.0]))
    attn.map_scale = scale
    x = tokens(1, n, d)
    q, k, v = (
        part.reshape(n, heads, -1).transpose(1, 0, 2) for part in np.split(linear(numbers(x)[0], attn.qkv), 3, -1)
    )
    maps = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(d // heads))
    theta = numbers(attn.reatten_matrix.weight)[:, :, 0, 0]
    mixed = np.einsum("gh,hij->gij", theta, maps) + numbers(attn.reatten_matrix.bias)[:, None, None]
    out = (batch_norm(mixed, attn.var_norm) * scale @ v).transpose(1, 0, 2).reshape(n, d)
    np.testing.assert_allclose(numbers(attn(x))[0], linear(out, attn.proj), rtol=1e-4, atol=1e-5)


def test_branches_of_deepvit_read_half_and_add_double() -> None:
    block = small("deepvit").blocks[0]
    x = tokens(1, 17, 48)
    z = numbers(x)[0]
    half = layer_norm(z / 2, block.norm1)
    z = z + 2 * numbers(block.attn(torch.from_numpy(half).float()[None]))[0]
    z = z + 2 * linear(gelu(linear(layer_norm(z / 2, block.norm2), block.mlp.fc1)), block.mlp.fc2)
    np.testing.assert_allclose(numbers(block(x))[0], z, rtol=1e-4, atol=1e-4)


def test_re_attention_is_in_the_last_blocks_only() -> None:
    assert [isinstance(block.attn, ReAttention) for block in small("deepvit").blocks] == [False, True, True]
    assert [block.attn.map_scale for block in small("deepvit").blocks[1:]] == [16**-0.5] * 2


def performer(x: Array, layer: TokenPerformer) -> Array:
    k, q, v = np.split(linear(layer_norm(x, layer.norm1), layer.kqv), 3, axis=-1)
    w = numbers(layer.w)

    def features(y: Array) -> Array:
        return np.exp(y @ w.T - (y**2).sum(-1, keepdims=True) / 2) / math.sqrt(len(w))

    weights = features(q) @ features(k).T  # the whole map, which the layer never makes
    y = v + linear(weights @ v / (weights.sum(-1, keepdims=True) + 1e-8), layer.proj)
    hidden = gelu(linear(layer_norm(y, layer.norm2), layer.mlp[0]))
    return y + linear(hidden, layer.mlp[2])


def transformer(x: Array, layer: TokenTransformer) -> Array:
    q, k, v = np.split(linear(layer_norm(x, layer.norm1), layer.attn.qkv), 3, axis=-1)
    y = v + linear(softmax(q @ k.T / math.sqrt(x.shape[-1])) @ v, layer.attn.proj)
    return y + linear(gelu(linear(layer_norm(y, layer.norm2), layer.mlp.fc1)), layer.mlp.fc2)


def split(picture: Array, stride: int) -> Array:
    """Overlapping windows of 2s−1 pixels as rows: channel by channel, each window row by row. picture: (C, H, W)."""
    side, border = 2 * stride - 1, stride // 2
    padded = np.pad(picture, ((0, 0), (border, border), (border, border)))
    _, height, width = padded.shape
    return np.array([
        padded[:, y : y + side, x : x + side].ravel()
        for y in range(0, height - side + 1, stride) for x in range(0, width - side + 1, stride)
    ])  # fmt: skip


@pytest.mark.parametrize("size", [(32, 32), (32, 48)])
@pytest.mark.parametrize(("kind", "reference"), [("performer", performer), ("transformer", transformer)])
def test_tokens_to_token(kind: str, reference: object, size: tuple[int, int]) -> None:
    module = look_trained(TokensToToken(size, 16, 3, 20, kind, 8, 0.1)).eval()
    if kind == "performer":  # drawn anew above; an overflow in the exponentials would hide mistakes
        for layer in (module.attention1, module.attention2):
            layer.w.data = nn.init.orthogonal_(torch.empty_like(layer.w)) * math.sqrt(layer.features)
    image = tokens(1, 3, *size)
    x = numbers(image)[0]
    for stride, layer in ((4, module.attention1), (2, module.attention2)):
        rows = x.shape[1] // stride
        x = reference(split(x, stride), layer)  # type: ignore[operator]
        x = x.T.reshape(8, rows, -1)
    x = linear(split(x, 2), module.project)
    assert x.shape == (module.num_patches, 20)
    np.testing.assert_allclose(numbers(module(image))[0], x, rtol=1e-3, atol=1e-4)


def test_the_first_splits_are_the_published_ones() -> None:
    module = TokensToToken(224, 16, 3, 8, "performer", 8, 0.1)
    splits = [module.soft_split0, module.soft_split1, module.soft_split2]
    assert [(s.kernel_size, s.stride, s.padding) for s in splits] == [(7, 4, 2), (3, 2, 1), (3, 2, 1)]
    assert (module.grid_size, module.num_patches) == ((14, 14), 196)


def test_features_of_the_performer_are_orthogonal_and_fixed() -> None:
    layer = TokenPerformer(27, 16)
    torch.testing.assert_close(layer.w @ layer.w.T, 8 * torch.eye(8), rtol=1e-4, atol=1e-4)
    assert not layer.w.requires_grad


def test_positions_of_t2t_are_sinusoids() -> None:
    wanted = np.empty((5, 6))
    for p in range(5):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            wanted[p, 2 * i], wanted[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    np.testing.assert_allclose(numbers(sinusoids(5, 6))[0], wanted, atol=1e-6)


def test_local_feed_forward() -> None:
    rows, columns, d, hidden = 3, 4, 6, 10
    layer = look_trained(LocalFeedForward(d, hidden, 5)).eval()
    layer.grid_size = (rows, columns)
    w1, bn1, _, depthwise, bn2, _, gate, w2, bn3 = layer.conv
    for norm in (bn1, bn2, bn3):
        norm.running_mean.uniform_(-0.2, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
    x = tokens(1, 1 + rows * columns, d)
    z = numbers(x)[0, 1:].T
    z = hard_swish(batch_norm(numbers(w1.weight)[:, :, 0, 0] @ z, bn1)).reshape(hidden, rows, columns)
    padded, kernel = np.pad(z, ((0, 0), (1, 1), (1, 1))), numbers(depthwise.weight)[:, 0]
    z = np.zeros_like(z)
    for dy in range(3):
        for dx in range(3):
            z += kernel[:, dy, dx, None, None] * padded[:, dy : dy + rows, dx : dx + columns]
    z = hard_swish(batch_norm(z, bn2))
    squeezed = np.maximum(linear(z.mean((1, 2)), gate.fc[0]), 0)
    z = z * np.clip(linear(squeezed, gate.fc[2]) / 6 + 0.5, 0, 1)[:, None, None]
    z = batch_norm(numbers(w2.weight)[:, :, 0, 0] @ z.reshape(hidden, -1), bn3).T
    out = numbers(layer(x))[0]
    np.testing.assert_allclose(out[1:], z, rtol=1e-4, atol=1e-5)
    assert not out[0].any()  # the class token bypasses it


def test_pvt_is_the_one_of_transformers() -> None:
    """The whole pyramid against somebody else's code: stages, positions, class token, head."""
    import transformers

    ours = small("pvt")
    for module in ours.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # theirs has one for all
    theirs = transformers.PvtForImageClassification(
        transformers.PvtConfig(
            image_size=64, hidden_sizes=[16, 32, 48, 64], depths=[2, 1, 1, 2], num_attention_heads=[1, 2, 3, 4],
            mlp_ratios=[2, 2, 2, 2], sequence_reduction_ratios=[4, 2, 2, 1], qkv_bias=True, num_labels=5,
        )
    ).eval()  # fmt: skip
    own = ours.state_dict()

    def name_here(name: str) -> tuple[str, int | None]:
        """Our name of a parameter of theirs, and which half of it: they have keys and values apart."""
        half = {"key": 0, "value": 1}.get(name.split(".")[-2])
        stage = lambda m: str(int(m[1]) + 1)  # noqa: E731
        name = re.sub(
            r"pvt\.encoder\.patch_embeddings\.(\d)\.position_embeddings", lambda m: f"pos_embed{stage(m)}", name
        )
        name = re.sub(r"pvt\.encoder\.patch_embeddings\.\d\.cls_token", "cls_token", name)
        name = re.sub(r"pvt\.encoder\.patch_embeddings\.(\d)\.", lambda m: f"patch_embed{stage(m)}.", name)
        name = re.sub(r"pvt\.encoder\.block\.(\d)\.", lambda m: f"block{stage(m)}.", name)
        for theirs, here in (
            ("projection", "proj"), ("layer_norm_", "norm"), ("pvt.encoder.layer_norm", "norm"), ("layer_norm", "norm"),
            ("attention.self.query", "attn.q"), ("attention.self.key", "attn.kv"), ("attention.self.value", "attn.kv"),
            ("attention.self.sequence_reduction", "attn.sr"), ("attention.self.", "attn."),
            ("attention.output.dense", "attn.proj"), ("mlp.dense", "mlp.fc"), ("classifier", "head"),
        ):  # fmt: skip
            name = name.replace(theirs, here)
        return name, half

    used = set()
    for name, parameter in theirs.named_parameters():
        here, half = name_here(name)
        parameter.data = own[here] if half is None else own[here].chunk(2)[half]
        used.add(here)
    assert used == own.keys()
    with torch.no_grad():
        torch.testing.assert_close(ours(images("pvt")), theirs(images("pvt")).logits, rtol=1e-4, atol=1e-5)
