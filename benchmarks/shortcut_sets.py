"""Data sets for judging ``holdfast shortcuts``: without a shortcut (null), and with a planted one.

A null set may still be hard, noisy or mislabelled: none of that is a shortcut. Sets are small, so that a processor
trains on each in seconds. The calibration sets set the level of the alarm; the test sets had no part in that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.biased import background, coloured, watermark

Maker = Callable[[Path], Dataset]


@cache
def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        images, labels = file["x_train"][:10_000], file["y_train"][:10_000]
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)).flatten()


def photos(root: Path, name: str, classes: str, n: int, seed: int, *, test: int = 0) -> Dataset:
    """n images of some classes (their digits) of mnist, fashion_mnist or cifar10, at half the side; others to test."""
    images, labels = _arrays(root / f"{name}.npz")
    wanted = torch.tensor([int(k) for k in classes])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = order[torch.isin(labels[order], wanted)][: n + test]
    small = adaptive_avg_pool2d(images[chosen].float(), images.shape[-1] // 2).round().to(torch.uint8)
    own = (labels[chosen][:, None] == wanted).long().argmax(1)
    held_out = ArraySplit(small[n:], own[n:]) if test else None
    return Dataset(f"{name}-{classes}", tuple(classes), ArraySplit(small[:n], own[:n]), None, held_out)


def digits(root: Path, seed: int) -> Dataset:
    return load("digits", data_seed=seed)


def relabelled(data: Dataset, share: float, seed: int, *, next_class: bool = False) -> Dataset:
    """A share of the labels is another class's: a random one, or always the next one."""
    split, generator = data.train, torch.Generator().manual_seed(seed)
    offset = torch.randint(1, data.num_classes, (len(split),), generator=generator)
    moved = (split.labels + (1 if next_class else offset)) % data.num_classes
    labels = torch.where(torch.rand(len(split), generator=generator) < share, moved, split.labels)
    return _with(data, split.images, labels)  # type: ignore[attr-defined]


def random_labels(data: Dataset, seed: int) -> Dataset:
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    return _with(data, data.train.images, data.train.labels[order])  # type: ignore[attr-defined]


