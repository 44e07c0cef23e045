"""Decode one image file into pixels that mean the same whatever the file's format was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from holdfast.data.printable import printable
from holdfast.errors import HoldfastError

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})
"""Pillow's modes that hold no colour."""
ORIENTATION = 0x0112
"""The EXIF tag that says how the camera was held; from 5 on the picture lies on its side."""


def read_image(path: Path, *, size: tuple[int, int], channels: int) -> npt.NDArray[np.uint8]:
    """An image file as uint8 (C, H, W): upright, scaled to just cover size, cropped at the centre."""
    height, width = size
    try:
        image = decode(path, channels=channels, least=2 * max(size))
    except Exception as error:  # on damaged files Pillow's readers raise nearly anything
        raise unreadable(path, error) from error
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def decode(path: Path, *, channels: int, least: int | None = None) -> Image.Image:
    """The whole image, upright, 8 bits, grey (1 channel) or RGB (3). Transparency is dropped.

    least: neither side need be longer; a large JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, which
    takes a fraction of the time.
    """
    with Image.open(path) as file:
        if least is not None:
            file.draft(None, (least, least))
        image = to_eight_bits(ImageOps.exif_transpose(file))
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns where a transparent palette goes to RGB at once
    return image.convert("L" if channels == 1 else "RGB")


def peek(path: Path) -> tuple[tuple[int, int], str]:
    """(height, width) of the upright image and Pillow's mode, from the file's header alone."""
    try:
        with Image.open(path) as file:
            width, height = file.size
            # to look for EXIF at the end of a PNG would decode it; a TIFF's size is upright already
            known = file.format != "TIFF" and (file.format != "PNG" or "exif" in file.info)
            if known and file.getexif().get(ORIENTATION, 1) >= 5:
                width, height = height, width
            return (height, width), file.mode
    except Exception as error:  # as above
        raise unreadable(path, error) from error


def to_eight_bits(image: Image.Image) -> Image.Image:
    """16-bit and 32-bit grey as 8-bit grey, 65535 being white. Pillow's own conversion would clip at 255."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.size and not 0 <= values.min() <= values.max() <= 65535:
            raise ValueError(f"pixels from {values.min()} to {values.max()} do not fit 16 bits")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("float pixels have no agreed white; save it with 8 or 16 bits")
    return image


def unreadable(path: Path, error: Exception) -> HoldfastError:
    """The error for an image file that cannot be read."""
    return HoldfastError(
        f"cannot read image {printable(path)}: {reason(error)}; "
        "remove or replace it ('holdfast data check' lists all such files)"
    )


def reason(error: Exception) -> str:
    """Why a file could not be read, in a few words that do not repeat its name."""
    if isinstance(error, UnidentifiedImageError):
        return "empty, or no image format that is known"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable(str(error)) or type(error).__name__
