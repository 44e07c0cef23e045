"""Channel statistics are those of the pixels, whether they lie in memory or in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast.data import ArraySplit, FileSplit, splits
from holdfast.data.splits import channel_statistics
from tests.data.pictures import noise, write


def in_memory(images: Tensor) -> ArraySplit:
    return ArraySplit(images, torch.zeros(len(images)).long(), torch.full((len(images),), -1))


def test_mean_and_deviation_of_every_channel_over_all_pixels() -> None:
    images = torch.randint(0, 256, (2500, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[:, 1] //= 4
    images[2400:, 2] = 7  # beyond the first parts that are read
    mean, std = channel_statistics(in_memory(images))
    deviation, average = torch.std_mean(images.double() / 255, dim=(0, 2, 3), correction=0)
    assert mean == pytest.approx(average.tolist(), rel=1e-12)
    assert std == pytest.approx(deviation.tolist(), rel=1e-12)


def test_a_constant_channel_can_be_divided_by() -> None:
    images = torch.full((4, 1, 3, 3), 51, dtype=torch.uint8)
    assert channel_statistics(in_memory(images)) == (pytest.approx((0.2,)), (1 / 255,))


def test_of_many_files_some_are_read_from_the_first_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [noise(4, 4, seed=i) for i in range(7)]
    paths = [write(tmp_path / f"{i}.png", p) for i, p in enumerate(pictures)]
    split = FileSplit(paths, torch.zeros(7).long(), torch.full((7,), -1), size=(4, 4))
    images = torch.stack([torch.from_numpy(p).permute(2, 0, 1) for p in pictures])
    assert channel_statistics(split) == channel_statistics(in_memory(images))
    monkeypatch.setattr(splits, "SAMPLED_FILES", 4)
    assert channel_statistics(split) == channel_statistics(in_memory(images[::2]))
    assert channel_statistics(in_memory(images)) != channel_statistics(in_memory(images[::2]))
