"""The laws on hosts that write attention in other ways, with cases for each kind of patch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.test_effective_maps import maps_and_outputs
from tests.support.other_hosts import OTHER_HOSTS
from tests.support.small_hosts import example, host, outputs, treat
from tests.surgery.test_deploy import exported, forward, inputs
from tests.surgery.test_laws import fingerprint, same
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.examine import examine

pytestmark = [
    pytest.mark.law,
    pytest.mark.usefixtures("examined_once"),
    pytest.mark.filterwarnings("ignore:.*is not applied to block"),
]

# A map as a function and as a matrix, other scores, a map by itself, hooks, residual sums, linear layers.
CASES = ("attn_scale", "l2_attention", "re_attention", "feat_scale", "no_skip", "adder(identity=false)")
# kinds of attention, number of blocks and attentions, and the cases that fit no block, with a word of the reason
EXPECTED: dict[str, tuple[set[str], int, int, dict[str, str]]] = {
    "vp_vit": ({"global"}, 2, 2, {}),
    "vp_cait": ({"global"}, 2, 2, {}),
    "vp_rvt": ({"global"}, 2, 2, {}),
    "vp_parallel": ({"global"}, 2, 4, {}),
    "vp_maxvit": ({"windowed", "global"}, 4, 4, {"adder(identity=false)": "no MLP of linear layers"}),
    "levit_conv": ({"global", "pooled-q"}, 5, 5, {"adder(identity=false)": "no MLP of linear layers"}),
    "shvit": ({"global"}, 3, 3, {"adder(identity=false)": "no MLP of linear layers"}),
    "efficientvit_msra": ({"windowed", "global"}, 3, 6, {"adder(identity=false)": "no MLP of linear layers"}),
    "tnt": ({"windowed", "global"}, 2, 4, {}),
    "hiera": ({"windowed", "pooled-q"}, 3, 3, {}),
    "hf_cvt": ({"pooled-kv"}, 6, 6, {}),
    "hf_sam": ({"windowed", "global"}, 2, 2, {}),
    "multi_query": ({"global"}, 2, 2, {}),
}
PAIRS = [(name, case) for name, (*_, refused) in EXPECTED.items() for case in CASES if case not in refused]


def test_every_host_has_an_expectation() -> None:
    assert set(EXPECTED) == set(OTHER_HOSTS)


@pytest.mark.parametrize("name", OTHER_HOSTS)
def test_attention_is_seen_and_observing_changes_nothing(name: str) -> None:
    """Every attention is observed once, with a map that gives its output; tokens of every block are observed."""
    model = host(name)
    before, plain = fingerprint(model), outputs(model, name)
    anatomy = examine(model, example(name))
    kinds, blocks, attentions, _ = EXPECTED[name]
    assert {a.kind for block in anatomy.blocks for a in block.attentions} == kinds
    assert (len(anatomy.blocks), sum(len(block.attentions) for block in anatomy.blocks)) == (blocks, attentions)
    met: list[int] = []
    with probe(model, anatomy=anatomy, on_tokens=lambda block, x: met.append(block.index)):
        assert torch.equal(outputs(model, name), plain)
    assert sorted(met) == list(range(blocks))
    pairs = maps_and_outputs(model, name)
    assert len(pairs) == attentions
    assert all(torch.allclose(mine, real, rtol=1e-4, atol=1e-4) for mine, real in pairs)
    same(before, fingerprint(model))


def test_heads_that_share_values_have_their_own_parameters() -> None:
    model = host("multi_query")
    unsmooth.apply(model, "attn_scale")
    assert [part.omega.numel() for _, part in unsmooth.parts(model)] == [3, 3]


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_a_remedy_is_applied_and_removed(name: str, case: str) -> None:
    model = host(name)
    before, plain = fingerprint(model), outputs(model, name)
    plan = unsmooth.apply(model, case)
    start = outputs(model, name)
    assert torch.allclose(start, plain, atol=1e-4 * float(plain.abs().max())) == plan.exact
    assert set(before["state"]) < set(model.state_dict()) or not plan.parameters
    unsmooth.remove(model)
    learned = outputs(treat(model, case), name)
    assert learned.isfinite().all()
    assert not torch.allclose(learned, plain, atol=1e-4 * float(plain.abs().max()))
    copied = copy.deepcopy(model)
    assert torch.equal(outputs(copied, name), learned)
    if case in ("attn_scale", "l2_attention", "re_attention"):
        pairs = maps_and_outputs(model, name)
        assert all(torch.allclose(mine, real, rtol=1e-4, atol=1e-4) for mine, real in pairs)
    unsmooth.remove(model)
    same(before, fingerprint(model))
    assert torch.equal(outputs(model, name), plain)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in EXPECTED for case in EXPECTED[name][3]])
def test_what_does_not_fit_is_refused(name: str, case: str) -> None:
    model = host(name)
    before = fingerprint(model)
    with pytest.raises(unsmooth.UnsmoothError, match=EXPECTED[name][3][case]):
        unsmooth.apply(model, case)
    same(before, fingerprint(model))


def heads_apart(model: nn.Module) -> list[Tensor]:
    return [part.omega for _, part in unsmooth.parts(model)]


@pytest.mark.parametrize("name", ["vp_parallel", "tnt", "efficientvit_msra"])
def test_each_of_several_attentions_has_its_own_parameters(name: str) -> None:
    """Each set of parameters alone changes the outputs, in another way than the others."""
    model = host(name)
    unsmooth.apply(model, "attn_scale")
    gains = heads_apart(model)
    assert len(gains) == EXPECTED[name][2]
    plain = outputs(model, name)
    seen = []
    for gain in gains[:2]:
        gain.data.fill_(0.5)
        seen.append(outputs(model, name))
        gain.data.zero_()
    assert not torch.allclose(seen[0], plain, rtol=1e-3)
    assert not torch.allclose(seen[1], plain, rtol=1e-3)
    assert not torch.allclose(seen[0], seen[1], rtol=1e-3)
    assert torch.equal(outputs(model, name), plain)


EXPORTED = [
    ("vp_vit", "attn_scale+no_skip"),
    ("vp_cait", "l2_attention+feat_scale"),
    ("levit_conv", "attn_scale"),
    ("efficientvit_msra", "attn_scale+no_skip"),
    ("hf_sam", "l2_attention"),
]


@pytest.mark.parametrize(("name", "case"), EXPORTED)
def test_an_exported_model_has_the_same_outputs(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    # A graph has the operations for any size, an eager pass over few tokens others: they round differently.
    graph = exported(model, given, strict=False)
    torch.testing.assert_close(forward(graph, given), forward(model, given), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), [EXPORTED[0], EXPORTED[2]])
def test_a_compiled_model_has_no_graph_break_and_the_same_outputs(name: str, case: str) -> None:
    model, given = treat(host(name), case), inputs(name)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(forward(compiled, given), forward(model, given))
    torch.compiler.reset()


@pytest.mark.parametrize("form", ["equation", "subscripts"])
def test_both_forms_of_einsum_compile(form: str) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a, b = "bid,bjd->bij", "bij,bjd->bid"
            if form == "equation":
                return torch.einsum(b, torch.einsum(a, x, x).softmax(-1), x)
            weights = torch.einsum(x, [0, 1, 3], x, [0, 2, 3], [0, 1, 2]).softmax(-1)
            return torch.einsum(weights, [0, 1, 2], x, [0, 2, 3], [0, 1, 3])

    from unsmooth.remedies.base import AttentionPatch
    from unsmooth.seam.patched import module_patches

    class Twice(AttentionPatch):
        def forward(self, attend, v):  # type: ignore[no-untyped-def]
            return 2 * attend(v)

    module, x = Attention(), torch.randn(2, 5, 4)
    plain = module(x)
    module_patches(module).attention.append(Twice())
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), 2 * plain)
    torch.compiler.reset()
