"""Singular values of the Jacobian of one attention branch, on request (Always Skip Attention, Figures 7 and 8).

    J = ∂ vec f(X) / ∂ vec X,   f the attention branch with its norm and layer scale;   with the skip: I + J

The value is log κ(J) = ln(σ₁/σ_min); `values` are the singular values, descending; `skip` and `skip.values` are those
of I + J. The norm layer ignores the mean of a token and almost its scale, so J is singular up to rounding and log κ is
ln 10¹⁵ for every model. `robust` is ln(σ₁/σ_k) with k = ⌈0.9·rank⌉ instead, rank the number of singular values above
10⁻¹⁰ of the largest. `mlp.robust` is that of the MLP branch, for comparison.

The neural tangent kernel, which describes training by gradient descent, consists of Jacobians by the parameters, and is
too expensive for a whole transformer. The paper takes the condition of the output of attention (`log_condition`, part
`attn`) as a proxy of that of the Jacobian, and shows the Jacobian by the tokens for one block. So does this vital.

If X has at most 4,096 entries, the whole matrix is computed and decomposed. Otherwise 96 Lanczos steps on JᵀJ with full
reorthogonalisation give both ends of the spectrum: the largest values are accurate; the smallest Ritz value is an upper
bound of σ_min, so log κ is a lower bound, and there are no robust values, which need the inside of the spectrum. For
one image and one block (`blocks="3"`), in double precision.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.inputs import batch_inputs, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.seam.patched import module_patches
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.vitals.base import Undefined, register

DENSE = 4096  # entries of the input up to which the whole Jacobian is computed
ROWS = 64  # rows of the Jacobian per backward pass
STEPS = 96
SHOWN = 256  # singular values of a dense spectrum that are returned, evenly spaced
RESOLUTION = 1e-15
RANK_TOLERANCE = 1e-10  # the eps of a norm layer leaves values of 1e-11 where J would have none
ROBUST_SHARE = 0.9  # of the rank


@register(
    title="Jacobian spectrum of attention",
    formula="singular values of ∂f/∂X, f the attention branch; with the skip I + ∂f/∂X",
    reading="log κ; large: small changes of the tokens vanish or are amplified",
    family="theory",
    of="model",
    sample=1,
    default=False,
    parts=(
        ("robust", "ln of the largest singular value over that at 90 % of the rank"),
        ("values", "singular values, descending"),
        ("skip", "log κ with the skip"),
        ("skip.values", "singular values with the skip"),
        ("mlp.robust", "the robust value of the MLP branch"),
    ),
)
def jacobian_spectrum(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Any]]:
    if len(blocks) != 1:
        raise Undefined('it is measured for one block at a time, such as blocks="3"')
    block = anatomy.blocks[blocks[0]]
    branch, x = branch_function(model, anatomy, block, images[:1])
    values: dict[str, Tensor] = {}
    for part, spectrum in zip(("", "skip."), singular_spectra(branch, x), strict=True):
        values[part.rstrip(".")] = (spectrum[0] / spectrum[-1].clamp_min(RESOLUTION * spectrum[0])).log()
        if len(spectrum) == x.numel():
            values[f"{part}robust"] = robust_log_condition(spectrum)
        shown = torch.linspace(0, len(spectrum) - 1, min(SHOWN, len(spectrum))).round().long()
        values[f"{part}values"] = spectrum[shown]
    if x.numel() <= DENSE and block.residuals.count("mlp") == 1:
        mlp, between = branch_function(model, anatomy, block, images[:1], "mlp")
        values["mlp.robust"] = robust_log_condition(torch.linalg.svdvals(dense_jacobian(mlp, between)))
    out: dict[str, list[Any]] = {part: [None] * len(anatomy.blocks) for part in values}
    for part, value in values.items():
        out[part][block.index] = value.unsqueeze(0)
    return out


def robust_log_condition(values: Tensor) -> Tensor:
    """ln(σ₁/σ_k) of descending singular values, k = ⌈0.9·rank⌉."""
    rank = int((values > RANK_TOLERANCE * values[0]).sum())
    return (values[0] / values[max(math.ceil(ROBUST_SHARE * rank), 1) - 1]).log()


def branch_function(
    model: nn.Module, anatomy: Anatomy, block: Block, images: Tensor, name: str = "attn"
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The output of a branch of a block as a function of the tokens (B, …) before it, and these tokens."""
    if block.residuals.count(name) != 1:
        raise Undefined(f"its {name} branch has no single residual sum")
    if block.holder:
        raise Undefined("its blocks are lists of modules, which cannot be run alone")
    first_call: dict[str, Any] = {}
    module = model.get_submodule(block.name)

    def record(_: nn.Module, args: Any, kwargs: Any) -> None:
        first_call.setdefault("arguments", (args, kwargs))

    def on_residual(owner: Block, branch: str, x: Tensor, f: Tensor, total: Tensor) -> None:
        if owner.index == block.index and branch == name:
            first_call.setdefault("tokens", x)

    handle = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with eval_mode(model), probe(model, anatomy=anatomy, on_residual=on_residual):
            run(model, batch_inputs(model, images))
    finally:
        handle.remove()
    args, kwargs = first_call["arguments"]
    if not args or not isinstance(args[0], Tensor):
        raise Undefined("the first argument of its block is not the tokens")
    copied = copy.deepcopy(model).double().eval().requires_grad_(False)
    copied_block = copied.get_submodule(block.name)
    if name == "mlp":  # without what attention adds, the input of the block is that of the MLP
        patches = module_patches(copied_block)
        patches.residual_branches = block.residuals
        others = [scale for scale in patches.residuals if scale.branch != "attn"]
        patches.residuals = [*others, ResidualScale("attn", gain=0.0)]

    def branch(x: Tensor) -> Tensor:
        added: list[Tensor] = []

        def keep(owner: Block, branch: str, _: Tensor, f: Tensor, __: Tensor) -> None:
            if branch == name and owner.index == block.index:
                added.append(f)

        # Only the math kernel can be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH), probe(copied, None, None, anatomy, None, keep):
            copied_block(x, *args[1:], **kwargs)
        return added[0]

    tokens: Tensor = args[0] if name == "attn" else first_call["tokens"]
    return branch, tokens.detach().double()


