"""What checks say of single test images, kept beside their numbers for ``samples.csv`` and for comparing models."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

RIGHT: Final = "right"
WRONG: Final = "wrong"
FALLS: Final = "falls at "
"""Before the smallest radius at which an attack brings an image down."""
ANSWERS: Final = "answers"
"""Evidence under this key is what :func:`pack` makes."""


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
    """(position, word) of each image."""
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
"""Evidence under this key is what :meth:`Looked.ranks` makes."""


@dataclass(frozen=True, eq=False)
class Looked:
    """Which images were judged: (N,) positions of test images among so many, and of each set of OOD ones.

    kinds: what the images of a set depend on besides its name; sets of another kind hold other images.
    """

    test: Tensor
    size: int
    ood: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    kinds: Mapping[str, str] = field(default_factory=dict)

    def ranks(self, scores: Tensor) -> dict[str, Any]:
        """Evidence: the place of every score (N,) among the others, those of test images first; equal ones share it.

        An AUROC asks for nothing else, on any part of the images. Two or four bytes an image.
        """
        rank = np.unique(scores.double().cpu().numpy(), return_inverse=True)[1]
        ood = {
            name: {"kind": self.kinds.get(name, ""), "size": self.sizes[name], "seen": mask(own, self.sizes[name])}
            for name, own in self.ood.items()
        }
        code = "<u2" if len(rank) <= 2**16 else "<u4"
        text = base64.b64encode(rank.astype(code).tobytes()).decode("ascii")
        return {"test": mask(self.test, self.size), "ood": ood, "code": code, "rank": text}


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranks by position, NaN for images that were not judged; OOD ones by the name and kind of their set."""

    test: Tensor
    ood: Mapping[tuple[str, str], Tensor]


def read_ranks(evidence: Mapping[str, Any], size: int) -> Ranked:
    """What :meth:`Looked.ranks` kept, of a test split of some size.

    >>> looked = Looked(torch.tensor([0, 2]), 3, {"noise": torch.tensor([1])}, {"noise": 2})
    >>> read = read_ranks(looked.ranks(torch.tensor([0.5, 0.1, 0.9])), 3)
    >>> read.test.tolist(), read.ood["noise", ""].tolist()
    ([1.0, nan, 0.0], [nan, 2.0])
    """
    rank = np.frombuffer(base64.b64decode(evidence["rank"]), np.dtype(evidence["code"])).astype(np.float64)
    left = torch.from_numpy(rank)

    def placed(seen: Tensor) -> Tensor:
        nonlocal left
        count = int(seen.sum())
        values = torch.full((len(seen),), torch.nan, dtype=torch.float64)
        values[seen], left = left[:count], left[count:]
        return values

    test = placed(unmask(evidence["test"], size))
    sets = evidence["ood"].items()
    return Ranked(test, {(name, own["kind"]): placed(unmask(own["seen"], own["size"])) for name, own in sets})
