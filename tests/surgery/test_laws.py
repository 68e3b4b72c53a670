"""The laws of the design, over the whole registry and every host family."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import CASES, HOSTS, REFUSED, host, outputs, pairs, treat
from unsmooth import remedies
from unsmooth.remedies.base import REGISTRY, LossRemedy
from unsmooth.spec import parse_item
from unsmooth.surgery import apply as surgery_apply
from unsmooth.surgery.record import RECORD
from unsmooth.utils.options import describe

pytestmark = [pytest.mark.law, pytest.mark.usefixtures("examined_once")]


def fingerprint(model: nn.Module) -> dict[str, object]:
    """All of a model that surgery could touch: classes, attributes, children, hooks, flags and bits."""
    return {
        "classes": [(name, type(m)) for name, m in model.named_modules()],
        "attributes": [sorted(m.__dict__) for m in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "flags": [(m._forward_hooks_with_kwargs, m._forward_pre_hooks_with_kwargs) for m in model.modules()],
        "training": [m.training for m in model.modules()],
        "gradients": [(name, p.requires_grad) for name, p in model.named_parameters()],
        "state": {name: value.clone() for name, value in model.state_dict().items()},
    }


def same(a: dict[str, object], b: dict[str, object]) -> None:
    for key in a:
        if key == "state":
            assert list(a[key]) == list(b[key])
            assert all(torch.equal(x, y) for x, y in zip(a[key].values(), b[key].values(), strict=True))
        else:
            assert a[key] == b[key], key


@pytest.mark.filterwarnings("ignore:.*is not applied to block")
@pytest.mark.parametrize(("name", "case"), pairs())
def test_a_remedy_is_applied_and_removed(name: str, case: str) -> None:
    """Keys only added, outputs equal where claimed, changed once learned, bit for bit restored, never twice."""
    model = host(name)
    before, plain = fingerprint(model), outputs(model, name)
    parameters = sum(p.numel() for p in model.parameters())
    if (name, case) in REFUSED:
        with pytest.raises(unsmooth.UnsmoothError, match=REFUSED[name, case]):
            unsmooth.apply(model, case)
        same(before, fingerprint(model))
        return
    plan = unsmooth.plan(model, case)
    same(before, fingerprint(model))

    unsmooth.apply(model, case)
    keys = model.state_dict().keys()
    assert set(before["state"]) <= set(keys)
    assert all("unsmooth_" in key for key in set(keys) - set(before["state"]))
    assert sum(p.numel() for p in model.parameters()) - parameters == plan.parameters
    start = outputs(model, name)
    claimed = remedies.get(parse_item(case).name).start_error * float(plain.abs().max())
    assert torch.allclose(start, plain, atol=claimed) == plan.exact

    unsmooth.remove(model)
    treat(model, case)
    learned = outputs(model, name)
    assert learned.isfinite().all()
    if isinstance(remedies.get(parse_item(case).name), LossRemedy):
        assert torch.equal(learned, plain), "it acts on the loss alone"
    else:
        assert not torch.allclose(learned, plain, atol=1e-3 * float(plain.abs().max()))
    with pytest.raises(unsmooth.UnsmoothError, match="already applied"):
        unsmooth.apply(model, case)
    assert torch.equal(outputs(model, name), learned)

    unsmooth.remove(model)
    same(before, fingerprint(model))
    assert torch.equal(outputs(model, name), plain)


@pytest.mark.filterwarnings("ignore:.*is not applied to block")
@pytest.mark.parametrize("case", CASES)
def test_a_failed_application_leaves_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the surgery after its first part: the model is as it was."""
    model = host("deit")
    before = fingerprint(model)
    attach, calls = surgery_apply._attach, []

    def fails_later(*args: object) -> object:
        calls.append(args)
        if len(calls) > 1 or "token_graying" in case or "blocks" in case:
            raise KeyboardInterrupt
        return attach(*args)

    monkeypatch.setattr("unsmooth.surgery.apply._attach", fails_later)
    with pytest.raises(KeyboardInterrupt):
        unsmooth.apply(model, case)
    after = fingerprint(model)
    same(before, after)


@pytest.mark.filterwarnings("ignore:.*is not applied to block")
@pytest.mark.parametrize(("name", "case"), pairs(HOSTS, refused=False, few=True))
def test_the_spec_rebuilds_the_model_and_save_keeps_it(name: str, case: str, tmp_path: Path) -> None:
    model = treat(host(name), case)
    want = outputs(model, name)
    spec = str(unsmooth.applied(model))
    rebuilt = unsmooth.create_model(spec).eval()
    assert str(unsmooth.applied(rebuilt)) == spec
    assert list(rebuilt.state_dict()) == list(model.state_dict())
    unsmooth.save(model, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "recipe.json"]
    assert json.loads((tmp_path / "recipe.json").read_text())["spec"] == spec
    assert torch.equal(outputs(unsmooth.load(tmp_path).eval(), name), want)


@pytest.mark.filterwarnings("ignore:.*is not applied to block")
@pytest.mark.parametrize(("name", "case"), pairs(refused=False, few=True))
def test_copies_are_independent(name: str, case: str) -> None:
    """A deep copy uses its own parameters, and can be undone without touching the original."""
    model = treat(host(name), case)
    want = outputs(model, name)
    copied = copy.deepcopy(model)
    assert torch.equal(outputs(copied, name), want)
    for _, part in unsmooth.parts(copied):
        for parameter in part.parameters():
            parameter.data.mul_(-1.5)
    assert torch.equal(outputs(model, name), want)
    unsmooth.remove(copied)
    assert torch.equal(outputs(copied, name), outputs(host(name), name))
    assert torch.equal(outputs(model, name), want)


def test_names_are_files_are_keys_and_each_has_a_case() -> None:
    folder = Path(remedies.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base"}
    assert files == set(REGISTRY) == set(unsmooth.list_remedies())
    assert [parse_item(case).name for case in CASES[: len(files)]] != []
    assert {parse_item(case).name for case in CASES[: len(files)]} == files


@pytest.mark.parametrize("key", unsmooth.list_remedies())
def test_every_remedy_states_its_claims(key: str) -> None:
    remedy = remedies.get(key)
    assert remedy.departures
    assert remedy.paper
    assert all(option.help for option in describe(remedy.Options))
    assert all(other in REGISTRY for other in remedy.conflicts)
    assert all(key in remedies.get(other).conflicts for other in remedy.conflicts), "conflicts go both ways"
    module = __import__(f"unsmooth.remedies.{key}", fromlist=["_"])
    assert module.__doc__
    assert remedy.acts_on


def test_nothing_is_left_on_a_host_that_was_not_built_from_a_spec() -> None:
    model = host("torchvision_vit")
    unsmooth.apply(model, "attn_scale")
    assert RECORD in model.__dict__
    unsmooth.remove(model, "attn_scale")
    assert RECORD not in model.__dict__
