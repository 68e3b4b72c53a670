"""The block-circulant product and the augmented shortcut, against matrices and GELU from NumPy and SciPy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import circulant
from scipy.special import erf
from torch import Tensor

from unsmooth.remedies.augmented_shortcut import AugmentedPaths
from unsmooth.remedies.kernels import circulant as kernel
from unsmooth.remedies.kernels import circulant_dense, circulant_factors
from unsmooth.remedies.kernels.circulant import Prepared, apply_fft, augment, dense, prepare

Array = NDArray[np.float64]

# (T, b, m): odd sizes (no split), one split, two splits, sizes that could be split further.
SHAPES = [
    (1, 1, 1),
    (2, 3, 5),
    (1, 2, 2),
    (3, 2, 6),
    (2, 1, 4),
    (2, 3, 12),
    (1, 4, 7),
    (2, 4, 96),
    (2, 2, 32),
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True, params=["dense if small", "split"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products by the dense matrices, or split and in chunks as large ones."""
    if request.param == "split":
        monkeypatch.setattr(kernel, "_FEW_CHANNELS", 0)
        monkeypatch.setattr(circulant_factors, "_CHUNK", 4)


def make(shape: tuple[int, int, int], *lead: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """``x [*lead, d]``, vectors and bias, at a scale where GELU is neither linear nor flat."""
    t, b, m = shape
    rng = np.random.default_rng(7)
    arrays = (
        rng.standard_normal((*lead, b * m)),
        rng.standard_normal((t, b, b, m)) / np.sqrt(b * m),
        rng.standard_normal((t, b * m)),
    )
    x, vectors, bias = (torch.from_numpy(a).to(dtype) for a in arrays)
    return x, vectors, bias


def ref_dense(vectors: Tensor) -> list[Array]:
    return [np.block([[circulant(c) for c in row] for row in theta]) for theta in vectors.double().numpy()]


def ref_augment(x: Tensor, vectors: Tensor, bias: Tensor) -> Array:
    total = np.zeros(x.shape)
    for theta, shift in zip(ref_dense(vectors), bias.double().numpy(), strict=True):
        y = x.double().numpy() @ theta.T + shift
        total += 0.5 * y * (1 + erf(y / np.sqrt(2)))
    return total


@shapes
def test_dense_is_scipy_circulant(shape: tuple[int, int, int]) -> None:
    _, vectors, _ = make(shape)
    np.testing.assert_array_equal(dense(vectors).numpy(), np.stack(ref_dense(vectors)))


@shapes
def test_dense_of_few_channels_is_scipy_circulant(shape: tuple[int, int, int]) -> None:
    _, vectors, _ = make(shape)
    expected = np.concatenate([theta.T for theta in ref_dense(vectors)], axis=1)
    np.testing.assert_array_equal(circulant_dense.matrix(vectors).numpy(), expected)


@shapes
def test_fft_is_dense(shape: tuple[int, int, int]) -> None:
    x, vectors, _ = make(shape, 2, 3)
    expected = np.stack([x.numpy() @ theta.T for theta in ref_dense(vectors)], axis=-2)
    np.testing.assert_allclose(apply_fft(x, vectors).numpy(), expected, atol=1e-12)


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_augment(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x, vectors, bias = make(shape, 2, 3, dtype=dtype)
    y = augment(x, vectors, bias)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    atol = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(y.numpy(), ref_augment(x, vectors, bias), atol=atol)
    assert torch.equal(augment(x, prepare(vectors), bias), y)


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0, 3), (2, 1, 3)], ids=str)
def test_leading_axes(lead: tuple[int, ...]) -> None:
    x, vectors, bias = make((2, 3, 4), *lead)
    np.testing.assert_allclose(augment(x, vectors, bias).numpy(), ref_augment(x, vectors, bias), atol=1e-12)


