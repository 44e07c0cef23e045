"""Anomaly scores as pure functions of logits, features and distances, and the covariance behind some of them.

Higher is always more anomalous. Open this file for the formulas; the detectors fit what these functions take, and
import this file where torch must not be imported yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import require

if TYPE_CHECKING:
    from torch import Tensor

CELLS = 2**24
"""Distances held at a time: 64 MiB in float32, whatever the sizes of the two sets."""
SPARE = 8
"""Neighbours found beyond the k asked for, so that rounding in the matrix product cannot lose one."""
FLOOR = 1e-10
"""Least eigenvalue kept, as a share of the largest: below it is rounding."""
LEAST = 1e-12
"""Least eigenvalue of all, for data without any variance."""


def msp(logits: Tensor) -> Tensor:
    """(N,) 1 − the largest probability (Hendrycks & Gimpel, 2017).

    >>> import torch
    >>> msp(torch.zeros(1, 4))
    tensor([0.7500])
    """
    return 1 - logits.softmax(1).amax(1)


def max_logit(logits: Tensor) -> Tensor:
    """(N,) −the largest logit (Hendrycks et al., 2022)."""
    return -logits.amax(1)


def energy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """(N,) −T log Σ exp(logit / T) (Liu et al., 2020)."""
    return -temperature * (logits / temperature).logsumexp(1)


def mahalanobis(x: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """(N, K) squared Mahalanobis distances of x (N, D) to means (K, D), each as a difference: nothing cancels.

    whitening: (D, D') such that whitening @ whitening.T is the inverse covariance.
    """
    import torch

    white = x @ whitening
    return torch.stack([(white - mean).square().sum(1) for mean in means @ whitening], 1)


def vim(x: Tensor, logits: Tensor, *, origin: Tensor, residual: Tensor, alpha: float | Tensor) -> Tensor:
    """(N,) α ‖(x − origin) residual‖ − log Σ exp(logit) (Wang et al., 2022).

    residual: (D, R) orthonormal basis of what the principal space leaves out.
    """
    outside: Tensor = ((x - origin) @ residual).norm(dim=1)
    return alpha * outside + energy(logits)


@dataclass(frozen=True, eq=False)
class Bank:
    """Vectors to measure distances to, prepared once.

    vectors: (M, D) about their mean, so that norms are small and less cancels in the product. centre: (D,) that mean.
    norms: (M,) squared.
    """

    vectors: Tensor
    centre: Tensor
    norms: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> Bank:
        centre = vectors.mean(0)
        centred = vectors - centre
        return cls(centred, centre, centred.square().sum(1))


def neighbours(x: Tensor, bank: Tensor | Bank, *, k: int, cells: int = CELLS) -> tuple[Tensor, Tensor]:
    """(N, k) Euclidean distances of x (N, D) to its k nearest rows of the bank (M, D), exact, nearest first; and which.

    A matrix product finds the candidates in pieces of bounded memory; the distances to the few that are kept are
    then computed as differences, so that the product's rounding does not reach the result.
    """
    import torch

    bank = bank if isinstance(bank, Bank) else Bank.of(bank)
    vectors, size = bank.vectors, len(bank.vectors)
    require(1 <= k <= size, f"k must be in 1..{size}, the number of vectors in the bank, got {k}")
    kept = min(k + SPARE, size)
    step = max(1, min(len(x), cells // size))
    rows = max(1, cells // (kept * x.shape[1]))
    room = x.new_empty(step, size)
    found, rows_of = [x.new_empty(0, k)], [torch.empty(0, k, dtype=torch.int64, device=x.device)]
    for part in torch.split(x - bank.centre, step):
        products = torch.mm(part, vectors.T, out=room[: len(part)])
        nearness = torch.sub(bank.norms, products, alpha=2, out=products)  # |b|² − 2xb: |x|² changes no order
        candidates = nearness.topk(kept, largest=False, sorted=False).indices
        for own, chosen in zip(torch.split(part, rows), torch.split(candidates, rows), strict=True):
            exact = vectors[chosen].sub_(own[:, None]).square_().sum(2)
            nearest = exact.topk(k, largest=False)
            found.append(nearest.values.sqrt())
            rows_of.append(chosen.gather(1, nearest.indices))
    return torch.cat(found), torch.cat(rows_of)


def shrunk_covariance(centred: Tensor, *, shrinkage: float | None = None) -> tuple[Tensor, float]:
    """((D, D) covariance, share of (tr S / D)·I in it) of centred (N, D), which has mean 0, in float64.

    shrinkage: that share; None is the one that minimises the expected squared error (Ledoit & Wolf, 2004). Few samples
    ask for much, many for next to nothing.
    """
    require(shrinkage is None or 0 <= shrinkage <= 1, f"shrinkage must be in [0, 1], got {shrinkage}")
    centred = centred.double()
    n, d = centred.shape
    squares = centred.square()
    covariance = centred.T @ centred / n
    if shrinkage is None:
        beta = (squares.T @ squares).sum() / n - covariance.square().sum()
        delta = covariance.square().sum() - d * (squares.sum() / n / d) ** 2
        shrinkage = float((beta / n / delta).clamp(0, 1)) if delta > 0 else 1.0
    covariance *= 1 - shrinkage
    covariance.diagonal().add_(shrinkage * squares.sum() / n / d)
    return covariance, shrinkage


def whitening(covariance: Tensor) -> Tensor:
    """(D, D) W with W Wᵀ the inverse covariance; directions without any variance get the floor's."""
    import torch

    values, vectors = torch.linalg.eigh(covariance)
    made: Tensor = vectors * values.clamp(min=max(float(values[-1]) * FLOOR, LEAST)).rsqrt()
    return made
