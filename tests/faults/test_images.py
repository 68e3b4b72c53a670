"""Image folders and image files that are unusual."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unsmooth.data.images import ImageReadError, convert_channels, read_image
from unsmooth.data.sources import open_images


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
def test_a_loop_of_links_ends_and_counts_each_image_once(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / label / "1.png")
        (tmp_path / label / "up").symlink_to(tmp_path, target_is_directory=True)
    images = open_images(tmp_path)
    assert [images.item_name(i) for i in range(images.count)] == ["a/1.png", "b/1.png"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
def test_a_folder_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "elsewhere/1.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert open_images(tmp_path / "data").count == 1


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_the_rotation_of_a_photograph_is_applied(tmp_path: Path, orientation: int, turns: int) -> None:
    pixels = np.arange(8 * 12, dtype=np.uint8).reshape(8, 12)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), np.rot90(pixels, turns))


def test_a_mode_without_a_conversion_is_a_broken_image(tmp_path: Path) -> None:
    Image.new("LAB", (8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(ImageReadError, match="cannot convert its mode LAB"):
        convert_channels(read_image(tmp_path / "a.tif"), 1)
