"""Small scenes in the layout of ADE20K, whose colours say their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CELL = 8
FOLDERS = {"training": "train", "validation": "val"}
COLOURS = np.array([[20, 30, 40], [230, 40, 60], [40, 220, 70], [60, 70, 230], [220, 210, 50]], dtype=np.uint8)


def colours_of(pixels: Any) -> Any:
    """The label that each pixel's colour says."""
    distances = ((np.asarray(pixels, dtype=np.float64)[..., None, :] - COLOURS) ** 2).sum(-1)
    return distances.argmin(-1)


def write_scenes(root: Path, train: int = 4, val: int = 2, size: tuple[int, int] = (48, 40), seed: int = 0) -> Path:
    """JPEG pictures of coloured cells, and PNG annotations: 0 is no class, 1 to 5 are the colours' labels plus one."""
    rng = np.random.default_rng(seed)
    for (folder, short), count in zip(FOLDERS.items(), (train, val), strict=True):
        for kind in ("images", "annotations"):
            (root / kind / folder).mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            cells = rng.integers(0, len(COLOURS), (size[1] // CELL, size[0] // CELL))
            labels = cells.repeat(CELL, 0).repeat(CELL, 1)
            name = f"ADE_{short}_{number:08d}"
            Image.fromarray(COLOURS[labels]).save(root / "images" / folder / f"{name}.jpg", quality=95)
            values = (labels + 1).astype(np.uint8)
            values[:2] = 0
            Image.fromarray(values).save(root / "annotations" / folder / f"{name}.png")
    return root
