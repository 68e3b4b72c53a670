"""Products in standard form: however an einsum or a matrix product is written, `left @ right` is the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.seam.test_intercept import Witness
from unsmooth.seam.intercept import AttentionCall, AttentionInterceptor, MapLayout
from unsmooth.seam.products import einsum_arguments, einsum_product, matrix_product, read_equation

SIZES = dict(zip("bhgijdew", (2, 3, 5, 4, 6, 7, 8, 9), strict=True))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factors(equation: str) -> tuple[Tensor, Tensor]:
    """Random operands for an equation whose labels are letters."""
    inputs = equation.replace(" ", "").partition("->")[0].split(",")
    a, b = (draw(*(SIZES[label] for label in labels), seed=i) for i, labels in enumerate(inputs))
    return a, b


EQUATIONS = [
    "b h i d, b h j d -> b h i j",
    "bhij,bhjd->bhid",
    "b i j, b j d -> b i d",
    "b h i j, b h j d -> b i h d",  # heads after tokens
    "b h j d, b h i j -> b h i d",  # the map second
    "b i h d, b j h d -> b h i j",  # tokens before heads
    "b h i j, b j d -> b h i d",  # heads share their values
    "b g h i d, b h j d -> b g h i j",
    "b h i j, b h j w d -> b h i w d",  # windows of values
    "b h i j, h g -> b g i j",  # a mix of heads
    "i d, d j -> i j",
    "id,dj",  # without an arrow: the sum over d
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_einsum_in_standard_form_is_the_einsum(equation: str) -> None:
    a, b = factors(equation)
    wanted = torch.einsum(equation, a, b)
    product = einsum_product(torch.einsum, (equation, a, b))
    assert product is not None
    standard = product.left @ product.right
    torch.testing.assert_close(product.result(standard), wanted)
    torch.testing.assert_close(product.standard(wanted), standard)
    assert torch.equal(product.run(), wanted)
    other = product.transposed()
    torch.testing.assert_close(other.result(other.left @ other.right), wanted)
    torch.testing.assert_close(other.standard(wanted), other.left @ other.right)
    assert other.operands == (b, a)


def test_an_ellipsis_stands_for_the_axes_that_it_hides() -> None:
    a, b = draw(2, 3, 4, 5), draw(2, 3, 6, 5, seed=1)
    product = einsum_product(torch.einsum, ("... i d, ... j d -> ... i j", a, b))
    assert product is not None
    torch.testing.assert_close(product.result(product.left @ product.right), a @ b.mT)
    few = draw(6, 5, seed=2)  # the second operand has no such axes
    product = einsum_product(torch.einsum, ("... i d, ... j d -> ... i j", a, few))
    assert product is not None
    torch.testing.assert_close(product.result(product.left @ product.right), a @ few.mT)


OTHERS = [
    ("b i d, b i d -> b i", 3, 3),  # no columns: not a matrix product
    ("b h i j, b h j d -> b h d", 4, 4),  # sums over rows too
    ("b h i j, b h i j -> b h", 4, 4),  # sums over two axes
    ("i, j -> i j", 1, 1),  # sums over none
    ("b i i, b i d -> b d", 3, 3),  # a diagonal
    ("b i j, b j d, d e -> b i e", 3, 3),  # three operands
    ("b i j, b j d -> b i d", 4, 3),  # another number of axes than labels
]


@pytest.mark.parametrize(("equation", "axes_a", "axes_b"), OTHERS)
def test_an_einsum_that_is_no_matrix_product_has_no_standard_form(equation: str, axes_a: int, axes_b: int) -> None:
    assert read_equation(equation, axes_a, axes_b) is None


def test_other_einsums_run_untouched() -> None:
    x = draw(3, 4)
    with Witness() as seen:
        x.softmax(-1)
        assert torch.equal(torch.einsum("ij->ji", x), x.T)
        assert torch.equal(torch.einsum("ij,jk,kl->il", x, x.T, x), torch.einsum("ij,jk,kl->il", x, x.T, x))
    assert not seen.calls


def test_both_argument_forms_of_an_einsum_are_read() -> None:
    a, b = draw(2, 3, 4), draw(2, 4, 5, seed=1)
    assert einsum_arguments("bij,bjd->bid", a, b) == ("bij,bjd->bid", (a, b))
    assert einsum_arguments("bij,bjd->bid", [a, b]) == ("bij,bjd->bid", [a, b])
    assert einsum_arguments(a, [0, 1, 2], b, [0, 2, 30], [0, 1, 30])[0] == "ABC,ACe->ABe"
    assert einsum_arguments(a, [..., 1, 2], b, [..., 2, 3])[0] == "...BC,...CD"


# Attention in every spelling

Q, K, V = draw(2, 3, 5, 4), draw(2, 3, 6, 4, seed=1), draw(2, 3, 6, 7, seed=2)
VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "equation": lambda a, v: torch.einsum("b h i j, b h j d -> b h i d", a, v),
    "operands as a list": lambda a, v: torch.einsum("bhij,bhjd->bhid", [a, v]),
    "subscripts": lambda a, v: torch.einsum(a, [0, 1, 2, 3], v, [0, 1, 3, 4], [0, 1, 2, 4]),
    "ellipsis": lambda a, v: torch.einsum("...ij,...jd->...id", a, v),
    "map second": lambda a, v: torch.einsum("bhjd,bhij->bhid", v, a),
    "map on the right": lambda a, v: (v.mT @ a.mT).mT,
    "map on the right, transpose": lambda a, v: torch.matmul(v.transpose(-2, -1), a.transpose(-2, -1)).mT,
    "bmm on the right": lambda a, v: torch.bmm(v.flatten(0, 1).mT, a.flatten(0, 1).mT).mT.unflatten(0, (2, 3)),
}


@pytest.mark.parametrize("spelling", VALUES)
def test_attention_is_intercepted_for_every_spelling(spelling: str) -> None:
    def attention() -> Tensor:
        return VALUES[spelling]((torch.einsum("bhid,bhjd->bhij", Q, K) / 2).softmax(-1), V)

    wanted = attention()
    weights = (Q @ K.mT / 2).softmax(-1)
    with Witness() as seen:
        assert torch.equal(attention(), wanted)
    (call,) = seen.calls
    assert seen.scores == 1
    torch.testing.assert_close(call.map().reshape(weights.shape), weights)
    torch.testing.assert_close(call.map() @ call.v, call.attend(call.v))
    torch.testing.assert_close(call.attend(2 * call.v), 2 * call.attend(call.v))
    torch.testing.assert_close(wanted, weights @ V)


class Doubles(AttentionInterceptor):
    """Doubles the values of every attention, with a known layout."""

    def __init__(self, layout: MapLayout) -> None:
        super().__init__()
        self.known = layout
        self.shapes: list[Any] = []

    def layout(self) -> MapLayout:
        return self.known

    def on_attention(self, call: AttentionCall) -> Tensor:
        self.shapes.append(tuple(call.v.shape))
        assert call.map().shape[:-2] == call.v.shape[:-2]
        return call.attend(2 * call.v)


@pytest.mark.parametrize("spelling", VALUES)
def test_changed_values_come_out_in_the_layout_of_the_host(spelling: str) -> None:
    weights = Q @ K.mT
    with Doubles(MapLayout()):
        out = VALUES[spelling](weights.softmax(-1), V)
    torch.testing.assert_close(out, 2 * weights.softmax(-1) @ V)


@pytest.mark.parametrize("fused", [True, False])
def test_heads_in_the_first_axis_get_an_axis_of_their_own(fused: bool) -> None:
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))

    def attention() -> Tensor:
        if fused:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.mT / 2).softmax(-1) @ v

    wanted = attention()
    with Doubles(MapLayout(heads=3)) as seen:
        torch.testing.assert_close(attention(), 2 * wanted)
    assert seen.shapes == [(2, 3, 6, 7)]


def test_a_square_map_is_found_on_the_side_that_the_layout_names() -> None:
    """As many channels as tokens: both factors have the size of a map."""
    values, logits = draw(2, 5, 5), draw(2, 5, 5, seed=1)
    for side, wanted in (("left", values.mT), ("right", logits.softmax(-1))):
        maps: list[Tensor] = []

        class Keeps(Doubles):
            def on_attention(self, call: AttentionCall) -> Tensor:
                maps.append(call.map())  # noqa: B023
                return super().on_attention(call)

        with Keeps(MapLayout(side)):
            out = values.mT @ logits.softmax(-1).mT
        torch.testing.assert_close(out, 2 * values.mT @ logits.softmax(-1).mT)
        torch.testing.assert_close(maps[0], wanted)


def test_matrix_products_by_name() -> None:
    a, b = draw(2, 3, 4), draw(2, 4, 5, seed=1)
    for func, kwargs in ((torch.matmul, {"other": b}), (torch.bmm, {"mat2": b}), (Tensor.matmul, {"tensor2": b})):
        product = matrix_product(func, (a,), kwargs)
        assert product.operands == (a, b)
