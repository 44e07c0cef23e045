"""Small image files whose pixels are known."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def noise(height: int = 6, width: int = 9, *, seed: int = 0, channels: int = 3) -> Pixels:
    """Random pixels (H, W, C), or (H, W) for one channel."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int = 32, width: int = 48) -> Pixels:
    """A colour ramp (H, W, 3) that JPEG keeps nearly as it is."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return (np.stack([y, x, (x + y) / 2], axis=-1) * 255).round().astype(np.uint8)


def write(path: Path, pixels: Pixels | None = None) -> Path:
    """Write an image, making the folders on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise() if pixels is None else pixels).save(path)
    return path


def write_class_folder(folder: Path, count: int, *, seed: int = 0, side: int = 6) -> None:
    """``count`` RGB images 0.png, 1.png, ... that all differ."""
    for i in range(count):
        write(folder / f"{i}.png", noise(side, side, seed=seed * 1000 + i))


def truncated_jpeg(path: Path) -> Path:
    """A JPEG whose second half is missing: the header can be read, the pixels cannot."""
    write(path, noise(64, 64))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def sixteen_bit_rgb_png(path: Path, values: npt.NDArray[np.uint16]) -> Path:
    """Pillow cannot write 16-bit colour, so this is the format spelled out. values: (H, W, 3)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    return path
