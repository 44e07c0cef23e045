"""CIFAR-10-C's arrays and ImageNet-C's folders, as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data import load
from holdfast.data.corruption_sets import open_corrupted
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("fog", "gaussian_noise"):
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10, dtype=np.uint8), 5))
    return tmp_path


def test_cifar10c_gives_the_rows_of_a_severity(cifar: Path) -> None:
    test = open_corrupted(cifar)
    assert test.corruptions == ("fog", "gaussian_noise")
    assert test.severities == (1, 2, 3, 4, 5)
    raw = np.load(cifar / "gaussian_noise.npy")
    for severity in (1, 4):
        split = test.split("gaussian-noise", severity)
        own = raw[(severity - 1) * 10 : severity * 10].transpose(0, 3, 1, 2)
        assert np.array_equal(split.read(torch.arange(10)).numpy(), own)
        assert split.labels.tolist() == list(range(10))


@pytest.mark.parametrize("family", ["", "noise/"])
def test_imagenet_c_is_read_at_its_own_size(tmp_path: Path, family: str) -> None:
    for severity in (1, 2, 3, 4, 5):
        for k, wnid in enumerate(("n01440764", "n01443537")):
            for i in range(2):
                image = noise(20, 20, seed=100 * severity + 10 * k + i)
                write(tmp_path / f"{family}shot_noise/{severity}/{wnid}/val_{i}.png", image)
    test = open_corrupted(tmp_path)
    assert test.corruptions == ("shot_noise",)
    assert test.classes == ("n01440764", "n01443537")
    split = test.split("shot_noise", 3)
    assert split.shape == (3, 20, 20)
    assert split.labels.tolist() == [0, 0, 1, 1]
    expected = noise(20, 20, seed=311).transpose(2, 0, 1)
    assert np.array_equal(split.read(torch.tensor([3]))[0].numpy(), expected)


def test_classes_can_be_given_in_the_models_order(tmp_path: Path) -> None:
    for wnid in ("a", "b"):
        write(tmp_path / f"fog/1/{wnid}/0.png", noise(8, 8))
    assert open_corrupted(tmp_path, classes=("b", "a")).split("fog", 1).labels.tolist() == [1, 0]
    with pytest.raises(HoldfastError, match="fog/1/b is not among the 1 classes known"):
        open_corrupted(tmp_path, classes=("a",)).split("fog", 1)


def test_bad_input_is_named(cifar: Path, tmp_path: Path) -> None:
    test = open_corrupted(cifar)
    with pytest.raises(HoldfastError, match="unknown corruption of .* 'fgo'; did you mean 'fog'"):
        test.split("fgo", 1)
    with pytest.raises(HoldfastError, match="severity must be one of .*, got 6"):
        test.split("fog", 6)
    np.save(cifar / "snow.npy", np.zeros((49, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(HoldfastError, match="snow.npy has 49 images and labels.npy 50 values"):
        open_corrupted(cifar).split("snow", 1)
    (cifar / "fog.npy").write_bytes(b"damaged")
    with pytest.raises(HoldfastError, match="cannot read .*fog.npy"):
        open_corrupted(cifar).split("fog", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(HoldfastError, match="is not a corrupted test set: expected labels.npy"):
        open_corrupted(tmp_path / "empty")
    with pytest.raises(HoldfastError, match="is a corrupted test set without training images"):
        load(cifar)
    np.save(cifar / "labels.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(HoldfastError, match="cannot read .*labels.npy"):
        open_corrupted(cifar)
