"""Symmetric matrices with known eigenvalues, and random vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def matrix_of(values: Sequence[float] | Tensor, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    q = torch.linalg.qr(draw(len(values), len(values), seed=seed))[0]
    return (q * values @ q.T).to(dtype)


def largest(a: Tensor, k: int) -> Tensor:
    return torch.linalg.eigvalsh(a.double()).flip(0)[:k]