@pytest.mark.parametrize(("m", "products"), [(5, 1.0), (6, 0.5), (12, 0.375), (96, 0.25)])
def test_split_saves_products(m: int, products: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_FEW_CHANNELS", 0)
    t, b = 2, 3
    prepared = prepare(torch.zeros(t, b, b, m))
    assert isinstance(prepared, Prepared)
    assert prepared.blocks == b
    assert sum(w.numel() for w in prepared.weights) == products * t * (b * m) ** 2


@pytest.mark.parametrize("shape", [(2, 2, 8), (1, 2, 3), (3, 1, 6), (1, 1, 2)], ids=str)
def test_gradients(shape: tuple[int, int, int]) -> None:
    x, vectors, bias = (a.requires_grad_() for a in make(shape, 2))
    assert torch.autograd.gradcheck(augment, (x, vectors, bias))
    assert torch.autograd.gradcheck(apply_fft, (x, vectors))
    assert torch.autograd.gradcheck(dense, (vectors,))


@pytest.mark.parametrize(
    "shape", [(2, 2, 8), *(pytest.param(s, marks=pytest.mark.full) for s in ((1, 1, 16), (3, 2, 6)))], ids=str
)
def test_gradients_of_chunks_onto_another_tensor(shape: tuple[int, int, int]) -> None:
    x, vectors, bias = (a.requires_grad_() for a in make(shape, 3, 3))
    onto = torch.randn_like(x).requires_grad_()
    assert torch.autograd.gradcheck(augment, (x, vectors, bias, onto))
    assert torch.autograd.gradgradcheck(augment, (x, vectors, bias, onto))


@shapes
@pytest.mark.parametrize("grad", [False, True])
def test_onto(shape: tuple[int, int, int], grad: bool) -> None:
    x, vectors, bias = make(shape, 3, 3)
    onto, before = (value := torch.randn_like(x)).requires_grad_(grad), value.detach().clone()
    with torch.set_grad_enabled(grad):
        y = augment(x, prepare(vectors, bias), bias, onto)
        single = augment(x, prepare(vectors), bias, onto.float())
    np.testing.assert_allclose(y.detach().numpy(), before.numpy() + ref_augment(x, vectors, bias), atol=1e-12)
    torch.testing.assert_close(single, y, atol=1e-5, rtol=1e-5)
    assert single.dtype == torch.float64
    assert torch.equal(onto, before)
    assert y.requires_grad == grad


@pytest.mark.parametrize("m", [5, 8])
def test_inference_mode_wins_over_enabled_gradients(m: int) -> None:
    """As everywhere in torch: nothing is recorded, and a later training pass has its gradients."""
    x, vectors, bias = (a.requires_grad_() for a in make((2, 3, m), 4))
    with torch.inference_mode(), torch.enable_grad():
        y = augment(x, vectors, bias)
    torch.testing.assert_close(y, augment(x, vectors, bias))
    assert torch.autograd.gradcheck(augment, (x, vectors, bias))


@pytest.mark.parametrize("wanted", range(3))
def test_each_gradient_alone(wanted: int) -> None:
    inputs = make((2, 2, 8), 3)
    inputs[wanted].requires_grad_()
    assert torch.autograd.gradcheck(augment, inputs)


@pytest.mark.parametrize("m", [3, 8])
def test_forward_mode_and_vmap(m: int) -> None:
    x, vectors, bias = make((2, 2, m), 3)
    reverse = torch.func.jacrev(augment)(x, vectors, bias)
    torch.testing.assert_close(torch.func.jacfwd(augment)(x, vectors, bias), reverse)
    each = torch.func.vmap(augment, in_dims=(0, None, None))(x, vectors, bias)
    torch.testing.assert_close(each, augment(x, vectors, bias))


@pytest.mark.parametrize("m", [3, 8])
@pytest.mark.parametrize("no_grad", [torch.no_grad, torch.inference_mode])
def test_inputs_stay_untouched(m: int, no_grad: type[torch.no_grad] | type[torch.inference_mode]) -> None:
    inputs = make((2, 2, m), 5)
    before = [a.clone() for a in inputs]
    with no_grad():
        prepared = prepare(inputs[1])
        weights = [w.clone() for w in prepared.weights]
        first = augment(inputs[0], prepared, inputs[2])
        assert torch.equal(augment(inputs[0], prepared, inputs[2]), first)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(prepared.weights, weights, strict=True))


def test_non_contiguous() -> None:
    x, vectors, bias = make((2, 3, 4), 12, 5)
    vectors = vectors.permute(0, 2, 1, 3)
    for view in (x[::2, 1:4], x.transpose(0, 1), x[:, :1].expand(12, 5, 12), x.permute(2, 1, 0)):
        y = augment(view, vectors, bias)
        np.testing.assert_allclose(y.numpy(), ref_augment(view, vectors, bias), atol=1e-12)


