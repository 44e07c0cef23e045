"""Pictures in any folder: their size and colours are those of all of them, not of the first few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data.anomalies import make_digits_anomalies, save_anomalies
from holdfast.data.heaps import open_pictures
from holdfast.errors import HoldfastError


def grey(folder: Path, count: int, side: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("L", (side, side), 7 * i).save(folder / f"{i:03d}.png")
    return folder


@pytest.mark.parametrize("count", [1, 10, 63, 200])
def test_the_last_picture_counts_too(tmp_path: Path, count: int) -> None:
    folder = grey(tmp_path / "heap", count)
    assert open_pictures(folder).shape == (1, 8, 8)
    Image.new("RGB", (8, 8), (200, 0, 0)).save(folder / f"{count - 1:03d}.png")
    assert open_pictures(folder).shape == (3, 8, 8)
    if count > 1:
        Image.new("RGB", (8, 12), (200, 0, 0)).save(folder / f"{count - 1:03d}.png")
        assert open_pictures(folder).shape == (3, 224, 224), "sizes differ"


def test_sixteen_bits_are_grey(tmp_path: Path) -> None:
    for i, kind in enumerate(("<u2", ">u2")):
        Image.fromarray(np.full((8, 8), 300, kind)).save(tmp_path / f"{i}.tif")
    assert open_pictures(tmp_path).shape == (1, 8, 8)


def test_a_detector_s_size_goes_before_any_other(tmp_path: Path) -> None:
    folder = grey(tmp_path / "heap", 3, side=20)
    assert open_pictures(folder, image_size=10).shape == (1, 10, 10)
    assert open_pictures(folder, image_size=10, shape=(3, 6, 5)).shape == (1, 6, 5), "its size, never its colours"


def test_pictures_lie_anywhere_and_have_no_label(tmp_path: Path) -> None:
    grey(tmp_path / "b" / "deep", 2)
    grey(tmp_path / "a", 1)
    split = open_pictures(tmp_path)
    assert [Path(split.describe(i)).relative_to(tmp_path).as_posix() for i in range(3)] == [
        "a/000.png", "b/deep/000.png", "b/deep/001.png"
    ]  # fmt: skip
    assert (split.labels.tolist(), split.groups.tolist()) == ([-1] * 3, [-1] * 3)


def test_the_test_part_of_a_set_with_anomalies_is_what_is_normal_in_it(tmp_path: Path) -> None:
    made = make_digits_anomalies()
    path = save_anomalies(made, tmp_path)
    split = open_pictures(path, split="test")
    normal = [s.images[~made.anomalous(s)] for s in made.sets]
    assert torch.equal(split.read(torch.arange(len(split))), torch.cat(normal))
    with pytest.raises(HoldfastError, match="has no split 'val'; choose train, labeled or test"):
        open_pictures(path, split="val")
