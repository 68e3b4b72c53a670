"""Plans: `apply` carries them out, and they have the published counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import HOSTS, REFUSED, host
from tests.surgery.test_laws import fingerprint
from unsmooth.spec import SpecItem, parse
from unsmooth.surgery.plan import fit

pytestmark = pytest.mark.law


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        (name, remedy)
        for name in ("deit", "torchvision_swin")
        for remedy in (*unsmooth.list_remedies(), "augmented_shortcut(scale=0.5, branch=mlp)")
        if (name, remedy) not in REFUSED
    ],
)
def test_apply_carries_out_the_plan(name: str, remedy: str) -> None:
    model = host(name)
    old = sum(p.numel() for p in model.parameters())
    planned = unsmooth.plan(model, remedy)
    assert unsmooth.apply(model, remedy) == planned
    assert sum(p.numel() for p in model.parameters()) - old == planned.parameters
    changed = {at for at, cls in fingerprint(model)["classes"] if hasattr(cls, "_unsmooth_host")}
    hooked = {at for at, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks}
    # A stand-in for a linear layer is planned by its weight, and hangs on the block that holds it.
    weights = {site for site in planned.sites if site.endswith("weight")}
    holders = {min((at for at in changed if weight.startswith(at + ".")), key=len) for weight in weights}
    assert changed | hooked == {*planned.sites} - weights | holders


@pytest.fixture(scope="module")
def deit_small() -> nn.Module:
    with torch.device("meta"):  # a plan needs sizes only
        return unsmooth.create_model("deit_small_patch16_224")


@pytest.mark.parametrize(
    ("remedy", "parameters", "flops"),
    [
        ("augmented_shortcut", 92_160, None),
        ("attn_scale", 12 * 6, 12 * 3 * 197 * 384),
        ("feat_scale", 12 * 2 * 384, 12 * 3 * 197 * 384),
        ("context_broadcast", 0, 12 * 3 * 197 * 384),
        ("context_broadcast(position=mid)", 0, 12 * 3 * 197 * 4 * 384),
        ("context_broadcast(kind=scaled)", 12 * 384, 12 * 2 * 197 * 384),
        ("no_skip", 0, 0),
    ],
)
def test_published_counts_of_deit_small(deit_small: nn.Module, remedy: str, parameters: int, flops: int | None) -> None:
    planned = unsmooth.plan(deit_small, remedy)
    assert planned.parameters == parameters
    assert flops is None or planned.flops == flops
    assert f"{parameters:,} new parameters" in str(planned)
    assert len(planned.blocks) == 12


def test_a_plan_lists_blocks_that_do_not_fit() -> None:
    planned = unsmooth.plan(host("pvt_v2"), "adder_attention")
    first, *rest = str(planned).split("\n")
    assert first.startswith("adder_attention: 1 sites")
    assert [line.split(":")[0] for line in rest] == [f"  not applicable to block {i}" for i in (0, 1, 2)]


def test_a_spec_item_is_accepted_and_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.surgery.plan.parse_item", None)
    spec = parse(f"{HOSTS['deit']}+no_skip(branch=mlp, blocks=1)+attn_scale")
    model = unsmooth.create_model(spec)
    assert unsmooth.applied(model) == spec
    item = SpecItem("feat_scale", {"blocks": "0"})
    assert unsmooth.plan(model, item).sites == unsmooth.apply(model, item).sites


def test_a_remedy_fits_if_it_can_be_applied_to_a_block() -> None:
    model = host("pvt_v2")
    assert fit(model, "adder_attention")  # on the last block alone
    gate = fit(model, "context_broadcast(kind=gate)")
    assert not gate and gate.plan is not None and "class token" in gate.reason
    wrong = fit(model, SpecItem("no_skip", {"branch": "none"}))
    assert not wrong and wrong.plan is None and "branch" in wrong.reason
    unsmooth.apply(model, "attn_scale")
    assert "already applied" in fit(model, "attn_scale").reason
