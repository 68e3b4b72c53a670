"""The forward passes that the authors' checkpoints were trained with, from their equations: plain torch functions of a
state dict, nothing of this library. And the names and shapes that such a state dict has.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from scipy.linalg import circulant
from torch import Tensor

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def layer(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def mlp(name: str, d: int) -> Shapes:
    return {**layer(f"{name}.mlp.fc1", 4 * d, d), **layer(f"{name}.mlp.fc2", d, 4 * d)}


def ends(d: int, patch: int, classes: int, last: int = 0) -> Shapes:
    return {
        "patch_embed.proj.weight": (d, 3, patch, patch), "patch_embed.proj.bias": (d,),
        **norm("norm", last or d), **layer("head", classes, last or d),
    }  # fmt: skip


def remedy_shapes(kind: str, block: str, d: int, heads: int) -> Shapes:
    if kind == "attn_scale":
        return {f"{block}.attn.lamb": (heads,)}
    if kind == "feat_scale":
        return {f"{block}.lamb1": (d,), f"{block}.lamb2": (d,)}
    paths = [f"{block}.{path}.0" for path in ("augs_attn", "augs", "augs_attn2", "augs2")]
    if kind == "linear2":
        return {name: shape for path in paths for name, shape in layer(path, d, d).items()}
    own = {"weight_list": (4 * d,), "bias": (d,), "index_matrix": (d, d)}
    return {f"{path}.{name}": shape for path in paths for name, shape in own.items()}


def vit_shapes(kind: str, d: int, depth: int, heads: int, patch: int = 16, patches: int = 196, classes: int = 1000,
               class_token: bool = True) -> Shapes:  # fmt: skip
    """DeiT; CaiT has its own blocks and the class token apart."""
    shapes: Shapes = {
        "cls_token": (1, 1, d), "pos_embed": (1, patches + int(class_token), d), **ends(d, patch, classes)
    }  # fmt: skip
    for i in range(depth):
        b = f"blocks.{i}"
        shapes |= {**norm(f"{b}.norm1", d), **layer(f"{b}.attn.qkv", 3 * d, d), **layer(f"{b}.attn.proj", d, d),
                   **norm(f"{b}.norm2", d), **mlp(b, d), **remedy_shapes(kind, b, d, heads)}  # fmt: skip
    return shapes


def cait_shapes(
    kind: str, d: int, depth: int, heads: int, patch: int = 16, patches: int = 196, classes: int = 1000
) -> Shapes:
    shapes = vit_shapes(kind, d, depth, heads, patch, patches, classes, class_token=False)
    for i in range(depth):
        b = f"blocks.{i}"
        shapes |= {**layer(f"{b}.attn.proj_l", heads, heads), **layer(f"{b}.attn.proj_w", heads, heads),
                   f"{b}.gamma_1": (d,), f"{b}.gamma_2": (d,)}  # fmt: skip
    for i in range(2):
        b = f"blocks_token_only.{i}"
        shapes |= {**norm(f"{b}.norm1", d), **norm(f"{b}.norm2", d), **mlp(b, d), f"{b}.gamma_1": (d,),
                   f"{b}.gamma_2": (d,)}  # fmt: skip
        for name in ("q", "k", "v", "proj"):
            shapes |= layer(f"{b}.attn.{name}", d, d)
    return shapes


def swin_shapes(
    kind: str, d: int, depths: tuple[int, ...], heads: tuple[int, ...], side: int = 224, classes: int = 1000
) -> Shapes:
    shapes = {**ends(d, 4, classes, d * 2 ** (len(depths) - 1)), **norm("patch_embed.norm", d)}
    grid = side // 4
    for stage, depth in enumerate(depths):
        for i in range(depth):
            b = f"layers.{stage}.blocks.{i}"
            shapes |= {**norm(f"{b}.norm1", d), **layer(f"{b}.attn.qkv", 3 * d, d), **layer(f"{b}.attn.proj", d, d),
                       **norm(f"{b}.norm2", d), **mlp(b, d), **remedy_shapes(kind, b, d, heads[stage]),
                       f"{b}.attn.relative_position_bias_table": (169, heads[stage]),
                       f"{b}.attn.relative_position_index": (49, 49)}  # fmt: skip
            if i % 2 and grid > 7:
                shapes[f"{b}.attn_mask"] = ((grid // 7) ** 2, 49, 49)
        if stage < len(depths) - 1:
            down = f"layers.{stage}.downsample"
            shapes |= {f"{down}.reduction.weight": (2 * d, 4 * d), **norm(f"{down}.norm", 4 * d)}
            d, grid = 2 * d, grid // 2
    return shapes


def draw(shapes: Shapes, seed: int = 0) -> State:
    """Weights that make every part matter: gains around one, sharp attention, remedies away from their start."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator)
        if name.endswith("index_matrix"):
            m = shape[0] // 4
            blocks = [[torch.as_tensor(circulant(range(m))) + (4 * i + j) * m for j in range(4)] for i in range(4)]
            state[name] = torch.cat([torch.cat(row, 1) for row in blocks])
        elif "index" in name or "mask" in name:
            state[name] = torch.zeros(shape)
        elif ("norm" in name and name.endswith("weight")) or "gamma" in name:
            state[name] = 1 + 0.2 * value
        elif len(shape) < 2:
            state[name] = 0.3 * value
        else:
            state[name] = 1.3 * value / math.prod(shape[1:]) ** 0.5
    return state


