"""Images from anywhere: converted, or skipped by name with the reason; every mistake raises with a reason."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import nn

from tests.support.small_hosts import host
from unsmooth.data.image_batches import LIMIT, NamedImages, image_batches
from unsmooth.data.images import ImageReadError, convert_channels, read_image, to_8bit
from unsmooth.data.sources import open_images
from unsmooth.errors import UnsmoothError

Array = np.ndarray[Any, Any]


@cache
def deit() -> nn.Module:
    return host("deit")


def pixels(seed: int = 0, height: int = 40, width: int = 48, channels: int = 3) -> Array:
    """A smooth picture, so that a lossy format keeps it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR))[..., :channels]


def picture(seed: int = 0, **size: int) -> Image.Image:
    return Image.fromarray(pixels(seed, **size))


def batches(
    source: Any, batch_size: int = 4, limit: int | None = LIMIT, model: nn.Module | None = None
) -> list[NamedImages]:
    return list(image_batches(model or deit(), source, batch_size, limit))


def seen_as(path: Path, channels: int = 3) -> Array:
    return np.asarray(convert_channels(read_image(path), channels)).astype(float)


# What can be converted

GREY = np.tile(np.linspace(0, 255, 48).astype(np.uint8), (40, 1))


def see_through(colour: tuple[int, int, int]) -> Image.Image:
    """Left half opaque, right half transparent."""
    made = Image.new("RGBA", (48, 40), (*colour, 0))
    made.paste((*colour, 255), (0, 0, 24, 40))
    return made


def with_clear_entry() -> Image.Image:
    made = Image.new("P", (48, 40), 0)
    made.putpalette([200, 0, 0, 0, 0, 0])
    made.paste(1, (24, 0, 48, 40))
    return made


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour(tmp_path: Path, channels: int) -> None:
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    actual = seen_as(tmp_path / "grey.png", channels)
    assert actual.shape == ((40, 48) if channels == 1 else (40, 48, 3))
    assert np.array_equal(actual if channels == 1 else actual[..., 1], GREY)
    picture().save(tmp_path / "colour.png")
    wanted = np.asarray(picture().convert("L" if channels == 1 else "RGB"))
    assert np.array_equal(seen_as(tmp_path / "colour.png", channels), wanted)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "palette entry"])
def test_transparency_lies_on_white(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "clear.png"
    if mode == "palette entry":
        with_clear_entry().save(path, transparency=1)
    elif mode == "P":
        see_through((200, 0, 0)).quantize(4).save(path)
    else:
        see_through((200, 0, 0)).convert(mode).save(path)
    actual = seen_as(path)
    assert (actual[:, 30:] == 255).all(), "the clear half is white, whatever colour hides there"
    left = actual[:, :20].reshape(-1, 3)
    assert np.ptp(left, axis=0).max() == 0 and left[0, 1] < 100


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_down(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / f"deep.{suffix}")
    assert np.array_equal(seen_as(tmp_path / f"deep.{suffix}", 1), GREY)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_dark_sixteen_bit_picture_stays_dark(tmp_path: Path, suffix: str) -> None:
    """Its brightest pixel is 200 of 65,535: black, not a bright picture of eight bits."""
    Image.fromarray((GREY.astype(np.uint16) * 200 // 255).astype(np.uint16)).save(tmp_path / f"dark.{suffix}")
    assert seen_as(tmp_path / f"dark.{suffix}", 1).max() <= 1


def test_floating_point_grey(tmp_path: Path) -> None:
    """Floats from 0 to 1 are the usual form; those up to 255 are eight-bit ones."""
    for name, scale in (("one", 1 / 255), ("byte", 1.0)):
        Image.fromarray(GREY.astype(np.float32) * np.float32(scale)).save(tmp_path / f"{name}.tif")
        np.testing.assert_allclose(seen_as(tmp_path / f"{name}.tif", 1), GREY, atol=1, err_msg=name)


def test_thirty_two_bit_grey_of_eight_bit_range() -> None:
    assert np.array_equal(np.asarray(to_8bit(Image.fromarray(GREY.astype(np.int32)))), GREY)


def test_cmyk_keeps_its_colours(tmp_path: Path) -> None:
    picture().convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    assert np.abs(seen_as(tmp_path / "print.jpg") - pixels()).mean() < 4


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (48, 40), colour) for colour in ("red", "blue", "lime")]
    for name, options in (("a.gif", {}), ("a.tif", {}), ("a.webp", {"lossless": True})):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        assert (seen_as(tmp_path / name) == [255, 0, 0]).all(), name


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_of_pillow_becomes_what_a_host_takes(mode: str, channels: int) -> None:
    given = Image.fromarray(GREY.astype(np.uint16)) if mode == "I;16" else picture().convert(mode)
    assert convert_channels(to_8bit(given), channels).mode == {1: "L", 3: "RGB"}[channels]


# What cannot


def cut_jpeg() -> bytes:
    whole = io.BytesIO()
    picture().save(whole, "JPEG")
    return whole.getvalue()[:-200]


def strip() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (1, 300)).save(made, "PNG")
    return made.getvalue()


