"""What a model costs: operations by the formula, and times that leave the model alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import host, treat
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost
from unsmooth.results.bench import Quartiles


def by_formula(width: int, hidden: int, heads: int, classes: int, tokens: int = 17, depth: int = 2) -> int:
    """Multiply-adds of a ViT on 32 × 32 pixels in patches of 8, twice."""
    patches = 16 * 3 * 8 * 8 * width
    attention = tokens * width * 3 * width + 2 * heads * tokens * tokens * (width // heads) + tokens * width * width
    mlp = 2 * tokens * width * hidden
    return 2 * (patches + depth * (attention + mlp) + width * classes)


@pytest.mark.parametrize(
    ("name", "hidden", "classes"), [("deit", 192, 5), ("hf_vit", 96, 2), ("torchvision_vit", 96, 5)]
)
def test_flops_are_the_formulas_attention_included(name: str, hidden: int, classes: int) -> None:
    assert cost.flops(host(name)) == by_formula(48, hidden, 3, classes)
    assert cost.flops(host(name).train()) == by_formula(48, hidden, 3, classes)


def test_flops_of_attention_that_has_a_fast_path_are_counted() -> None:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 4, 48, 96, num_classes=5).eval()  # an odd number of heads has none
    model.image_size = 32
    assert cost.flops(model) == by_formula(48, 96, 4, 5)


def test_flops_of_a_host_that_torch_s_counter_fails_on() -> None:
    assert cost.flops(host("cait")) > 0


def test_flops_leaves_the_fast_path_as_it_was() -> None:
    assert torch.backends.mha.get_fastpath_enabled()
    cost.flops(host("torchvision_vit"))
    assert torch.backends.mha.get_fastpath_enabled()


def test_parameters_of_a_treated_model_are_more() -> None:
    assert cost.parameters(host("deit")) == sum(p.numel() for p in host("deit").parameters())
    assert (
        cost.parameters(treat(host("deit"), "attn_scale")) == cost.parameters(host("deit")) + 6
    )  # two blocks, three heads


@pytest.mark.parametrize("training", [False, True])
def test_throughput_interleaves_and_changes_nothing(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    models: dict[str, nn.Module] = {"plain": host("deit"), "treated": treat(host("deit"), "attn_scale")}
    models["plain"].train()
    states = {name: {key: value.clone() for key, value in m.state_dict().items()} for name, m in models.items()}
    random = torch.random.get_rng_state()
    # Seconds of each measurement, made up: a round in which the machine is busy is busy for both.
    order: list[str] = []
    seconds = {"plain": iter([1.0, 2.0, 4.0, 1.0]), "treated": iter([2.0, 4.0, 8.0, 4.0])}
    names = iter(models)

    def made_up(step: object, _: float) -> object:
        name = next(names)
        assert callable(step)
        step()

        def measure() -> float:
            order.append(name)
            return next(seconds[name])

        return measure

    monkeypatch.setattr(cost, "_timer", made_up)
    speeds = cost.throughput(models, batch_size=4, rounds=4, training=training)
    assert order == ["treated", "plain", "plain", "treated"] * 2
    assert speeds["plain"].ratio == Quartiles(1.0, 1.0, 1.0)
    assert speeds["treated"].ratio == Quartiles(low=0.4375, median=0.5, high=0.5)
    assert speeds["plain"].images_per_second == 3.0 and speeds["plain"].quartiles == (1.75, 4.0)
    assert models["plain"].training and not models["treated"].training
    for name, model in models.items():
        assert all(torch.equal(value, states[name][key]) for key, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random, torch.random.get_rng_state())


@pytest.mark.parametrize("training", [False, True])
def test_throughput_measures(training: bool) -> None:
    speeds = cost.throughput({"a": host("hf_vit")}, batch_size=2, rounds=2, training=training, seconds=0.001)
    assert speeds["a"].images_per_second > 0 and speeds["a"].rounds == 2


def test_throughput_refuses_nothing_to_measure() -> None:
    for models, size in (({}, 1), ({"a": unsmooth.create_model("deit_tiny_patch16_224(depth=1)")}, 0)):
        with pytest.raises(UnsmoothError, match="at least 1"):
            cost.throughput(models, size)
