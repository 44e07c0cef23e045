"""JPEG files decoded on a GPU: close to Pillow's pixels, and a training on them learns the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data import load
from holdfast.data.loaders import StreamLoader
from holdfast.train import fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Smooth images of two classes: what photographs are to a JPEG decoder. Some are larger than they are read."""
    y, x = np.mgrid[0:1:64j, 0:1:64j]
    for split in ("train", "test"):
        for i in range(32):
            wave = 0.5 + 0.5 * np.sin(6 * (x if i % 2 else y) * (1 + i / 32))
            pixels = (np.stack([wave, x, y], -1) * 255).astype(np.uint8)
            path = tmp_path / split / "ab"[i % 2] / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(pixels)
            image.resize((128, 160) if i % 4 == 0 else (64, 64)).save(path, quality=90)
    return tmp_path


def test_pixels_are_close_to_those_of_the_cpu(folder: Path) -> None:
    split, device = load(folder, image_size=64).train, torch.device("cuda")
    order = torch.arange(len(split))
    loader = StreamLoader(split, batch_size=8, device=device, workers=2, on_device=True)
    own = torch.cat([batch.x.cpu() for batch in loader.batches(order)]).int()
    difference = (own - split.read(order).int()).abs()
    print(f"largest difference {int(difference.max())}, mean {float(difference.float().mean()):.3f} of 255")
    assert int(difference.max()) <= 16
    assert float(difference.float().mean()) < 3


@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_a_training_learns_the_same(folder: Path, decode: str) -> None:
    settings = {"image_size": 64, "epochs": 8, "batch_size": 8, "device": "cuda", "lr": 0.01, "optimizer": "sgd"}
    assert fit(folder, decode=decode, **settings).history[-1]["test_accuracy"] > 0.9
