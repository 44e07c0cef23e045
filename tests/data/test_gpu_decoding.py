"""Decoding on a device, shown on the CPU: plain JPEG files go to the device, everything else keeps its meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from holdfast.data import FileSplit, load, shard
from holdfast.data.gpu_decoding import decoded, encoded
from holdfast.data.loaders import StreamLoader, make_loader
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, smooth, truncated_jpeg, write

CPU = torch.device("cpu")


@pytest.fixture
def split(tmp_path: Path) -> FileSplit:
    """A colour JPEG, a larger one, a grey one, one that lies on its side, a PNG."""
    write(tmp_path / "a/0.jpg", smooth(24, 24))
    write(tmp_path / "a/1.jpg", smooth(60, 90))
    Image.fromarray(smooth(24, 24)[..., 0]).save(tmp_path / "a/2.jpg", quality=95)
    image = Image.fromarray(smooth(24, 24))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a/3.jpg", exif=exif, quality=95)
    write(tmp_path / "a/4.png", noise(24, 24))
    paths = sorted((tmp_path / "a").iterdir())
    return FileSplit(paths, torch.zeros(5).long(), torch.full((5,), -1), size=(24, 24))


def test_plain_jpeg_files_are_handed_over_undecoded(split: FileSplit) -> None:
    assert [encoded(split, i).ndim for i in range(5)] == [1, 1, 1, 3, 3]


def test_pixels_are_those_of_the_cpu_within_what_resizing_may_differ(split: FileSplit) -> None:
    own = decoded([encoded(split, i) for i in range(5)], size=split.size, channels=3, device=CPU).int()
    other = split.read(torch.arange(5)).int()
    difference = (own - other).abs().amax((1, 2, 3)).tolist()
    assert difference[0] == difference[2] == difference[3] == difference[4] == 0, "the same decoder, and no resizing"
    assert difference[1] <= 3


def test_a_loader_that_decodes_on_its_device_gives_the_same_batches(split: FileSplit, tmp_path: Path) -> None:
    loader = StreamLoader(split, batch_size=2, device=CPU, workers=0, on_device=True, share=(0, 1))
    own = torch.cat([batch.x for batch in loader.batches(torch.tensor([4, 0, 2, 3]))])
    assert torch.equal(own, split.read(torch.tensor([4, 0, 2, 3])))
    shard(tmp_path, tmp_path.parent / f"{tmp_path.name}-shards")
    packed = load(tmp_path.parent / f"{tmp_path.name}-shards", image_size=24, least_classes=1).train
    assert isinstance(packed, FileSplit)
    assert encoded(packed, 0).ndim in (1, 3)


def test_a_damaged_file_is_named(split: FileSplit) -> None:
    path = Path(str(split.paths[0]))
    truncated_jpeg(path)
    loader = StreamLoader(split, batch_size=5, device=CPU, workers=0, on_device=True)
    with pytest.raises(HoldfastError, match="cannot read image .*0.jpg"):
        list(loader.batches(torch.arange(5)))


def test_it_needs_a_gpu(split: FileSplit) -> None:
    with pytest.raises(HoldfastError, match="decode gpu needs a CUDA device, and the device is cpu"):
        make_loader(split, batch_size=2, device=CPU, decode="gpu")
