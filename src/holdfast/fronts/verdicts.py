"""What a front says of single test images, kept beside its numbers for ``samples.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor

RIGHT: Final = "right"
WRONG: Final = "wrong"


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
