"""JPEG files decoded on a GPU: ``--decode gpu``. Open this file to change what is left to the CPU.

nvJPEG undoes the cosine transform and enlarges colour by rules of its own, and a photograph is shrunk by torch instead
of Pillow: pixels differ from those of ``--decode cpu`` by a few grey levels.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

import numpy as np
import torch
from torch import Tensor

from holdfast.data.images import ORIENTATION, open_image, read_image, resize
from holdfast.data.splits import FileSplit

AT_ONCE: Final = 64
"""Images decoded at a time: before they are shrunk, photographs take tens of megabytes each."""


def encoded(split: FileSplit, position: int) -> Tensor:
    """What a worker hands over of an image: the bytes (L,) of a plain JPEG, or the pixels (C, H, W) of any other."""
    path = split.paths[position]
    content = path.read_bytes()
    with open_image(BytesIO(content)) as file:  # the header alone
        upright = file.format == "JPEG" and file.getexif().get(ORIENTATION, 1) == 1
        plain = upright and file.mode in ("L", "RGB") and (split.channels == 3 or file.mode == "L")
    if plain:
        return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    return torch.from_numpy(read_image(path, size=split.size, channels=split.channels))


def decoded(items: list[Tensor], *, size: tuple[int, int], channels: int, device: torch.device) -> Tensor:
    """Images uint8 (B, C, H, W) on a device, of what :func:`encoded` made of each: scaled to just cover the size,
    cropped at the centre."""
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.RGB if channels == 3 else ImageReadMode.GRAY
    images = torch.empty(len(items), channels, *size, dtype=torch.uint8, device=device)
    files = [row for row, item in enumerate(items) if item.ndim == 1]
    for start in range(0, len(files), AT_ONCE):
        rows = files[start : start + AT_ONCE]
        if device.type == "cuda":  # nvJPEG writes on a stream of its own, into memory that others may still be reading
            torch.cuda.current_stream(device).synchronize()
        for row, image in zip(rows, decode_jpeg([items[i] for i in rows], mode=mode, device=device), strict=True):
            images[row] = resize(image[None], size)[0]
    for row, item in enumerate(items):
        if item.ndim == 3:
            images[row] = item.to(device, non_blocking=True)
    return images
