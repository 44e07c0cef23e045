"""Whatever the format of a file, its pixels come out as they would be seen."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from holdfast.data.images import decode, peek, read_image
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, sixteen_bit_rgb_png, smooth, truncated_jpeg, write

RGB = noise()
SIZE = RGB.shape[:2]


def test_rgb_png_is_read_exactly(tmp_path: Path) -> None:
    pixels = read_image(write(tmp_path / "a.png", RGB), size=SIZE, channels=3)
    assert np.array_equal(pixels, RGB.transpose(2, 0, 1))


def test_grey_is_read_exactly_and_repeated_for_three_channels(tmp_path: Path) -> None:
    grey = noise(channels=1)
    path = write(tmp_path / "a.png", grey)
    assert np.array_equal(read_image(path, size=SIZE, channels=1), grey[None])
    assert np.array_equal(read_image(path, size=SIZE, channels=3), np.stack([grey] * 3))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_is_its_value_over_257(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(0).integers(0, 65536, SIZE, dtype=np.uint16)
    values[0, :2] = 0, 65535
    path = write(tmp_path / f"a.{suffix}", values)
    pixels = read_image(path, size=SIZE, channels=1)
    assert np.abs(pixels[0] - values / 257).max() <= 0.5
    assert pixels[0, 0, :2].tolist() == [0, 255]


def test_sixteen_bit_colour_is_its_value_over_257(tmp_path: Path) -> None:
    path = sixteen_bit_rgb_png(tmp_path / "a.png", RGB.astype(np.uint16) * 257)
    assert np.array_equal(read_image(path, size=SIZE, channels=3), RGB.transpose(2, 0, 1))


def test_thirty_two_bit_integers_within_sixteen_bits_are_read_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", np.array([[0, 65535], [257, 514]], dtype=np.int32))
    assert read_image(path, size=(2, 2), channels=1).tolist() == [[[0, 255], [1, 2]]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((4, 4), 0.5, dtype=np.float32), "float pixels have no agreed white; save it with 8 or 16 bits"),
        (np.full((4, 4), 70000, dtype=np.int32), "pixels from 70000 to 70000 do not fit 16 bits"),
        (np.full((4, 4), -3, dtype=np.int32), "pixels from -3 to -3 do not fit 16 bits"),
    ],
)
def test_pixels_without_a_meaning_are_refused(tmp_path: Path, values: np.ndarray, message: str) -> None:
    path = write(tmp_path / "a.tif", values)
    with pytest.raises(HoldfastError, match=message):
        read_image(path, size=(4, 4), channels=1)


def test_transparency_is_dropped_and_colours_stay(tmp_path: Path) -> None:
    alpha = noise(channels=1, seed=1)
    path = write(tmp_path / "a.png", np.dstack([RGB, alpha]))
    assert np.array_equal(read_image(path, size=SIZE, channels=3), RGB.transpose(2, 0, 1))


@pytest.mark.parametrize("transparency", [None, 0, bytes([0, 128, 255])])
def test_palettes_are_looked_up(tmp_path: Path, transparency: int | bytes | None) -> None:
    colours = np.array([[255, 0, 0], [0, 200, 0], [10, 20, 30]], dtype=np.uint8)
    index = np.random.default_rng(0).integers(0, 3, SIZE, dtype=np.uint8)
    image = Image.fromarray(index).convert("P")
    image.putpalette(colours.tobytes())
    image.putdata(index.flatten().tolist())
    path = tmp_path / "a.png"
    image.save(path, **({} if transparency is None else {"transparency": transparency}))
    assert np.array_equal(read_image(path, size=SIZE, channels=3), colours[index].transpose(2, 0, 1))


def test_one_bit_images_are_black_and_white(tmp_path: Path) -> None:
    write(tmp_path / "a.png", np.array([[True, False], [False, True]]))
    assert read_image(tmp_path / "a.png", size=(2, 2), channels=1).tolist() == [[[255, 0], [0, 255]]]


def test_cmyk_jpeg_shows_its_colours(tmp_path: Path) -> None:
    pixels = smooth()
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    read = read_image(tmp_path / "a.jpg", size=pixels.shape[:2], channels=3)
    assert np.abs(read.transpose(1, 2, 0).astype(int) - pixels).mean() < 4


# What a viewer does with a stored picture, by EXIF orientation (CIPA DC-008, tag 274).
UPRIGHT = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_rotation_is_undone_and_seen_in_the_header(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(RGB).save(path, exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    upright = UPRIGHT[orientation](RGB)
    assert peek(path) == (upright.shape[:2], "RGB")
    read = read_image(path, size=upright.shape[:2], channels=3)
    assert np.array_equal(read, upright.transpose(2, 0, 1))


def test_another_shape_is_scaled_to_cover_and_cropped_at_the_centre(tmp_path: Path) -> None:
    pixels = noise(8, 24)
    read = read_image(write(tmp_path / "a.png", pixels), size=(4, 4), channels=3)
    scaled = Image.fromarray(pixels).resize((12, 4), Image.Resampling.BILINEAR)
    assert np.array_equal(read.transpose(1, 2, 0), np.asarray(scaled)[:, 4:8])


def test_a_large_jpeg_decoded_at_a_fraction_looks_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jpg", smooth(480, 640))
    assert max(decode(path, channels=3, least=64).size) < 640
    read = read_image(path, size=(32, 32), channels=3).transpose(1, 2, 0)
    with Image.open(path) as file:
        whole = np.asarray(ImageOps.fit(file, (32, 32), Image.Resampling.BILINEAR))
    assert np.abs(read.astype(int) - whole).max() <= 2


@pytest.mark.parametrize(("side", "held"), [(200, 1), (100, 2), (50, 4), (20, 8)])
def test_a_jpeg_is_not_decoded_below_twice_the_size_that_is_wanted(tmp_path: Path, side: int, held: int) -> None:
    path = write(tmp_path / "a.jpg", noise(480, 640))
    read = read_image(path, size=(side, side), channels=3).transpose(1, 2, 0)
    with Image.open(path) as file:
        file.draft("RGB", (640 // held, 480 // held))
        assert file.size == (640 // held, 480 // held)
        expected = np.asarray(ImageOps.fit(file, (side, side), Image.Resampling.BILINEAR))
    assert np.array_equal(read, expected)


def test_the_header_is_read_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"a.{suffix}", RGB) for suffix in ("png", "jpg", "bmp", "gif", "tif", "webp")]

    def refuse(_self: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    assert {peek(path)[0] for path in paths} == {SIZE}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, or not a known image format"),
        (b"GIF89a but no more", "a.png"),
        (b"no image at all" * 100, "empty, or not a known image format"),
    ],
)
def test_files_that_are_no_image_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    for read in (lambda: read_image(path, size=SIZE, channels=3), lambda: peek(path)):
        with pytest.raises(HoldfastError, match=r"cannot read image .*a.png: .*; remove or replace it") as caught:
            read()
        assert message in str(caught.value)


def test_a_truncated_jpeg_is_named(tmp_path: Path) -> None:
    path = truncated_jpeg(tmp_path / "half.jpg")
    with pytest.raises(HoldfastError, match=r"cannot read image .*half.jpg: .*truncated"):
        read_image(path, size=(64, 64), channels=3)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"cannot read image .*gone.png: No such file"):
        read_image(tmp_path / "gone.png", size=SIZE, channels=3)


def test_an_image_too_large_to_be_real_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(HoldfastError, match=r"bomb.png: Image size \(54 pixels\) exceeds limit"):
        read_image(path, size=SIZE, channels=3)


def test_messages_escape_what_a_terminal_would_obey(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"bad\\x1b\[31m\\n\.png") as caught:
        read_image(tmp_path / "bad\x1b[31m\n.png", size=SIZE, channels=3)
    assert str(caught.value).isprintable()


def test_a_pipe_is_refused_where_it_would_be_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    for read in (lambda p: read_image(p, size=SIZE, channels=3), peek):
        with pytest.raises(HoldfastError, match=r"a.png: it is a pipe, socket or device, not a file"):
            read(tmp_path / "a.png")


def test_postscript_is_no_image_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run it."""
    from PIL import EpsImagePlugin

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the EPS reader was reached")

    Image.init()
    monkeypatch.setitem(Image.OPEN, "EPS", (never, EpsImagePlugin._accept))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for read in (lambda p: read_image(p, size=SIZE, channels=3), peek):
        with pytest.raises(HoldfastError, match=r"a.png: empty, or not a known image format"):
            read(tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["jpeg", "png", "bmp", "gif", "webp", "tiff", "ppm", "jp2"])
def test_every_common_format_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (6, 9), (200, 200, 200)).save(path, format="JPEG2000" if kind == "jp2" else kind)
    assert abs(read_image(path, size=(9, 6), channels=3).astype(int) - 200).max() <= 3


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_largest_image_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "large.png", noise(8, 8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    message = r"large.png: 8 x 8 are 6.4e-05 megapixels, and the limit is 5e-05; if it is meant, set HOLDFAST_MAX_M"
    with pytest.raises(HoldfastError, match=message):
        read_image(path, size=SIZE, channels=3)
    monkeypatch.setenv("HOLDFAST_MAX_MEGAPIXELS", "0.000064")
    assert read_image(path, size=(8, 8), channels=3).shape == (3, 8, 8)
    monkeypatch.setenv("HOLDFAST_MAX_MEGAPIXELS", "many")
    with pytest.raises(HoldfastError, match="HOLDFAST_MAX_MEGAPIXELS must be a number above 0, got 'many'"):
        read_image(path, size=(8, 8), channels=3)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_jpeg_that_is_decoded_smaller_may_be_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.jpg"
    Image.new("RGB", (800, 800)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400_000)
    assert read_image(path, size=(20, 20), channels=3).shape == (3, 20, 20)