BAD: dict[str, tuple[bytes, str]] = {
    "empty.jpg": (b"", "the file is empty"),
    "cut.jpg": (cut_jpeg(), "truncated"),
    "text.jpg": (b"Dear reader, this is no image.", "not an image"),
    "thin.png": (strip(), "1 × 300 pixels is too narrow"),
    "noise.png": (b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, ""),
    "noise.webp": (b"RIFF\x10\x00\x00\x00WEBPVP8 " + b"\x07" * 8, ""),
}


def write_bad(folder: Path) -> None:
    for name, (content, _) in BAD.items():
        (folder / name).write_bytes(content)


def test_bad_files_are_skipped_by_name_and_the_others_read(tmp_path: Path) -> None:
    write_bad(tmp_path)
    for i in range(3):
        picture(i).save(tmp_path / f"good{i}.png")
    given = image_batches(deit(), tmp_path, 2)
    for _ in range(2):  # it can be run again, and counts anew
        actual = list(given)
        assert [name for batch in actual for name in batch.names] == ["good0.png", "good1.png", "good2.png"]
        assert [len(batch.images) for batch in actual] == [2, 1]
        assert given.skipped.keys() == BAD.keys()
        for name, (_, words) in BAD.items():
            assert words in given.skipped[name] and given.skipped[name].strip(), name
    assert given.count == len(BAD) + 3


