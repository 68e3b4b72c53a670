"""Models without a configuration: the size of their images is found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsmooth


class HomeWritten(nn.Module):
    """A ViT as people write it: an encoder of torch, patches by a convolution, learned positions."""

    def __init__(self, side: int = 48, patch: int = 8, channels: int = 3, sized: bool = False, learned: bool = True):
        super().__init__()
        if sized:
            self.img_size = side
        self.side = side
        self.to_patches = nn.Conv2d(channels, 24, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, 24))
        positions = torch.zeros(1, (side // patch) ** 2 + 1, 24)
        if learned:
            self.pos_embedding = nn.Parameter(positions)
        else:
            self.register_buffer("sinusoids", positions)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.to_patches(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
        x = x + (self.pos_embedding if hasattr(self, "pos_embedding") else self.sinusoids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    "model",
    [
        HomeWritten(48, sized=True),
        HomeWritten(48),  # known from the position embedding
        HomeWritten(40, 4, channels=1),
        HomeWritten(64, learned=False),  # one of the usual sizes
    ],
)
def test_apply_plan_and_diagnose_find_the_size(model: HomeWritten) -> None:
    assert unsmooth.plan(model, "attn_scale").sites
    unsmooth.apply(model, "attn_scale")
    diagnosis = unsmooth.diagnose(model, limit=2, vitals="token_cosine", reference=False)
    assert diagnosis.model.blocks[0].tokens == model.pos_embedding.shape[1] if hasattr(model, "pos_embedding") else True


def test_the_size_of_given_images_is_used() -> None:
    model = HomeWritten(56, learned=False)  # not one of the usual sizes
    diagnosis = unsmooth.diagnose(model, torch.randn(2, 3, 56, 56), vitals="token_cosine", reference=False)
    assert len(diagnosis["token_cosine"]) == 2


def test_otherwise_the_error_shows_how_to_pass_an_example() -> None:
    model = HomeWritten(56, learned=False)
    with pytest.raises(unsmooth.UnsmoothError, match=r"example=\{'image': torch.randn\(1, 3, 224, 224\)\}"):
        unsmooth.apply(model, "attn_scale")
    unsmooth.apply(model, "attn_scale", example={"image": torch.randn(1, 3, 56, 56)})
