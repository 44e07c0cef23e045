"""Real digits that come with scikit-learn, plain or with colour as a shortcut to the class."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.data.listing import ReaderOptions
from holdfast.parts import reader

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.data.splits import Dataset

SIDE = 16
"""Default side: twice the stored 8, so that convolutions and saliency maps have something to work on."""
TEST_SHARE = 1 / 3


@reader("digits", about="1,797 grey handwritten digits; no download.", names=("digits",), order=10)
def read_digits(source: str | Path, options: ReaderOptions) -> Dataset:
    """1797 digits, grey, 10 classes, about 2/3 for training."""
    from holdfast.data.images import resize
    from holdfast.data.splits import ArraySplit, Dataset, hold_out
    from holdfast.rng import derive

    stored, labels = _stored()
    images = resize(stored * (255 / 16), options.image_size or SIDE)
    digits = ArraySplit(images, labels, origin=str(source))
    train, test = hold_out(digits, TEST_SHARE, derive(options.seed, "digits/test"))
    return Dataset(str(source), tuple(map(str, range(10))), train=train, test=test)


@reader(
    "coloured-digits",
    about="The same digits with their colour as a shortcut to the class; no download.",
    names=("coloured-digits",),
    takes=("conflict",),
    order=11,
)
def read_coloured_digits(source: str | Path, options: ReaderOptions) -> Dataset:
    """The same digits, each drawn in one colour on black; the group is the colour.

    In training a digit has its class's own colour, but for a share ``conflict`` of every class, which has one of the
    nine others. In the test set colours are balanced within every class: they say nothing about it.
    """
    from holdfast.data.biased import coloured

    made = coloured(read_digits(source, options), conflict=options.conflict, seed=options.seed, purpose="colours")
    return replace(made, name=str(source))


@cache
def _stored() -> tuple[Tensor, Tensor]:
    """(images (1797, 1, 8, 8) with values 0..16, labels (1797,)); kept, as their text takes a while to parse."""
    import numpy as np
    import torch

    package = find_spec("sklearn")  # its loader would do, but importing that takes two seconds
    assert package is not None
    stored = Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(stored, delimiter=","))
    return rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].long()
