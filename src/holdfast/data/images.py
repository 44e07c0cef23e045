"""Pixels from files and arrays, checked and converted to one type and size; and back, as PNG text for findings and
reports. Open this to change how images are read.

An image file is decoded to pixels that mean the same whatever its format; arrays are checked number by number.
"""

from __future__ import annotations

import base64
import io
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.data.array_files import machine_memory
from holdfast.data.shard_files import Member
from holdfast.errors import HoldfastError, first_line, require
from holdfast.files import status
from holdfast.printable import printable

Array = npt.NDArray[Any]
Given = Tensor | npt.ArrayLike
"""What may be handed over for an array."""
ImageFile = Path | Member | BytesIO
"""An image file on disk, in a shard, or its bytes in memory."""
GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})
"""Pillow's modes that hold no colour."""
ORIENTATION = 0x0112
"""The EXIF tag that says how the camera was held; from 5 on the image lies on its side."""
FORMATS = (
    "JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF", "JPEG2000",
    *(["AVIF"] if find_spec("PIL.AvifImagePlugin") else []),
)  # fmt: skip
"""What is read, whatever a file is called: Pillow would hand PostScript to Ghostscript."""
MOST_MEGAPIXELS = "HOLDFAST_MAX_MEGAPIXELS"
"""The environment variable with the size of the largest image that is decoded; Pillow's own limit without one."""
CHUNK = 1024
"""Images resized at a time, so that the float copy stays small."""


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be decoded, and why. The path is the one on disk: not safe to print.

    split: where it was listed. position: the number of readable images of that split before it.
    """

    path: str
    reason: str
    split: str = ""
    position: int = 0


def read_image(path: Path | Member, *, size: tuple[int, int], channels: int) -> npt.NDArray[np.uint8]:
    """An image file as uint8 (C, H, W): upright, scaled to just cover size, cropped at the centre."""
    try:
        image = decode(path, channels=channels, least=2 * max(size))
    except Exception as error:  # on damaged files Pillow's readers raise nearly anything
        raise unreadable(path, error) from error
    return fit_image(image, size)


def fit_image(image: Image.Image, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """A decoded grey or RGB image as uint8 (C, H, W), scaled to just cover size, cropped at the centre."""
    height, width = size
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def decode(path: ImageFile, *, channels: int, least: int | None = None) -> Image.Image:
    """The whole image, upright, 8 bits, grey (1 channel) or RGB (3). Transparency is dropped.

    least: neither side need be longer; a large JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, which
    takes a fraction of the time.
    """
    with open_image(path) as file:
        if least is not None:
            file.draft(None, (least, least))
        _refuse_large(file.size)
        return plain_colours(ImageOps.exif_transpose(file), channels)


def plain_colours(image: Image.Image, channels: int) -> Image.Image:
    """A decoded image with 8 bits, grey (1 channel) or RGB (3). Transparency is dropped."""
    image = to_eight_bits(image)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns where a transparent palette goes to RGB at once
    return image.convert("L" if channels == 1 else "RGB")


def open_image(path: ImageFile) -> Image.Image:
    """The file, its header read. A pipe is refused: to open it would wait for somebody to write to it."""
    if isinstance(path, Path):
        status(path)
    elif isinstance(path, Member):
        path = BytesIO(path.read_bytes())
    if limit := os.environ.get(MOST_MEGAPIXELS):
        Image.MAX_IMAGE_PIXELS = _pixels(limit)  # Pillow refuses twice its limit before we can ask
    Image.preinit()  # else Pillow loads the readers of all its formats
    return Image.open(path, formats=FORMATS)


def _refuse_large(size: tuple[int, int]) -> None:
    """Refuse an image whose decoding would take gigabytes. size: as it is decoded; a JPEG may be decoded smaller."""
    pixels, most = math.prod(size), Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        limit = f"the limit is {most / 1e6:.4g}; if it is meant, set {MOST_MEGAPIXELS}={math.ceil(pixels / 1e6)}"
        raise ValueError(f"{size[0]} x {size[1]} are {pixels / 1e6:.4g} megapixels, and {limit}")


def _pixels(megapixels: str) -> int:
    try:
        found = float(megapixels)
        require(0 < found < math.inf, "")
    except (ValueError, HoldfastError):
        raise HoldfastError(f"{MOST_MEGAPIXELS} must be a number above 0, got {megapixels!r}; correct it") from None
    return int(found * 1e6)


def peek(path: ImageFile) -> tuple[tuple[int, int], str]:
    """(height, width) of the upright image and Pillow's mode, from the file's header alone."""
    try:
        with open_image(path) as file:
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


def unreadable(path: ImageFile, error: Exception) -> HoldfastError:
    """The error for an image file that cannot be read."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(path, BytesIO):
        return HoldfastError(f"the bytes of an image cannot be read: {reason(error)}; remove or replace it")
    remedy = "remove or replace it ('holdfast data check' lists all such files; --skip-unreadable of train, audit and "
    remedy += "predict leaves them out)"
    return HoldfastError(f"cannot read image {printable(str(path))}: {reason(error)}; {remedy}")


def reason(error: Exception) -> str:
    """Why a file could not be read, in a few words that do not repeat its name."""
    if isinstance(error, UnidentifiedImageError):
        return "empty, or not a known image format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"{first_line(error)}; if it is meant, set {MOST_MEGAPIXELS}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable(first_line(error))