def linear(w: State, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].mT + w.get(f"{name}.bias", torch.zeros(()))


def normed(w: State, name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def hidden(w: State, b: str, x: Tensor) -> Tensor:
    return linear(w, f"{b}.mlp.fc2", F.gelu(linear(w, f"{b}.mlp.fc1", x)))


def all_pass(w: State, b: str, attention: Tensor) -> Tensor:
    """Â = J + (1 + lamb)(A − J), where the checkpoint has a lamb."""
    if f"{b}.attn.lamb" not in w:
        return attention
    mean = 1 / attention.shape[-1]
    return mean + (1 + w[f"{b}.attn.lamb"].view(-1, 1, 1)) * (attention - mean)


def reweighted(w: State, b: str, y: Tensor, factor: float) -> Tensor:
    """(1 + f·lamb1) DC + (1 + f·lamb2) HC over all tokens, where the checkpoint has them."""
    if f"{b}.lamb1" not in w:
        return y
    low = y.mean(1, keepdim=True)
    return (1 + factor * w[f"{b}.lamb1"]) * low + (1 + factor * w[f"{b}.lamb2"]) * (y - low)


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attention(w: State, b: str, x: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    q, k, v = (heads_of(part, heads) for part in linear(w, f"{b}.attn.qkv", x).chunk(3, -1))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if f"{b}.attn.proj_l.weight" in w:
        scores = linear(w, f"{b}.attn.proj_l", scores.movedim(1, -1)).movedim(-1, 1)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    if f"{b}.attn.proj_w.weight" in w:
        weights = linear(w, f"{b}.attn.proj_w", weights.movedim(1, -1)).movedim(-1, 1)
    return linear(w, f"{b}.attn.proj", (all_pass(w, b, weights) @ v).transpose(1, 2).flatten(2))


def paths(w: State, b: str, names: tuple[str, str], x: Tensor) -> Tensor:
    """Σ GELU(Θx + bias), Θ written out block by block from its vectors."""
    total = torch.zeros_like(x)
    for name in names:
        if f"{b}.{name}.0.weight" in w:
            theta = w[f"{b}.{name}.0.weight"]
        else:
            vectors = w[f"{b}.{name}.0.weight_list"].view(4, 4, -1)
            theta = torch.cat([torch.cat([torch.as_tensor(circulant(c)) for c in row], 1) for row in vectors])
        total = total + F.gelu(x @ theta.to(x).mT + w[f"{b}.{name}.0.bias"])
    return total


def embedded(w: State, images: Tensor) -> Tensor:
    weight = w["patch_embed.proj.weight"]
    return F.conv2d(images, weight, w["patch_embed.proj.bias"], weight.shape[-1]).flatten(2).mT


def deit(w: State, images: Tensor, depth: int, heads: int, factor: float = 1.0) -> Tensor:
    x = embedded(w, images)
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]
    augmented = "blocks.0.augs.0.bias" in w
    for i in range(depth):
        b = f"blocks.{i}"
        y = normed(w, f"{b}.norm1", x, 1e-6)
        x = x + reweighted(w, b, attention(w, b, y, heads), factor)
        x = 0.75 * (x + paths(w, b, ("augs_attn", "augs_attn2"), y)) if augmented else x
        y = normed(w, f"{b}.norm2", x, 1e-6)
        x = x + hidden(w, b, y)
        x = 0.75 * (x + paths(w, b, ("augs", "augs2"), y)) if augmented else x
    return linear(w, "head", normed(w, "norm", x, 1e-6)[:, 0])


def cait(w: State, images: Tensor, depth: int, heads: int) -> Tensor:
    x = embedded(w, images) + w["pos_embed"]
    for i in range(depth):
        b = f"blocks.{i}"
        y = reweighted(w, b, attention(w, b, normed(w, f"{b}.norm1", x, 1e-6), heads), 1.0)
        x = x + w[f"{b}.gamma_1"] * y
        x = x + w[f"{b}.gamma_2"] * hidden(w, b, normed(w, f"{b}.norm2", x, 1e-6))
    token = w["cls_token"].expand(len(x), -1, -1)
    for i in range(2):
        b = f"blocks_token_only.{i}"
        y = normed(w, f"{b}.norm1", torch.cat([token, x], 1), 1e-6)
        q, k, v = (heads_of(linear(w, f"{b}.attn.{n}", y), heads) for n in ("q", "k", "v"))
        weights = (q[:, :, :1] @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        token = token + w[f"{b}.gamma_1"] * linear(w, f"{b}.attn.proj", (weights @ v).transpose(1, 2).flatten(2))
        token = token + w[f"{b}.gamma_2"] * hidden(w, b, normed(w, f"{b}.norm2", token, 1e-6))
    return linear(w, "head", normed(w, "norm", token, 1e-6)[:, 0])


def swin(w: State, images: Tensor, depths: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    x = normed(w, "patch_embed.norm", embedded(w, images), 1e-5)
    grid = images.shape[-1] // 4
    place = torch.arange(49)
    row, column = (place.unsqueeze(1) // 7 - place // 7 + 6), (place.unsqueeze(1) % 7 - place % 7 + 6)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            b = f"layers.{stage}.blocks.{i}"
            shift = 3 if i % 2 and grid > 7 else 0
            bias = w[f"{b}.attn.relative_position_bias_table"][row * 13 + column].permute(2, 0, 1)
            y, out = normed(w, f"{b}.norm1", x, 1e-5), torch.zeros_like(x)
            for top in range(0, grid, 7):
                for left in range(0, grid, 7):
                    # Tokens of one window of the shifted map, and whether each came in over the edge.
                    r = (top + place // 7 + shift).unsqueeze(0)
                    c = (left + place % 7 + shift).unsqueeze(0)
                    over = 2 * (r >= grid).long() + (c >= grid).long()
                    apart = torch.where(over.mT == over, 0.0, -100.0)
                    at = ((r % grid) * grid + c % grid).squeeze(0)
                    out[:, at] = attention(w, b, y[:, at], heads[stage], bias + apart)
            x = x + reweighted(w, b, out, 1.0)
            x = x + hidden(w, b, normed(w, f"{b}.norm2", x, 1e-5))
        if stage < len(depths) - 1:
            m = x.unflatten(1, (grid, grid))
            m = torch.cat([m[:, r::2, c::2] for c in (0, 1) for r in (0, 1)], -1).flatten(1, 2)
            x = linear(w, f"layers.{stage}.downsample.reduction", normed(w, f"layers.{stage}.downsample.norm", m, 1e-5))
            grid //= 2
    return linear(w, "head", normed(w, "norm", x, 1e-5).mean(1))
