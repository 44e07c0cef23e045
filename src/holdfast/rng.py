"""Named random generators, one per purpose, so that one more draw in one place changes nothing elsewhere; and samples
that are chosen without a draw."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

NAMES: Final = ("augment", "mix", "attack", "method")
"""What a training step may draw for, each from a generator of its own."""


def derive(seed: int, name: str) -> int:
    """A seed for one purpose, from the seed of the run.

    >>> derive(0, "order/0") == derive(0, "order/0") != derive(0, "order/1")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]) >> 1


def evenly(count: int, most: int) -> Tensor:
    """Positions that stand for ``count`` samples without a draw: at most so many, from the first to the last.

    >>> evenly(9, 3), evenly(2, 5)
    (tensor([0, 4, 8]), tensor([0, 1]))
    """
    positions = torch.linspace(0, count - 1, min(count, most)).round().long()
    return positions.clamp_(max=count - 1)  # beyond 2**24 the last is rounded up to one that is not there


class Generators:
    """One generator per name, on one device, from one seed.

    purposes: what the seed of a name is derived for, where that is not the name itself.
    """

    def __init__(self, seed: int, device: torch.device, *, purposes: Mapping[str, str] | None = None) -> None:
        seeds = {name: derive(seed, (purposes or {}).get(name, name)) for name in NAMES}
        self._generators = {name: torch.Generator(device).manual_seed(own) for name, own in seeds.items()}

    def __getitem__(self, name: str) -> torch.Generator:
        return self._generators[name]

    def values(self) -> tuple[torch.Generator, ...]:
        return tuple(self._generators.values())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: generator.get_state() for name, generator in self._generators.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, generator in self._generators.items():
            generator.set_state(state[name])
