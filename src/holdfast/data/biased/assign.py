"""Which group a sample gets: its class's own, but for an exact share; or all groups alike."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.errors import require
from holdfast.rng import derive


def biased_groups(labels: Tensor, groups: int, conflict: float, seed: int, *, purpose: str = "biased") -> Tensor:
    """(N,) groups equal to the labels (N,), but for a share ``conflict`` of every class, which gets another one.

    The counts are exact: round(conflict N) in all, each class within one of its own share. A larger share adds
    conflicting samples and leaves the others as they were. purpose: what the seed is drawn for.
    """
    require(0 <= conflict <= 1, f"conflict must be in [0, 1], got {conflict}")
    require(groups >= 2, f"a bias needs at least two groups, got {groups}")
    generator = torch.Generator().manual_seed(derive(seed, f"{purpose}/train"))
    order = torch.randperm(len(labels), generator=generator)
    offset = torch.randint(1, groups, (len(labels),), generator=generator)
    assigned = labels.clone()
    for label, count in enumerate(apportion(conflict, torch.bincount(labels))):
        chosen = order[labels[order] == label][:count]
        assigned[chosen] = (labels[chosen] + offset[chosen]) % groups
    return assigned


def balanced_groups(labels: Tensor, groups: int, seed: int, *, purpose: str = "biased") -> Tensor:
    """(N,) groups, each equally often (within one) in every class of the labels (N,), and over all."""
    generator = torch.Generator().manual_seed(derive(seed, f"{purpose}/test"))
    order = torch.randperm(len(labels), generator=generator)
    by_class = order[labels[order].argsort(stable=True)]
    assigned = torch.empty_like(labels)
    assigned[by_class] = torch.arange(len(labels)) % groups
    return assigned


def apportion(share: float, sizes: Tensor) -> list[int]:
    """share of each size, rounded so that the sum is right: the largest remainders are rounded up.

    >>> apportion(0.5, torch.tensor([3, 3, 2]))
    [2, 1, 1]
    """
    exact = [share * int(size) for size in sizes]
    counts = [int(value) for value in exact]
    missing = round(share * int(sizes.sum())) - sum(counts)
    for k in sorted(range(len(exact)), key=lambda k: counts[k] - exact[k])[:missing]:
        counts[k] += 1
    return counts
