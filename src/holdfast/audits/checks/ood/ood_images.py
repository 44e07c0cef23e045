"""Out-of-distribution images for the check ``ood``: noise, digits or sets that were named, in the model's size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import simple
from holdfast.audits.subject import Subject
from holdfast.data import load
from holdfast.data.images import resize
from holdfast.data.loaders import Images
from holdfast.data.splits import Dataset, Split
from holdfast.parts import named_data
from holdfast.rng import derive

NOISE: Final = "noise"
"""Drawn in the size of the data's images, unlike those that are read: in another size it is other images."""
MOST_OOD: Final = 1000
OF_DIGITS: Final = ("digits", "coloured-digits", "mnist", "svhn")
DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FEWEST: Final = 16
"""Images of a kind that are left when there is little time."""


def ood_images(subject: Subject, given: Mapping[str, str | Dataset | Images] | None) -> dict[str, Tensor]:
    """Images of no known class, in the model's size and colours."""
    shape, seed = subject.data.shape, subject.seed
    made: dict[str, Tensor] = {}
    if given is not None:
        for name, images in given.items():
            made[name] = _given(images, shape, seed)
        return made
    generator = torch.Generator().manual_seed(derive(seed, "unknown/noise"))
    made[NOISE] = torch.randint(0, 256, (256, *shape), generator=generator).to(torch.uint8)
    if not knows_digits(subject.data):
        made["digits"] = _given("digits", shape, seed)
    return made


def knows_digits(data: Dataset) -> bool:
    """Whether digits are, or may be, classes of the data: by the published set it is named after, else by its classes.

    Classes without names are numbered: ten of them may be digits, and what a model knows is not out of distribution.
    """
    named = simple(Path(data.name).stem)
    for known in sorted(named_data(), key=len, reverse=True):  # fashion-mnist before mnist
        if re.search(rf"\b{re.escape(simple(known))}\b", named):
            return known in OF_DIGITS
    words = {word for name in data.classes for word in simple(name).split()}
    return all(words & {str(digit), word} for digit, word in enumerate(DIGITS))


def cut(count: int, share: float) -> int:
    """A share of a number, but not so few that nothing can be said of them."""
    return min(count, max(FEWEST, math.ceil(share * count)))


def few(images: Tensor, share: float, seed: int) -> Tensor:
    """(N,) positions of a share of the images, drawn with the seed."""
    count = cut(len(images), share)
    if count == len(images):
        return torch.arange(count)
    generator = torch.Generator().manual_seed(derive(seed, "unknown/few"))
    return torch.randperm(len(images), generator=generator)[:count].sort().values


def _given(images: str | Dataset | Images, shape: tuple[int, int, int], seed: int) -> Tensor:
    if isinstance(images, str):
        images = load(images)
    if isinstance(images, Dataset):
        images = images.test if images.test is not None else images.train
    if not isinstance(images, Tensor):
        images = images.read(sample(images, MOST_OOD, seed))
    if images.dtype != torch.uint8:
        images = images.mul(255).round().to(torch.uint8)
    if tuple(images.shape[2:]) != shape[1:]:
        images = _fitted_size(images, shape[1], shape[2])
    if images.shape[1] == 1 and shape[0] == 3:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] == 3 and shape[0] == 1:
        images = images.float().mean(1, keepdim=True).round().to(torch.uint8)
    return images.contiguous()


def _fitted_size(images: Tensor, height: int, width: int) -> Tensor:
    """The centre of a square that covers the size."""
    side = max(height, width)
    square = resize(images, side)
    top, left = (side - height) // 2, (side - width) // 2
    return square[:, :, top : top + height, left : left + width]


def sample(split: Split, most: int, seed: int) -> Tensor:
    """(N,) positions of at most so many images of a split, drawn with the seed."""
    if len(split) <= most:
        return torch.arange(len(split))
    generator = torch.Generator().manual_seed(derive(seed, "unknown/sample"))
    return torch.randperm(len(split), generator=generator)[:most].sort().values
