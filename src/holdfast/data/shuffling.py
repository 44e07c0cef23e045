"""The order of an epoch: a full shuffle, or one by blocks and windows for data that is read best in long pieces; and
how well an order is mixed. Open this file to change what ``--shuffle window`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.errors import require
from holdfast.settings.training import DataSettings

BLOCK: Final = 32
"""Neighbouring images that are read together: some megabytes of photographs."""


def epoch_order(count: int, seed: int, settings: DataSettings) -> Tensor:
    """Every position once, shuffled as settings say: in any order alike, or by windows.

    >>> epoch_order(5, 0, DataSettings()).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    if settings.shuffle == "window":
        return window_order(count, seed, window=settings.shuffle_window)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def window_order(count: int, seed: int, *, window: int, block: int = BLOCK) -> Tensor:
    """Every position once: blocks of neighbours in random order, and within each window of so many images, all of its
    blocks mixed (the two-level shuffle of CorgiPile, Xu et al., 2022).

    Only the images of one window need be at hand at a time, each block of them in one piece. A pure function of its
    arguments. Where blocks begin differs from seed to seed, so that neighbours do not always come together.

    >>> window_order(10, 0, window=4, block=2).sort().values.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    require(window >= 1 and block >= 1, f"window and block must be >= 1, got {window} and {block}")
    generator = torch.Generator().manual_seed(seed)
    shift = int(torch.randint(block, (1,), generator=generator))
    blocks = torch.randperm(-(-(count + shift) // block), generator=generator)
    positions = (blocks[:, None] * block + torch.arange(block) - shift).flatten()
    positions = positions[(positions >= 0) & (positions < count)]
    # one draw in [0, 1) beyond the number of its window: sorted, they shuffle within windows alone
    keys = torch.arange(count) // window + torch.rand(count, generator=generator, dtype=torch.float64)
    return positions[keys.argsort(stable=True)]


@dataclass(frozen=True)
class Mixing:
    """How an order mixes. Both are 1 for a perfect shuffle, on average, and more for a worse one.

    classes: the variance of how many images of a class a batch has, as a multiple of a perfect shuffle's.
    neighbours: how many pairs of a batch lie beside each other in storage, as a multiple of a perfect shuffle's.
    """

    classes: float
    neighbours: float


def mixing(order: Tensor, labels: Tensor, *, batch_size: int, reach: int = BLOCK) -> Mixing:
    """How well an order (N,) of positions mixes images with these labels (N,) into batches. reach: positions that are
    less than so far apart are neighbours.

    Of full batches. A perfect shuffle draws a batch without replacement, so that the count of a class of size m has
    variance B · (m/N)(1 − m/N) · (N − B)/(N − 1), and a pair is of neighbours with the share of all pairs that are.

    >>> order = torch.arange(4096)
    >>> mixing(order, order // 1024, batch_size=64).classes > 50
    True
    """
    n, size = len(order), batch_size
    require(size >= 2 and n > size, f"batch_size must be in 2..{n - 1} for {n} images, got {size}")
    batches = order[: n // size * size].view(-1, size)
    counts = torch.nn.functional.one_hot(labels[batches]).sum(1).double()
    share = torch.bincount(labels).double() / n
    perfect = (size * share * (1 - share) * (n - size) / (n - 1)).sum()
    spread = (counts - size * share).square().mean(0).sum()
    ordered = batches.sort(1).values
    near = sum(int((ordered[:, k:] - ordered[:, :-k] < reach).sum()) for k in range(1, min(reach, size)))
    pairs = (reach - 1) * (n - reach / 2) / (n * (n - 1) / 2)  # of all pairs, those less than reach apart
    return Mixing(float(spread / perfect), near / (len(batches) * size * (size - 1) / 2 * pairs))