def test_a_folder_of_nothing_but_bad_files_is_an_error_that_names_one(tmp_path: Path) -> None:
    write_bad(tmp_path)
    with pytest.raises(UnsmoothError, match=rf"all {len(BAD)} are broken.*cut\.jpg.*truncated"):
        batches(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what it reads in spite of the damage
@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP", "JPEG", "WEBP", "PPM"])
def test_damage_anywhere_is_a_picture_or_a_reason(tmp_path: Path, kind: str) -> None:
    whole = io.BytesIO()
    picture(height=12, width=12).save(whole, kind)
    content, path = whole.getvalue(), tmp_path / "damaged"
    for at in range(0, len(content), max(1, len(content) // 40)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]):
            path.write_bytes(damaged)
            try:
                outcome = convert_channels(read_image(path), 3).mode
            except ImageReadError as reason:
                outcome = str(reason).strip()
            assert outcome


# Folders


def test_class_folders_are_labels(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "newt")):
        (tmp_path / name / "deep").mkdir(parents=True)
        picture(number).save(tmp_path / name / "a.png")
        picture(number + 5).save(tmp_path / name / "deep" / "b.JPG", "JPEG")
    (tmp_path / "cat" / "notes.txt").write_text("not looked at")
    (tmp_path / "dog" / "bad.png").write_bytes(b"")
    opened = open_images(tmp_path)
    assert opened.classes == ("cat", "dog", "newt") and opened.count == 7
    actual = batches(tmp_path, 4)
    assert [len(batch.images) for batch in actual] == [4, 2]
    named = [(n, int(y)) for b in actual for n, y in zip(b.names, b.labels, strict=True)]  # type: ignore[arg-type]
    assert named == [("cat/a.png", 0), ("cat/deep/b.JPG", 0), ("dog/a.png", 1), ("dog/deep/b.JPG", 1),
                     ("newt/a.png", 2), ("newt/deep/b.JPG", 2)]  # fmt: skip


@pytest.mark.parametrize("layout", [["a.png", "b.png"], ["one/a.png", "one/b.png"], ["one/a.png", "b.png"]], ids=str)
def test_folders_without_classes_have_no_labels(tmp_path: Path, layout: list[str]) -> None:
    for name in layout:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture().save(tmp_path / name)
    (actual,) = batches(tmp_path)
    assert actual.labels is None and len(actual.images) == 2


def test_places_without_images(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match="holds no images"):
        open_images(tmp_path)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(UnsmoothError, match="holds no images"):
        open_images(tmp_path)
    with pytest.raises(UnsmoothError, match=r"no images at .*nowhere.*folder.*npz.*digits"):
        open_images(tmp_path / "nowhere")
    with pytest.raises(UnsmoothError, match="Use the folder that holds"):
        open_images(tmp_path / "readme.txt")
    with pytest.raises(UnsmoothError, match="timm cannot open"):
        open_images("torch/no_such_data_set", tmp_path)


def test_no_name_is_not_the_folder_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    assert open_images(".").count == 1
    with pytest.raises(UnsmoothError, match="no images at ''"):
        open_images("")


# .npz files

IMAGES = np.stack([pixels(i) for i in range(5)])


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def broken_zip(path: Path) -> Path:
    content = save(path, images=IMAGES).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def damaged_member(path: Path) -> Path:
    content = bytearray(save(path, images=IMAGES).read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return path


def not_arrays(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", b"nonsense")
    return path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


WRONG_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "floats": (lambda p: save(p, images=IMAGES / 255), r"must be uint8.*float64"),
    "whole numbers": (lambda p: save(p, images=IMAGES.astype(np.int64)), r"must be uint8.*int64"),
    "channels first": (lambda p: save(p, images=IMAGES.transpose(0, 3, 1, 2)), r"\(5, 3, 40, 48\)"),
    "no key": (lambda p: save(p, pictures=IMAGES), r"holds pictures; expected `images`"),
    "nothing": (lambda p: save(p), r"holds nothing"),
    "no images": (lambda p: save(p, images=IMAGES[:0]), r"holds no images"),
    "a number": (lambda p: save(p, images=np.uint8(7)), r"shape \(\)"),
    "too few labels": (lambda p: save(p, images=IMAGES, labels=np.arange(4)), r"must be 5 integers.*\(4,\)"),
    "labels of floats": (lambda p: save(p, images=IMAGES, labels=np.arange(5.0)), r"integers.*float64"),
    "one-hot labels": (lambda p: save(p, images=IMAGES, labels=np.eye(5, dtype=int)), r"\(5, 5\)"),
    "names for labels": (lambda p: save(p, images=IMAGES, labels=np.array(list("abcde"))), r"integers.*<U1"),
    "half a zip": (broken_zip, r"cannot read .*zip"),
    "a flipped bit": (damaged_member, r"cannot read .*CRC"),
    "no array inside": (not_arrays, r"cannot read|must be uint8"),
    "objects": (lambda p: save(p, images=np.array([{"a": 1}], dtype=object)), r"cannot read .*[Oo]bject"),
    "empty file": (lambda p: write(p, b""), r"cannot read"),
    "text": (lambda p: write(p, b"hello"), r"cannot read"),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_npz_files_that_are_wrong(tmp_path: Path, kind: str) -> None:
    make, words = WRONG_FILES[kind]
    path = make(tmp_path / "data.npz")
    with pytest.raises(UnsmoothError, match=words) as error:
        image_batches(deit(), path, 4)
    assert "data.npz" in str(error.value) and "\n" not in str(error.value)


GREYS = np.repeat(IMAGES[..., :1], 3, axis=-1)
RIGHT: dict[str, tuple[Array, Array]] = {  # and the same as colours
    "colours": (IMAGES, IMAGES),
    "opaque": (np.concatenate([IMAGES, np.full_like(IMAGES[..., :1], 255)], axis=-1), IMAGES),
    "grey": (IMAGES[..., 0], GREYS),
    "one channel": (IMAGES[..., :1], GREYS),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_npz_files_that_are_right(tmp_path: Path, kind: str) -> None:
    images, colours = RIGHT[kind]
    actual = batches(save(tmp_path / "data.npz", images=images, labels=np.array([3, 0, 0, 1, 2], dtype=np.uint8)), 3)
    assert [batch.labels.tolist() for batch in actual] == [[3, 0, 0], [1, 2]]
    assert torch.equal(torch.cat([b.images for b in actual]), torch.cat([b.images for b in batches(colours, 3)]))


@pytest.mark.parametrize(("x", "y"), [("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("x_train", "y_train")])
def test_names_inside_npz_files(tmp_path: Path, x: str, y: str) -> None:
    (actual,) = batches(save(tmp_path / "data.npz", **{x: IMAGES, y: np.arange(5), "other": np.zeros(3)}), 8)
    assert actual.labels.tolist() == [0, 1, 2, 3, 4]
    (actual,) = batches(save(tmp_path / "data.npz", **{x: IMAGES}), 8)
    assert actual.labels is None


# What a host is given


def test_truncated_images_are_broken_even_if_another_library_accepts_them(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    file = tmp_path / "cut.jpg"
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:-400])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ImageReadError, match="truncated"):
        read_image(file)
    assert ImageFile.LOAD_TRUNCATED_IMAGES  # the setting of the other library is restored
    assert np.asarray(Image.open(file)).shape == (64, 64, 3)