@pytest.mark.parametrize("m", [pytest.param(3, marks=pytest.mark.full), 8])
@pytest.mark.parametrize("grad", [False, True])
def test_compile(m: int, grad: bool) -> None:
    x, vectors, bias = (a.requires_grad_(grad) for a in make((2, 2, m), 2, 3))
    torch.compiler.reset()  # sizes seen before would be taken for dynamic
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager", dynamic=False)
    y, expected = compiled(x, vectors, bias), augment(x, vectors, bias)
    torch.testing.assert_close(y, expected)
    if grad:
        got, wanted = (torch.autograd.grad(a.square().sum(), (x, vectors, bias)) for a in (y, expected))
        torch.testing.assert_close(got, wanted)
    else:
        torch.testing.assert_close(compiled(x, prepare(vectors), bias), expected)


class Shortcut(torch.nn.Module):
    def __init__(self, vectors: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.vectors, self.bias = torch.nn.Parameter(vectors), torch.nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return augment(x, self.vectors, self.bias)


@pytest.mark.parametrize("m", [3, 8])
def test_export(m: int) -> None:
    x, vectors, bias = make((2, 2, m), 2, 3)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(Shortcut(vectors, bias), (x,), dynamic_shapes={"x": {0: batch}}).module()
    for y in (x, torch.cat((x, -x, x))):
        torch.testing.assert_close(program(y), augment(y, vectors, bias))


@pytest.mark.parametrize("m", [3, 8])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("low", [False, True])
def test_bf16_autocast(m: int, grad: bool, low: bool) -> None:
    x, vectors, bias = (a.requires_grad_(grad) for a in make((2, 4, m), 2, 3, dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        y = augment(x.bfloat16() if low else x, vectors, bias)
    assert y.dtype == torch.bfloat16
    expected = ref_augment(x.detach(), vectors.detach(), bias.detach())
    np.testing.assert_allclose(y.detach().float().numpy(), expected, atol=0.1)
    if grad:
        y.float().square().sum().backward()
        for a in (x, vectors, bias):
            assert a.grad is not None
            assert a.grad.dtype == torch.float32
            assert a.grad.isfinite().all()


def test_kept_matrices_follow_the_vectors() -> None:
    """In inference the matrices are kept; every way to change the vectors is seen, also one without a version."""
    paths = AugmentedPaths(16, 2, 2, gained=False)
    x = torch.randn(3, 16)
    names = ("vectors", "bias")

    def expected() -> Tensor:
        with torch.no_grad():
            return x + augment(x, paths.vectors, paths.bias)

    changes = [
        lambda tensor: None,
        lambda tensor: tensor.data.mul_(2),
        lambda tensor: tensor.data.__setitem__(0, 0.1),
        lambda tensor: paths.load_state_dict({name: 0.5 * value for name, value in paths.state_dict().items()}),
        lambda tensor: setattr(tensor, "data", tensor.data.flip(0)),
    ]
    for change in changes:
        for name in names:
            change(getattr(paths, name))
            for _ in range(2):
                with torch.no_grad():
                    torch.testing.assert_close(paths.treat(x, x), expected())
            torch.testing.assert_close(paths.treat(x, x), expected())  # with gradients
    assert copy.deepcopy(paths)._kept is None
    assert paths.double().treat(x.double(), x.double()).dtype == torch.float64


@pytest.mark.parametrize("channels", [16, 32])
def test_matrices_are_not_kept_of_transformed_vectors(channels: int) -> None:
    """Several models at once, in inference: vectors of each, as in an ensemble by `torch.func`."""
    paths = [AugmentedPaths(channels, 2, 2, gained=False) for _ in range(3)]
    x = torch.randn(3, 5, channels)
    parameters, _ = torch.func.stack_module_state(paths)  # type: ignore[arg-type]

    def run(values: dict[str, Tensor], tokens: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(paths[0], values, (paths[0], (tokens,), {}, tokens))
        return result

    with torch.no_grad():
        expected = torch.stack([path.treat(tokens, tokens) for path, tokens in zip(paths, x, strict=True)])
        torch.testing.assert_close(torch.func.vmap(run)(parameters, x), expected)
        values = {name: value[1] for name, value in parameters.items()}
        torch.testing.assert_close(run(values, x[1]), expected[1])  # after the matrices of the first were kept
