"""Real digits that come with scikit-learn, plain or with colour as a shortcut to the class."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from holdfast.data.biased.assign import balanced_groups, biased_groups
from holdfast.data.options import Options
from holdfast.data.resize import resize
from holdfast.data.splits import ArraySplit, Dataset, hold_out
from holdfast.rng import derive

SIDE = 16
"""Default side: twice the stored 8, so that convolutions and saliency maps have something to work on."""
TEST_SHARE = 1 / 3
COLOURS = {
    "red": (255, 0, 0),
    "orange": (255, 128, 0),
    "yellow": (255, 255, 0),
    "green": (0, 255, 0),
    "mint": (0, 255, 128),
    "cyan": (0, 255, 255),
    "blue": (0, 0, 255),
    "violet": (128, 0, 255),
    "magenta": (255, 0, 255),
    "white": (255, 255, 255),
}
"""The own colour of each digit. They differ in hue: in brightness the strokes differ anyway."""


def digits(options: Options) -> Dataset:
    """1797 digits, grey, 10 classes, about 2/3 for training."""
    train, test = hold_out(_all_digits(options), TEST_SHARE, derive(options.seed, "digits/test"))
    return Dataset("digits", tuple(map(str, range(10))), train=train, test=test)


def coloured_digits(options: Options) -> Dataset:
    """The same digits, each drawn in one colour on black; the group is the colour.

    In training a digit has its class's own colour, but for a share ``conflict`` of every class, which has one
    of the nine others. In the test set colours are balanced within every class: they say nothing about it.
    """
    plain = digits(options)
    assert isinstance(plain.train, ArraySplit)
    assert isinstance(plain.test, ArraySplit)
    train = biased_colours(plain.train.labels, options.conflict, options.seed)
    test = balanced_colours(plain.test.labels, options.seed)
    return Dataset(
        "coloured-digits",
        plain.classes,
        train=_paint(plain.train, train),
        test=_paint(plain.test, test),
        group_names=tuple(COLOURS),
    )


def biased_colours(labels: Tensor, conflict: float, seed: int) -> Tensor:
    """(N,) colours equal to the labels (N,), but for a share ``conflict`` of every class.

    The counts are exact: round(conflict N) in all, each class within one of its own share. A larger share
    adds conflicting samples and leaves the others as they were.
    """
    return biased_groups(labels, len(COLOURS), conflict, seed, purpose="colours")


def balanced_colours(labels: Tensor, seed: int) -> Tensor:
    """(N,) colours, each equally often (within one) in every class of the labels (N,), and over all."""
    return balanced_groups(labels, len(COLOURS), seed, purpose="colours")


@cache
def _stored() -> tuple[Tensor, Tensor]:
    """(images (1797, 1, 8, 8) with values 0..16, labels (1797,)); kept, as their text takes a while to parse."""
    from sklearn.datasets import load_digits  # slow to import, needed for these sets only

    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).view(-1, 1, 8, 8), torch.from_numpy(labels).long()


def _all_digits(options: Options) -> ArraySplit:
    stored, labels = _stored()
    images = stored * (255 / 16)
    return ArraySplit(resize(images, options.image_size or SIDE), labels, torch.full_like(labels, -1), "digits")


def _paint(split: ArraySplit, colours: Tensor) -> ArraySplit:
    palette = torch.tensor(list(COLOURS.values()))[colours]
    images = (split.images.float() * (palette[:, :, None, None] / 255)).round().to(torch.uint8)
    return ArraySplit(images, split.labels, colours, "coloured-digits", split.positions)