def noise(n: int, classes: int, seed: int) -> Dataset:
    """Images and labels of pure noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 1, 10, 10), generator=generator, dtype=torch.uint8)
    names = tuple(str(k) for k in range(classes))
    return Dataset("noise", names, ArraySplit(images, torch.randint(0, classes, (n,), generator=generator)))


def hard(data: Dataset, how: str, share: float, seed: int) -> Dataset:
    """A share of the images is blurred, noisy, half covered, or in one quarter covered or noisy, whatever the class: in
    any quarter, or always the lower right one."""
    split, generator = data.train, torch.Generator().manual_seed(seed)
    images = split.images.float()  # type: ignore[attr-defined]
    if how == "blurred":
        changed = interpolate(adaptive_avg_pool2d(images, 3), size=images.shape[-2:], mode="bilinear")
    elif how == "noisy":
        changed = images + 80 * torch.randn(images.shape, generator=generator)
    elif how == "covered":
        changed = images.clone()
        changed[..., images.shape[-1] // 2 :] = 0
    else:
        changed = images.clone()
        for image in changed:
            row, column = (
                torch.randint(0, 2, (2,), generator=generator).tolist() if "lower right" not in how else (1, 1)
            )
            quarter = image.tensor_split(2, 1)[row].tensor_split(2, 2)[column]
            quarter.copy_(255 * torch.rand(quarter.shape, generator=generator) * how.endswith("noisy"))
    chosen = torch.rand(len(split), generator=generator) < share
    made = torch.where(chosen[:, None, None, None], changed, images).round().clamp(0, 255).to(torch.uint8)
    return _with(data, made, split.labels)


def _with(data: Dataset, images: Tensor, labels: Tensor) -> Dataset:
    return replace(data, train=ArraySplit(images, labels), val=None, test=None)


ALL = "0123456789"
CALIBRATION: dict[str, Maker] = {
    "digits": lambda root: digits(root, 0),
    "digits, 10 % wrong labels": lambda root: relabelled(digits(root, 0), 0.1, 0),
    "digits, 5 % next class": lambda root: relabelled(digits(root, 2), 0.05, 0, next_class=True),
    "digits, random labels": lambda root: random_labels(digits(root, 0), 0),
    "digits, 10 % blurred": lambda root: hard(digits(root, 2), "blurred", 0.1, 0),
    "Fashion-MNIST": lambda root: photos(root, "fashion_mnist", ALL, 1500, 0),
    "Fashion-MNIST, classes 0246": lambda root: photos(root, "fashion_mnist", "0246", 1200, 0),
    "Fashion-MNIST 13579, 15 % half covered": lambda root: hard(
        photos(root, "fashion_mnist", "13579", 1000, 0), "covered", 0.15, 0
    ),
    "CIFAR-10, classes 0167": lambda root: photos(root, "cifar10", "0167", 1200, 0),
    "CIFAR-10, classes 2345": lambda root: photos(root, "cifar10", "2345", 1200, 1),
    "CIFAR-10, classes 35": lambda root: photos(root, "cifar10", "35", 1000, 0),
    "MNIST, classes 38": lambda root: photos(root, "mnist", "38", 800, 0),
    "MNIST, 20 % wrong labels": lambda root: relabelled(photos(root, "mnist", ALL, 1200, 0), 0.2, 0),
    "MNIST 49, 10 % wrong labels": lambda root: relabelled(photos(root, "mnist", "49", 800, 1), 0.1, 0),
    "MNIST, 20 % noisy": lambda root: hard(photos(root, "mnist", ALL, 1200, 1), "noisy", 0.2, 0),
    "MNIST": lambda root: photos(root, "mnist", ALL, 1000, 6),
    "MNIST, 10 % blurred": lambda root: hard(photos(root, "mnist", ALL, 1500, 44), "blurred", 0.1, 2),
    "digits, 15 % a quarter covered": lambda root: hard(digits(root, 5), "quarter covered", 0.15, 1),
    "MNIST, 15 % a quarter noisy": lambda root: hard(photos(root, "mnist", ALL, 1200, 5), "quarter noisy", 0.15, 1),
    "Fashion-MNIST, 15 % a quarter noisy": lambda root: hard(
        photos(root, "fashion_mnist", ALL, 1200, 5), "quarter noisy", 0.15, 1
    ),
    "digits, 15 % lower right covered": lambda root: hard(digits(root, 21), "lower right covered", 0.15, 4),
    "MNIST, 15 % lower right noisy": lambda root: hard(
        photos(root, "mnist", ALL, 1200, 82), "lower right noisy", 0.15, 4
    ),
    "CIFAR-10 2345, 15 % lower right covered": lambda root: hard(
        photos(root, "cifar10", "2345", 1200, 83), "lower right covered", 0.15, 4
    ),
    "noise": lambda root: noise(800, 5, 0),
}
"""No shortcut: what the level of the test was set with."""


def _null(d: int) -> dict[str, Maker]:
    """One draw of the sets without a shortcut."""
    return {
        "digits": lambda root: digits(root, 109 + d),
        "digits, 5 % wrong labels": lambda root: relabelled(digits(root, 110 + d), 0.05, 3 + d),
        "digits, 15 % noisy": lambda root: hard(digits(root, 111 + d), "noisy", 0.15, 3 + d),
        "digits, 15 % lower right noisy": lambda root: hard(digits(root, 112 + d), "lower right noisy", 0.15, 3 + d),
        "noise": lambda root: noise(1200, 10, 13 + d),
        "Fashion-MNIST, random labels": lambda root: random_labels(
            photos(root, "fashion_mnist", ALL, 1200, 71 + d), 3 + d
        ),
        "Fashion-MNIST, 2,000": lambda root: photos(root, "fashion_mnist", ALL, 2000, 72 + d),
        "Fashion-MNIST, 10 % next class": lambda root: relabelled(
            photos(root, "fashion_mnist", "13578", 1200, 73 + d), 0.1, 3 + d, next_class=True
        ),
        "Fashion-MNIST, 15 % lower right covered": lambda root: hard(
            photos(root, "fashion_mnist", ALL, 1200, 74 + d), "lower right covered", 0.15, 3 + d
        ),
        "MNIST, 10 % blurred": lambda root: hard(photos(root, "mnist", ALL, 1500, 74 + d), "blurred", 0.1, 3 + d),
        "CIFAR-10, classes 0389": lambda root: photos(root, "cifar10", "0389", 2000, 75 + d),
        "CIFAR-10, classes 47": lambda root: photos(root, "cifar10", "47", 1200, 76 + d),
    }


NULL: dict[str, Maker] = {f"{name}, draw {d + 1}": make for d in (0, 1) for name, make in _null(d).items()}
"""No shortcut, and no part in the calibration: two draws of each."""


def _planted(variant: Callable[..., Dataset], base: Maker, conflict: float, root: Path, **more: float) -> Dataset:
    return variant(base(root), conflict=conflict, seed=11, **more)


def _fashion(root: Path) -> Dataset:
    return photos(root, "fashion_mnist", ALL, 2000, 21, test=2000)


def _large_fashion(root: Path) -> Dataset:
    return photos(root, "fashion_mnist", ALL, 6000, 22, test=2000)


def _large_digits(root: Path) -> Dataset:
    return load("digits", image_size=20, data_seed=101)


def _digits(root: Path) -> Dataset:
    return digits(root, 101)


def _missed(root: Path) -> Dataset:
    return watermark(load("digits", image_size=20, data_seed=1), conflict=0.05, seed=1)


PLANTED: dict[str, Maker] = {
    f"{name}, {100 * conflict:g} %": partial(_planted, variant, base, conflict, **more)
    for name, variant, base, conflicts, more in (
        ("digits, colour", coloured, _digits, (0.01, 0.05, 0.1), {}),
        ("digits, background stripes", background, _digits, (0.01, 0.05, 0.1), {}),
        ("Fashion-MNIST, colour", coloured, _fashion, (0.01, 0.05, 0.1), {}),
        ("Fashion-MNIST of 6,000, colour", coloured, _large_fashion, (0.01,), {}),
        ("digits, corner mark", watermark, _large_digits, (0.01, 0.05, 0.1), {}),
        ("Fashion-MNIST, corner mark", watermark, _fashion, (0.01, 0.05, 0.1), {}),
        ("digits, tint of 0.3", coloured, _digits, (0.05,), {"tint": 0.3}),
        ("digits, tint of 0.15", coloured, _digits, (0.05,), {"tint": 0.15}),
    )
    for conflict in conflicts
} | {"digits, corner mark, 5 %, missed before": _missed}
"""A shortcut in all samples but this share; a draw of the corner mark that an earlier form of the test missed."""


def _few(variant: Callable[..., Dataset], base: Maker, count: int, seed: int, root: Path, **more: float) -> Dataset:
    data = base(root)
    return variant(data, conflict=count / len(data.train), seed=seed, **more)


LIMIT: dict[str, Maker] = {
    f"{name}, {count} conflicting, {seed}": partial(_few, variant, partial(base, seed=seed), count, seed)
    for name, variant, base in (
        ("digits, background stripes", background, digits),
        ("Fashion-MNIST, colour", coloured, partial(photos, name="fashion_mnist", classes=ALL, n=1000)),
    )
    for seed in range(51, 54)
    for count in (5, 10, 20)
}
"""A shortcut with few exceptions, several times each: from how many on it is found."""
