"""What is computed and kept of single test samples: passes, cut into blocks that anybody may compute, and what
checks say of each image, kept beside their numbers for ``samples.csv`` and for comparing models.

Open this file to let a check's computation be shared out: declare it as a :class:`SamplePass`, ask for its rows with
``subject.rows``, and list it in the check's ``sample_passes(subject)``. Whoever computes a block, in whatever order,
the rows are the same bits: batches do not cross the ends of blocks, and random draws follow from the number of a
block.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
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


RIGHT: Final = "right"
WRONG: Final = "wrong"
FALLS: Final = "falls at "
"""Before the smallest radius at which an attack brings an image down."""
ANSWERS: Final = "answers"


def encode(positions: Tensor, said: Sequence[str]) -> dict[str, Any]:
    """Evidence: (N,) positions in the test split and a word for each; every word is kept once.

    >>> import torch
    >>> encode(torch.tensor([4, 7, 9]), ["right", "wrong", "right"])
    {'positions': [4, 7, 9], 'words': ['right', 'wrong'], 'word': [0, 1, 0]}
    """
    words = list(dict.fromkeys(said))
    number = {word: i for i, word in enumerate(words)}
    return {"positions": positions.tolist(), "words": words, "word": [number[word] for word in said]}


def decode(evidence: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for position, word in zip(evidence["positions"], evidence["word"], strict=True):
        yield position, evidence["words"][word]


def pack(positions: Tensor, flags: Tensor, size: int) -> dict[str, str]:
    """Evidence: (N,) positions in a test split of some size and a flag for each, one bit an image, in hexadecimal.

    >>> import torch
    >>> pack(torch.tensor([0, 2, 9]), torch.tensor([True, False, True]), 10)
    {'seen': 'a040', 'right': '8040'}
    """
    return {"seen": mask(positions, size), "right": mask(positions[flags], size)}


def unpack(evidence: Mapping[str, Any], size: int) -> Tensor:
    """(size,) 1 and 0 of what :func:`pack` packed, NaN for images that were not looked at.

    >>> unpack({"seen": "a040", "right": "8040"}, 10)[[0, 1, 2, 9]]
    tensor([1., nan, 0., 1.], dtype=torch.float64)
    """
    seen, right = (unmask(evidence[key], size) for key in ("seen", "right"))
    return torch.where(seen, right.double(), torch.nan)


def mask(positions: Tensor, size: int) -> str:
    """(N,) positions among so many, one bit each, in hexadecimal."""
    bits = torch.zeros(size, dtype=torch.bool)
    bits[positions] = True
    return np.packbits(bits.numpy()).tobytes().hex()


def unmask(text: str, size: int) -> Tensor:
    """(size,) whether each position was among those of :func:`mask`."""
    return torch.from_numpy(np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=size)).bool()


RANKS: Final = "ranks"


def pack_ranks(scores: Tensor, test: Tensor, size: int, ood: Mapping[str, tuple[Tensor, int, str]]) -> dict[str, Any]:
    """Evidence: the place of every score (N,) among the others, those of test images first; equal ones share it.

    An AUROC asks for nothing else, on any part of the images. Two or four bytes an image. test: positions of the test
    images that were judged, among so many. ood: the same of each set of OOD images, and what they depend on besides the
    name of the set: sets of another kind hold other images.
    """
    rank = np.unique(scores.double().cpu().numpy(), return_inverse=True)[1]
    sets = {name: {"kind": kind, "size": most, "seen": mask(own, most)} for name, (own, most, kind) in ood.items()}
    code = "<u2" if len(rank) <= 2**16 else "<u4"
    text = base64.b64encode(rank.astype(code).tobytes()).decode("ascii")
    return {"test": mask(test, size), "ood": sets, "code": code, "rank": text}


Ranks = tuple[Tensor, Mapping[tuple[str, str], Tensor]]
"""By position, of test images and of OOD ones by the name and kind of their set; NaN for images not judged."""


def read_ranks(evidence: Mapping[str, Any], size: int) -> Ranks:
    """What :func:`pack_ranks` kept, of a test split of some size.

    >>> kept = pack_ranks(torch.tensor([0.5, 0.1, 0.9]), torch.tensor([0, 2]), 3, {"noise": (torch.tensor([1]), 2, "")})
    >>> test, ood = read_ranks(kept, 3)
    >>> test.tolist(), ood["noise", ""].tolist()
    ([1.0, nan, 0.0], [nan, 2.0])
    """
    rank = np.frombuffer(base64.b64decode(evidence["rank"]), np.dtype(evidence["code"])).astype(np.float64)
    sets = {(name, own["kind"]): unmask(own["seen"], own["size"]) for name, own in evidence["ood"].items()}
    seen = [unmask(evidence["test"], size), *sets.values()]
    parts = torch.split(torch.from_numpy(rank), [int(own.sum()) for own in seen])
    test, *ood = (
        torch.full(own.shape, torch.nan, dtype=torch.float64).masked_scatter(own, part)
        for own, part in zip(seen, parts, strict=True)
    )
    return test, dict(zip(sets, ood, strict=True))