def singular_spectra(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Descending singular values of the Jacobian J of `function` at x (1, …) and of I + J: all, or both ends."""
    if x.numel() <= DENSE:
        jacobian = dense_jacobian(function, x)
        return torch.linalg.svdvals(jacobian), torch.linalg.svdvals(jacobian.diagonal_scatter(jacobian.diagonal() + 1))

    def skip(v: Tensor) -> Tensor:
        forth = v + push(function, x, v)
        return forth + pull(function, x, forth)

    return _lanczos(lambda v: pull(function, x, push(function, x, v)), x), _lanczos(skip, x)


def dense_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The Jacobian by rows: images of a batch are independent, so each copy of x gives one row."""
    rows = []
    size = x.numel()
    for start in range(0, size, ROWS):
        count = min(ROWS, size - start)
        directions = torch.zeros(count, size, dtype=x.dtype, device=x.device)
        directions[torch.arange(count), start + torch.arange(count)] = 1
        rows.append(pull(function, x.expand(count, *x.shape[1:]), directions.view(count, *x.shape[1:])).flatten(1))
    return torch.cat(rows)


def pull(function: Callable[[Tensor], Tensor], x: Tensor, cotangent: Tensor) -> Tensor:
    """Jᵀ times a vector, per image of a batch."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(function(x), x, cotangent)
    return gradient


def push(function: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    """J times a vector, as the derivative of Jᵀw by w, which needs backward passes only."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        out = function(x)
        w = torch.zeros_like(out, requires_grad=True)
        (gradient,) = torch.autograd.grad(out, x, w, create_graph=True)
        (pushed,) = torch.autograd.grad(gradient, w, tangent)
    return pushed


def _lanczos(normal: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Square roots of the Ritz values of JᵀJ, descending."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    basis = [v / v.norm()]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for _ in range(min(STEPS, x.numel())):
        w = normal(basis[-1])
        diagonal.append(float((w * basis[-1]).sum()))
        known = torch.stack([b.flatten() for b in basis])
        flat = w.flatten()
        for _ in range(2):  # one step is not accurate enough in floating point
            flat = flat - known.mT @ (known @ flat)
        size = float(flat.norm())
        if not math.isfinite(size):
            raise Undefined("its Jacobian contains NaN or infinity")
        if size < 1e-12 * max(map(abs, diagonal)):
            break
        off_diagonal.append(size)
        basis.append((flat / size).view_as(x))
    steps = len(diagonal)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    side = torch.tensor(off_diagonal[: steps - 1], dtype=torch.float64)
    matrix = matrix + torch.diag(side, 1) + torch.diag(side, -1)
    return torch.linalg.eigvalsh(matrix).clamp_min(0).sqrt().flip(0)
