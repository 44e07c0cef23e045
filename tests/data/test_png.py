"""A picture comes back from its text as it was, or smaller."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data.images import png


def read(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_image_comes_back_bit_for_bit(channels: int) -> None:
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(np.array(read(png(image))))
    assert torch.equal(pixels if channels == 1 else pixels.permute(2, 0, 1), image[0] if channels == 1 else image)


def test_a_large_image_shrinks_and_keeps_its_shape() -> None:
    image = torch.full((3, 300, 600), 77, dtype=torch.uint8)
    assert read(png(image)).size == (96, 48)
    assert read(png(image, longest=400)).size == (400, 200)
    assert read(png(image)).getpixel((50, 20)) == (77, 77, 77)