def to_images(given: Given, what: str) -> Tensor:
    """Images as uint8 (N, C, H, W) from (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or float in [0, 1].

    C is 1 or 3. Where both the last and the second axis could be channels, the last one is taken; of a tensor the
    second, as torch has it, and where neither could, the second has as many as it has. A tensor that is such images
    already is returned unchanged, and so is an empty part of one.
    """
    ordered = (
        isinstance(given, Tensor) and given.ndim == 4 and (given.shape[1] in (1, 3) or given.shape[3] not in (1, 3))
    )
    if isinstance(given, Tensor) and ordered and given.dtype == torch.uint8 and given.shape[2:].numel():
        return given.cpu()
    x = _array(given, what)
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3) and not ordered:
        x = x.transpose(0, 3, 1, 2)
    elif not ordered and (x.ndim != 4 or x.shape[1] not in (1, 3)):
        layouts = "(N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3"
        raise HoldfastError(f"{what} has shape {x.shape}; images are {layouts}")
    require(x.size > 0, f"{what} has shape {x.shape} as (N, C, H, W): there is no pixel in it")
    if x.dtype == np.uint8:
        return torch.from_numpy(np.require(x, requirements=["C", "W"]))  # torch warns of what it may not write to
    if x.dtype.kind != "f":
        remedy = "give uint8 (as .astype('uint8') makes it), or float in [0, 1]"
        raise HoldfastError(f"{what} is of type {x.dtype}; {remedy}")
    finite = np.isfinite(x)
    if not finite.all():
        bad = np.argwhere(~finite)
        first = f"image {bad[0][0]} (channel, row, column {tuple(bad[0][1:].tolist())})"
        values = f"{len(bad)} values that are NaN or infinite, the first in {first}"
        raise HoldfastError(f"{what} has {values}; repair or remove these images")
    low, high = float(x.min()), float(x.max())
    remedy = "scale them to [0, 1], or give uint8 in 0..255"
    require(low >= 0 and high <= 1, f"{what} has floats from {low:g} to {high:g}; {remedy}")
    return torch.from_numpy(np.rint(x.astype(np.float32, order="C") * 255).astype(np.uint8))


def to_whole(given: Given, what: str, *, least: int) -> Tensor:
    """Labels or groups as int64 (N,) from (N,) or (N, 1) whole numbers of any type."""
    values = _array(given, what)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    remedy = "give one whole number a sample (one-hot rows: take argmax(1))"
    require(values.ndim == 1, f"{what} has shape {values.shape}; {remedy}")
    require(values.dtype.kind in "iubf", f"{what} is of type {values.dtype}; give whole numbers, such as type int64")
    if values.dtype.kind == "f":
        # from 2**53 on a float cannot tell neighbouring whole numbers apart
        odd = ~np.isfinite(values) | (values != np.rint(values)) | (np.abs(values) > 2**53)
        if odd.any():
            at = int(odd.argmax())
            raise HoldfastError(f"{what} has {values[at]} at position {at}; give whole numbers")
    whole = np.require(values, np.int64, ["C", "W"])
    if (whole < least).any():
        at = int((whole < least).argmax())
        raise HoldfastError(f"{what} has {values[at]} at position {at}; the least allowed is {least}")
    return torch.from_numpy(whole)


def _array(given: Given, what: str) -> Array:
    try:
        if isinstance(given, Tensor):
            given = given.detach().cpu()
            given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()  # a type numpy does not have
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise HoldfastError(f"{what} is not an array ({error}); give a numpy array or a tensor") from error


def resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Images (N, C, H, W), uint8 or float in [0, 255], as uint8 of this size: a side, or (height, width).

    The largest part at the centre that has these proportions is kept, as for files; bilinear, antialiased when
    shrinking.
    """
    n, channels, height, width = images.shape
    tall, wide = (size, size) if isinstance(size, int) else size
    needed = n * channels * tall * wide
    size_of_all = f"image_size {size} makes {n} images {needed / 2**30:.0f} GiB"
    remedy = "more than this machine's memory; choose a smaller image_size"
    require(needed < machine_memory(), f"{size_of_all}, {remedy}")
    scale = min(height / tall, width / wide)
    kept_tall, kept_wide = max(1, round(scale * tall)), max(1, round(scale * wide))
    top, left = (height - kept_tall) // 2, (width - kept_wide) // 2
    kept = images[:, :, top : top + kept_tall, left : left + kept_wide]
    if kept.shape[2:] == (tall, wide) and images.dtype == torch.uint8:
        return kept.contiguous()
    out = torch.empty(n, channels, tall, wide, dtype=torch.uint8, device=images.device)
    for start in range(0, n, CHUNK):
        chunk = kept[start : start + CHUNK].float()
        fitted = interpolate(chunk, size=(tall, wide), mode="bilinear", antialias=True)
        out[start : start + CHUNK] = fitted.round().clamp(0, 255).to(torch.uint8)
    return out


THUMBNAIL: Final = 96
"""Longest side of a thumbnail, in pixels."""


def png(image: Tensor, *, longest: int = THUMBNAIL) -> str:
    """A uint8 image (C, H, W) as base64 PNG, neither side longer than ``longest``."""
    picture = _picture(image)
    picture.thumbnail((longest, longest))
    return _as_text(picture)


def small_png(image: Tensor) -> str:
    """The same in full size and at most 256 colours, which takes a third of the bytes; for pictures to glance at."""
    picture = _picture(image)
    return _as_text(picture if picture.mode == "L" else picture.quantize(256, dither=Image.Dither.NONE))


def _picture(image: Tensor) -> Image.Image:
    pixels: Any = image.squeeze(0).numpy() if image.shape[0] == 1 else image.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(pixels))


def _as_text(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
