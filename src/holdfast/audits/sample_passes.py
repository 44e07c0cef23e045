"""Passes over test samples: what a check computes of each sample by itself, cut into blocks that anybody may compute.

Open this file to let a check's computation be shared out: declare it as a :class:`SamplePass`, ask for its rows with
``subject.rows``, and list it in the check's ``sample_passes(subject)``. Whoever computes a block, in whatever order,
the rows are the same bits: batches do not cross the ends of blocks, and random draws follow from the number of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.rng import derive

Rows = Mapping[str, Tensor]
"""Columns (N,) or (N, D) by name, one row per sample."""


@dataclass(frozen=True, eq=False)
class SamplePass:
    """One computation of samples, a row for each.

    name: of the file that keeps its rows, unique among the passes of a model. positions: (N,) samples, in the test
    split or wherever ``compute`` takes them from. size: samples of a block; all but the last have as many.
    compute: rows of the blocks with these numbers, in ascending order, one block after the other; on any device.
    cost: forward passes per sample, about, by which work is shared out. about: plain values that the rows depend on
    beside model, data, seed, precision and batch size. together: passes over the same samples with the same word here
    go to the same shards, because they share something that has to be made first.
    """

    name: str
    positions: Tensor
    size: int
    compute: Callable[[Sequence[int]], Iterable[Rows]] = field(repr=False)
    cost: float = 1.0
    about: Mapping[str, Any] = field(default_factory=dict)
    together: str = ""

    @property
    def blocks(self) -> int:
        return -(-len(self.positions) // self.size)

    def of(self, block: int) -> Tensor:
        """Positions of a block."""
        return self.positions[block * self.size : (block + 1) * self.size]

    def order(self, blocks: Iterable[int]) -> Tensor:
        """Positions of some blocks, one after the other: batches of ``size`` along them are the blocks."""
        return torch.cat([self.positions[:0], *(self.of(block) for block in blocks)])

    def all_rows(self) -> dict[str, Tensor]:
        """The rows of all blocks, in order, on the CPU."""
        return joined(self.compute(range(self.blocks)))


def joined(parts: Iterable[Rows]) -> dict[str, Tensor]:
    """Rows one below the other, on the CPU; nothing is read from the device before the end."""
    pieces = list(parts)
    names = pieces[0] if pieces else ()
    return {name: torch.cat([piece[name] for piece in pieces]).cpu() for name in names}


def block_seed(seed: int, purpose: str, block: int) -> int:
    """The seed of random draws for a block: they do not depend on what was computed before it.

    >>> block_seed(0, "noise", 0) == derive(0, "noise"), block_seed(0, "noise", 1) == derive(0, "noise/1")
    (True, True)
    """
    return derive(seed, f"{purpose}/{block}" if block else purpose)


def share_out(passes: Sequence[SamplePass], shards: int) -> list[dict[str, list[int]]]:
    """Which blocks of which pass each shard computes.

    A shard takes the same part of every pass, by position, as far as blocks go into shards; those left over, and passes
    of few blocks, go to whoever has least to do.
    """
    load = dict.fromkeys(range(shards), 0.0)
    shared: list[dict[str, list[int]]] = [{} for _ in range(shards)]
    groups: dict[str, list[SamplePass]] = {}
    for one in passes:
        groups.setdefault(one.together or one.name, []).append(one)

    def give(shard: int, group: Sequence[SamplePass], blocks: Sequence[int]) -> None:
        for one in group if blocks else ():
            shared[shard].setdefault(one.name, []).extend(blocks)
            load[shard] += one.cost * sum(len(one.of(block)) for block in blocks)

    def largest(group: Sequence[SamplePass]) -> float:
        return sum(one.cost * min(one.size, len(one.positions)) for one in group)

    for group in sorted(groups.values(), key=largest, reverse=True):
        blocks = max(one.blocks for one in group)
        each = blocks // shards
        for shard in range(shards):
            give(shard, group, range(shard * each, (shard + 1) * each))
        for block in range(each * shards, blocks):
            give(min(load, key=load.__getitem__), group, [block])
    return shared
