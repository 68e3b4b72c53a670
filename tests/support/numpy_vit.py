"""A vision transformer in plain NumPy and double precision, written from the equations, with a place for each remedy.

`Reference` runs timm's DeiT from a state dict. A remedy is a subclass that overrides one step and is written from
its paper's equation, sharing no code with the library.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf

Array = np.ndarray


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-6) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def softmax(p: Array) -> Array:
    e = np.exp(p - p.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """One image at a time; X is tokens by channels."""

    def __init__(self, state: dict[str, Array], heads: int, patch: int):
        self.state, self.heads, self.patch = state, heads, patch
        self.depth = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("blocks."))

    def __call__(self, images: Array) -> Array:
        return np.stack([self.logits(image.astype(np.float64)) for image in images])

    def __getitem__(self, key: str) -> Array:
        return self.state[key].astype(np.float64)

    # The steps that a remedy changes.

    def raw_patches(self, patches: Array) -> Array:
        return patches

    def patch_tokens(self, x: Array) -> Array:
        return x

    def tokens(self, x: Array) -> Array:
        """All tokens, before the first block."""
        return x

    def norm(self, block: str, branch: str, x: Array) -> Array:
        part = f"{block}.norm{1 if branch == 'attn' else 2}"
        return layer_norm(x, self[f"{part}.weight"], self[f"{part}.bias"])

    def linear(self, block: str, name: str, x: Array) -> Array:
        return x @ self[f"{block}.{name}.weight"].T + self[f"{block}.{name}.bias"]

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        return q @ k.T / np.sqrt(q.shape[1])

    def all_scores(self, block: str, p: Array) -> Array:
        """Of all heads: heads by queries by keys."""
        return p

    def softmax(self, block: str, head: int, p: Array) -> Array:
        return softmax(p)

    def attention_map(self, block: str, head: int, a: Array) -> Array:
        return a

    def all_maps(self, block: str, a: Array) -> Array:
        return a

    def values(self, block: str, v: Array) -> Array:
        """Of all heads: heads by tokens by channels."""
        return v

    def head_output(self, block: str, head: int, y: Array, v: Array, x: Array) -> Array:
        """The output y of a head, from its values v and the input x of the attention."""
        return y

    def at(self, block: str, branch: str, position: str, x: Array) -> Array:
        return x

    def augment(self, block: str, branch: str, y: Array, source: Array) -> Array:
        return y

    def join(self, block: str, branch: str, x: Array, y: Array) -> Array:
        return x + y

    # The host.

    def logits(self, image: Array) -> Array:
        channels, side, _ = image.shape
        p, n = self.patch, side // self.patch
        patches = image.reshape(channels, n, p, n, p).transpose(1, 3, 0, 2, 4).reshape(n * n, -1)
        weight = self["patch_embed.proj.weight"]
        x = self.raw_patches(patches) @ weight.reshape(len(weight), -1).T + self["patch_embed.proj.bias"]
        x = np.concatenate([self["cls_token"][0], self.patch_tokens(x)]) + self["pos_embed"][0]
        x = self.tokens(x)
        for i in range(self.depth):
            x = self.block(f"blocks.{i}", x)
        x = layer_norm(x, self["norm.weight"], self["norm.bias"])
        return x[0] @ self["head.weight"].T + self["head.bias"]

    def block(self, name: str, x: Array) -> Array:
        source = self.norm(name, "attn", x)
        x = self.join(name, "attn", x, self.augment(name, "attn", self.attention(name, source), source))
        source = self.norm(name, "mlp", x)
        return self.join(name, "mlp", x, self.augment(name, "mlp", self.mlp(name, source), source))

    def attention(self, name: str, x: Array) -> Array:
        source = self.at(name, "attn", "front", x)
        projected = np.split(self.linear(name, "attn.qkv", source), 3, axis=1)
        q, k, v = (np.stack(np.split(part, self.heads, axis=1)) for part in projected)  # heads, tokens, channels
        heads = range(self.heads)
        v = self.values(name, v)
        p = self.all_scores(name, np.stack([self.scores(name, h, q[h], k[h]) for h in heads]))
        maps = [self.attention_map(name, h, self.softmax(name, h, p[h])) for h in heads]
        a = self.all_maps(name, np.stack(maps))
        outs = [self.head_output(name, h, a[h] @ v[h], v[h], source) for h in heads]
        x = self.at(name, "attn", "mid", np.concatenate(outs, 1))
        return self.at(name, "attn", "end", self.linear(name, "attn.proj", x))

    def mlp(self, name: str, x: Array) -> Array:
        x = gelu(self.linear(name, "mlp.fc1", self.at(name, "mlp", "front", x)))
        return self.at(name, "mlp", "end", self.linear(name, "mlp.fc2", self.at(name, "mlp", "mid", x)))


class AttnScale(Reference):
    def attention_map(self, block: str, head: int, a: Array) -> Array:
        n = len(a)
        uniform = np.full((n, n), 1 / n)
        omega = self[f"{block}.attn.unsmooth_attn_scale.omega"][head]
        return uniform + (1 + omega) * (a - uniform)


class FeatScale(Reference):
    def at(self, block: str, branch: str, position: str, x: Array) -> Array:
        if (branch, position) != ("attn", "end"):
            return x
        low = np.ones((len(x), 1)) @ x.mean(0, keepdims=True)
        s, t = (self[f"{block}.attn.unsmooth_feat_scale.{name}"] for name in "st")
        return low * (1 + s) + (x - low) * (1 + t)


class LayerScale(Reference):
    branches = ("attn", "mlp")

    def at(self, block: str, branch: str, position: str, x: Array) -> Array:
        if branch not in self.branches or position != "end":
            return x
        return x @ np.diag(self[f"{block}.{branch}.unsmooth_layer_scale.gamma"])


class ContextBroadcast(Reference):
    kind, branches, position = "plain", ("mlp",), "end"

    def at(self, block: str, branch: str, position: str, x: Array) -> Array:
        if branch not in self.branches or position != self.position:
            return x
        mean = x.mean(0)
        plain = (x + mean) / 2
        if self.kind == "scaled":
            return x + self[f"{block}.{branch}.unsmooth_context_broadcast.lam"] * mean
        return {"plain": plain, "gate": x * (x[0] + 1), "hybrid": x * x[0] + plain}[self.kind]


class AugmentedShortcut(Reference):
    scale = 1.0
    branches = ("attn", "mlp")

    def augment(self, block: str, branch: str, y: Array, source: Array) -> Array:
        if branch not in self.branches:
            return y
        part = f"{block}.{branch}.unsmooth_augmented_shortcut"
        vectors, bias = self[f"{part}.vectors"], self[f"{part}.bias"]
        paths = sum(gelu(self.circulant(source, c) + b) for c, b in zip(vectors, bias, strict=True))
        gain = self.state.get(f"{part}.gain")
        return y + (paths if gain is None else paths * gain)

    def circulant(self, x: Array, c: Array) -> Array:
        """Output slice i is IFFT(Σ_j FFT(c^ij)·FFT(x^j))."""
        slices = np.split(x, c.shape[0], axis=1)
        rows = [
            np.fft.ifft(sum(np.fft.fft(c[i, j]) * np.fft.fft(part, axis=1) for j, part in enumerate(slices)), axis=1)
            for i in range(c.shape[0])
        ]
        return np.concatenate(rows, 1).real

    def join(self, block: str, branch: str, x: Array, y: Array) -> Array:
        return (x + y) * (self.scale if branch in self.branches else 1)


class TokenGraying(Reference):
    transform, epsilon, where, rescale = "dct", 0.95, "embedding", True

    def gray(self, x: Array) -> Array:
        if self.transform == "svd":
            u, s, vt = np.linalg.svd(x, full_matrices=False)
            top = s[0]
            return u @ np.diag((s / top) ** self.epsilon) @ vt * (top if self.rescale else 1)
        from scipy.fft import dctn, idctn

        spectrum = dctn(x, norm="ortho")
        top = np.abs(spectrum).max()
        grayed = np.sign(spectrum) * (np.abs(spectrum) / top) ** self.epsilon
        return idctn(grayed * (top if self.rescale else 1), norm="ortho")

    def raw_patches(self, patches: Array) -> Array:
        return self.gray(patches) if self.where == "patches" else patches

    def patch_tokens(self, x: Array) -> Array:
        return self.gray(x) if self.where == "embedding" else x


class AdderAttention(Reference):
    identity = True

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        distances = np.abs(q[:, None] - k[None]).sum(-1)
        return -distances / np.sqrt(2 * (1 - 2 / np.pi) * q.shape[1])

    def attention_map(self, block: str, head: int, a: Array) -> Array:
        return a + np.eye(len(a)) if self.identity else a


class Adder(AdderAttention):
    def linear(self, block: str, name: str, x: Array) -> Array:
        part = f"{block}.unsmooth_adder_{name.replace('.', '_')}"
        weight, scale, shift = (self[f"{part}.{what}"] for what in ("weight", "scale", "shift"))
        y = -np.abs(x[:, None] - weight[None]).sum(-1)
        thirds = 3 if name == "attn.qkv" else 1  # q, k and v are three layers
        normed = [layer_norm(piece, np.ones(1), np.zeros(1), 1e-5) for piece in np.split(y, thirds, axis=1)]
        return np.concatenate(normed, 1) * scale + shift


class L2Attention(Reference):
    tau: float | None = None

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        tau = np.sqrt(q.shape[1]) if self.tau is None else self.tau
        return -((q[:, None] - k[None]) ** 2).sum(-1) / tau


class LogisticAttention(Reference):
    slope = 0.2

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        u_q, u_k, b = (self[f"{block}.attn.unsmooth_logistic_attention.{name}"][head] for name in ("u_q", "u_k", "b"))
        z = (q @ u_q)[:, None] + (k @ u_k)[None] + b
        return np.where(z > 0, z, self.slope * z)


class NoSkip(Reference):
    branches = ("attn",)

    def join(self, block: str, branch: str, x: Array, y: Array) -> Array:
        return y if branch in self.branches else x + y


class ShapedAttention(Reference):
    def attention_map(self, block: str, head: int, a: Array) -> Array:
        part = f"{block}.attn.unsmooth_shaped_attention"
        alpha, beta, gamma = (self[f"{part}.{name}"][head] for name in ("alpha", "beta", "gamma"))
        return alpha * np.eye(len(a)) + beta * a - gamma * np.ones_like(a) / len(a)


class CentredAttention(Reference):
    def attention_map(self, block: str, head: int, a: Array) -> Array:
        return a - self[f"{block}.attn.unsmooth_centred_attention.gamma"][head] * np.ones_like(a) / len(a)


class ExclusiveAttention(Reference):
    def head_output(self, block: str, head: int, y: Array, v: Array, x: Array) -> Array:
        g = self[f"{block}.attn.unsmooth_exclusive_attention.g"][head]
        unit = v / np.linalg.norm(v, axis=1, keepdims=True)
        return np.stack([row - g * (row @ u) * u for row, u in zip(y, unit, strict=True)])


class GraphFilter(Reference):
    order = 3

    def attention_map(self, block: str, head: int, a: Array) -> Array:
        part = f"{block}.attn.unsmooth_graph_filter"
        w_0, w_1, w_k = (self[f"{part}.{name}"][head] for name in ("w_0", "w_1", "w_k"))
        power = a + (self.order - 1) * (np.linalg.matrix_power(a, 2) - a)
        return w_0 * np.eye(len(a)) + w_1 * a + w_k * power


class GatedAttention(Reference):
    def head_output(self, block: str, head: int, y: Array, v: Array, x: Array) -> Array:
        rows = np.split(self[f"{block}.attn.unsmooth_gated_attention.weight"], self.heads)[head]
        return y * 2 / (1 + np.exp(-x @ rows.T))


class ValueAnchor(Reference):
    kind, anchored = "neutreno", ("blocks.1",)

    def values(self, block: str, v: Array) -> Array:
        if block == "blocks.0":
            self.first = v
        if block not in self.anchored or self.kind != "residual":
            return v
        first, own = (self[f"{block}.attn.unsmooth_value_anchor.{name}"] for name in ("lam_1", "lam_2"))
        return np.stack([a * v_1 + b * v_h for a, b, v_1, v_h in zip(first, own, self.first, v, strict=True)])

    def head_output(self, block: str, head: int, y: Array, v: Array, x: Array) -> Array:
        if block not in self.anchored or self.kind != "neutreno":
            return y
        return y + self[f"{block}.attn.unsmooth_value_anchor.lam"][head] * (self.first[head] - v)


class ReAttention(Reference):
    def all_maps(self, block: str, a: Array) -> Array:
        theta = self[f"{block}.attn.unsmooth_re_attention.theta"]
        return np.stack([sum(theta[g, h] * a[h] for h in range(self.heads)) for g in range(self.heads)])


class TalkingHeads(Reference):
    def mix(self, block: str, name: str, each: Array) -> Array:
        return np.einsum("gh,hij->gij", self[f"{block}.attn.unsmooth_talking_heads.{name}"], each)

    def all_scores(self, block: str, p: Array) -> Array:
        return self.mix(block, "logits", p)

    def all_maps(self, block: str, a: Array) -> Array:
        return self.mix(block, "maps", a)


class ContraNorm(Reference):
    branches, tau = ("attn",), 1.0

    def norm(self, block: str, branch: str, x: Array) -> Array:
        if branch in self.branches:
            s = self[f"{block}.norm{1 if branch == 'attn' else 2}.unsmooth_contra_norm.s"]
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            x = x - s * (softmax(unit @ unit.T / self.tau) @ x)
        return super().norm(block, branch, x)


class OrthogonalResidual(Reference):
    parts = {"attn": "unsmooth_orthogonal_residual", "mlp": "unsmooth_orthogonal_residual_mlp"}

    def join(self, block: str, branch: str, x: Array, y: Array) -> Array:
        if branch not in self.parts:
            return x + y
        p = self[f"{block}.{self.parts[branch]}.p"]
        along = [(token @ added) / (token @ token + 1e-6) * token for token, added in zip(x, y, strict=True)]
        return x + y - p * np.stack(along)


class SigmaReparam(Reference):
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")

    def linear(self, block: str, name: str, x: Array) -> Array:
        if name not in self.layers:
            return super().linear(block, name, x)
        weight = self[f"{block}.{name}.weight"]
        gamma = self[f"{block}.unsmooth_sigma_reparam_{name.replace('.', '_')}.gamma"]
        weight = gamma / np.linalg.svd(weight, compute_uv=False)[0] * weight
        return x @ weight.T + self[f"{block}.{name}.bias"]


class QkNorm(Reference):
    centred = True

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        part = f"{block}.attn.unsmooth_qk_norm"
        normed = []
        for x, gain in ((q, self[f"{part}.gain_q"]), (k, self[f"{part}.gain_k"])):
            centred = x - x.mean(1, keepdims=True) if self.centred else x
            normed.append(centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * gain)
        return normed[0] @ normed[1].T / np.sqrt(q.shape[1])


class SpecializedNorm(Reference):
    branches = ("attn", "mlp")

    def norm(self, block: str, branch: str, x: Array) -> Array:
        shared = super().norm(block, branch, x)
        if branch not in self.branches:
            return shared
        part = f"{block}.norm{1 if branch == 'attn' else 2}.unsmooth_specialized_norm"
        own = layer_norm(x, self[f"{part}.weight"], self[f"{part}.bias"])
        return np.concatenate([own[:1], shared[1:]])


class SinkLogit(Reference):
    def softmax(self, block: str, head: int, p: Array) -> Array:
        b = self[f"{block}.attn.unsmooth_sink_logit.b"][head]
        return np.exp(p) / (np.exp(b) + np.exp(p).sum(-1, keepdims=True))


class Registers(Reference):
    def tokens(self, x: Array) -> Array:
        return np.concatenate([x, self["blocks.0.unsmooth_registers.tokens"]])

    def scores(self, block: str, head: int, q: Array, k: Array) -> Array:
        p = super().scores(block, head, q, k)
        p[:, 17:] += self[f"{block}.attn.unsmooth_registers.b"][head]
        return p


class TestTimeRegister(Reference):
    def tokens(self, x: Array) -> Array:
        return np.concatenate([x, np.zeros((1, x.shape[1]))])

    def at(self, block: str, branch: str, position: str, x: Array) -> Array:
        if (branch, position) != ("mlp", "mid"):
            return x
        moved = x.copy()
        for neuron in np.flatnonzero(self.state[f"{block}.mlp.fc2.unsmooth_test_time_register.neurons"]):
            moved[1:-1, neuron] = 0
            moved[-1, neuron] = x[:, neuron].max()
        return moved
