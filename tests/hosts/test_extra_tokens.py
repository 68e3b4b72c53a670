"""Which hosts take more tokens than they have."""

from __future__ import annotations

import pytest

from tests.support.small_hosts import host, look_trained
from unsmooth.hosts.examine import examine
from unsmooth.hosts.extra_tokens import why_no_extra_tokens
from unsmooth.surgery.create import create_model

DINOV3 = (
    "hf:dinov3_vit(num_hidden_layers=2, hidden_size=48, num_attention_heads=3, intermediate_size=96, image_size=32, "
    "patch_size=8)"
)


@pytest.mark.parametrize("name", ["deit", "dinov2_registers", "hf_vit", "torchvision_vit"])
def test_most_hosts_do(name: str) -> None:
    model = host(name)
    assert why_no_extra_tokens(model, examine(model)) == ""


@pytest.mark.parametrize(
    ("name", "reason"), [("swin", "different numbers"), ("beit", "do not take"), ("eva02", "do not take")]
)
def test_positions_and_sizes_that_are_fixed_are_a_reason(name: str, reason: str) -> None:
    model = host(name)
    assert reason in why_no_extra_tokens(model, examine(model))


def test_positions_that_count_from_the_last_token_are_a_reason() -> None:
    """The rotary embedding of DINOv3 rotates the last tokens, one per patch: with one more, each has another's."""
    model = look_trained(create_model(DINOV3)).eval()
    assert why_no_extra_tokens(model, examine(model)) == "one more token changes the positions of the others"
