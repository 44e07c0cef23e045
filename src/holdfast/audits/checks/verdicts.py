"""What a check says of single test images, kept beside its numbers for ``samples.csv`` and for comparing models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
