"""The largest eigenvalues of a symmetric matrix by Lanczos, and its spectral density by stochastic quadrature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.curvature.krylov import Krylov, Matvec, checked_size, rows_that_fit
from holdfast.curvature.operator import Loss, hessian_operator
from holdfast.errors import require

LEAST_ROOM = 30
"""Rows a basis needs beyond the wanted vectors, to make progress between two restarts."""
SEED = 0x5EA2C4


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest eigenvalues of a symmetric matrix, in the algebraic sense: 2 comes before -3.

    eigenvalues: (k,) float64, on the CPU, largest first.
    residuals: (k,) ‖A v − λ v‖ of the unit vectors v; some eigenvalue lies within this distance of λ.
    exact: residuals were computed with the matrix; otherwise they are the bound that Lanczos gives for free.
    converged: (k,) whether the residual is within the tolerance.
    complete: whether a search beside everything seen found nothing that belongs among the top.
    vectors: (k, n), on the device of the matrix.
    products: how often the matrix was multiplied by a vector.
    nodes, weights: (m,) a Gauss quadrature of the spectral density seen from the start vector; empty after a restart.
    """

    eigenvalues: Tensor
    residuals: Tensor
    exact: bool
    converged: Tensor
    complete: bool
    vectors: Tensor
    products: int
    nodes: Tensor
    weights: Tensor


def lanczos(
    matvec: Matvec,
    start: Tensor,
    *,
    top: int = 5,
    steps: int = 300,
    tolerance: float = 1e-3,
    risk: float = 1e-3,
    rows: int = 100,
    every: int = 3,
    least: int = 0,
    exact: bool = True,
    rough: Matvec | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The largest eigenvalues of a symmetric matrix by Lanczos with full reorthogonalisation.

    One start vector sees each distinct eigenvalue once. So when the wanted pairs have converged, a search begins: a
    second chain, from a random vector orthogonal to everything seen, and so on until one adds nothing. A double
    eigenvalue shows twice. A search ends when an eigenvalue among the top, had it been there, would have shown up but
    with probability ``risk`` (Kuczyński and Woźniakowski, 1992: after j products from a random start, Lanczos is short
    of the largest eigenvalue by a share ε with probability at most 1.648 √n exp(-√ε (2j - 1))).

    start: (n,) random numbers; its type and device are those of the computation.
    steps: the most products to spend, not counting those for exact residuals; with ``rough``, of each matrix.
    tolerance: a pair has converged when its residual is at most tolerance·abs(λ), or ε^⅔·‖A‖, where ε is the spacing of
        floats: less is noise.
    risk: 1 leaves the search for missed eigenvalues out.
    rows: the most vectors to hold, but not fewer than top + 30; beyond, the best are kept and the rest is dropped
        (thick restart, Wu and Simon, 2000). Fewer where half of the free memory does not hold them.
    every: products between two checks of the result; only these synchronise with the host.
    least: products to give the first chain at least, for the sake of finer nodes and weights.
    exact: compute the residuals with the matrix, at ``top`` more products, rather than report Lanczos' bound.
    rough: the same matrix, faster and with noise, such as in TF32. The vectors are found with it, their eigenvalues and
        residuals with ``matvec``, at ``top`` products: a Rayleigh quotient is off by the square of what its vector is
        off by. Where a pair has not converged by then, ``top`` more refine them all; where that is not enough, all is
        done again with ``matvec``.
    generator: for the random vectors of the search, on the device of ``start``; None is one with a seed of its own.

    >>> found = lanczos(lambda v: torch.arange(9.0) * v, torch.ones(9), top=2)
    >>> found.eigenvalues.round(decimals=4), bool(found.converged.all())
    (tensor([8., 7.], dtype=torch.float64), True)
    """
    n = checked_size(start)
    require(1 <= top <= n, f"top must be from 1 to the size of the matrix, {n}, got {top}")
    require(steps >= top, f"steps must be at least top ({top}), got {steps}")
    require(every >= 1, f"every must be >= 1, got {every}")
    require(tolerance >= 0, f"tolerance must be >= 0, got {tolerance}")
    require(0 < risk <= 1, f"risk must be in (0, 1], got {risk}")
    generator = generator or torch.Generator(start.device).manual_seed(SEED)
    noise = torch.finfo(start.dtype).eps ** (2 / 3)
    spent = 0
    if rough is not None:
        same: dict[str, Any] = {"top": top, "steps": steps, "tolerance": tolerance, "risk": risk, "rows": rows}
        near = lanczos(rough, start, **same, every=every, least=least, exact=False, generator=generator)
        refined = _refined(near, matvec, tolerance)
        if bool(near.converged.all() & refined.converged.all()):
            return refined
        spent = refined.products
    capacity = rows_that_fit(start, min(rows, steps + 1, n + 1), min(top + LEAST_ROOM, steps + 1, n + 1))
    krylov = Krylov(matvec, start, capacity)
    ahead, complete = max(every, top, least), False
    while True:
        for _ in range(min(ahead, krylov.room, max(1, steps - krylov.products))):
            krylov.extend()
        krylov.read()
        ritz = krylov.ritz
        limits = _limits(ritz.values[:top], tolerance, noise * krylov.norm)
        unsettled = ritz.residuals[:top] > limits
        settled = len(limits) == top and not bool(unsettled.any())
        found = krylov.found(top, risk, float(limits[-1]))
        complete = found is False or (krylov.since is None and len(krylov.expanded) == n)
        if settled and (complete or risk == 1):
            break
        if krylov.products >= steps and len(limits) == top:
            break
        # After a breakdown so few dimensions are left that looking ahead would only be cut off again.
        ahead = every = 1 if krylov.broken else every
        if found:
            krylov.end_search()
            ahead = 0
        elif krylov.since is not None:
            krylov.make_room(1, top)
        elif settled or not krylov.pending:
            krylov.make_room(LEAST_ROOM, top)
            krylov.search(generator)
        else:
            krylov.make_room(1, top)
            krylov.follow(unsettled)
    nodes, weights = krylov.quadrature()
    vectors = krylov.combine(ritz.vectors[:, :top])
    values, residuals = ritz.values[:top], ritz.residuals[:top]
    converged = residuals <= _limits(values, tolerance, noise * krylov.norm)
    products, size = spent + krylov.products, krylov.norm
    del krylov
    made = Spectrum(values, residuals, False, converged, complete, vectors, products, nodes, weights)
    return _measured(made, matvec, tolerance, noise * size) if exact else made


def _measured(found: Spectrum, matvec: Matvec, tolerance: float, noise: float) -> Spectrum:
    """With eigenvalues and residuals that were computed with the matrix."""
    values, residuals = rayleigh(matvec, found.vectors)
    order = values.argsort(descending=True, stable=True)
    values, residuals, vectors = values[order], residuals[order], found.vectors[order.to(found.vectors.device)]
    converged = residuals <= _limits(values, tolerance, noise)
    own: dict[str, Any] = {"eigenvalues": values, "residuals": residuals, "converged": converged, "vectors": vectors}
    return replace(found, **own, exact=True, products=found.products + len(values))


def _refined(found: Spectrum, matvec: Matvec, tolerance: float) -> Spectrum:
    """Pairs of a rough matrix, measured with the true one, A; refined by Rayleigh–Ritz where they have not converged.

    What a vector v is off by is (A − λ)⁻¹r, with r = Av − λv. Noise of rough products lies nearly all in directions
    of little curvature, where that is −r/λ: so the span of the vectors and their residuals holds what they lack.
    """
    basis, top = found.vectors, len(found.vectors)
    images = torch.stack([matvec(v).detach() for v in basis])
    found = _ritz_pairs(found, basis, images, tolerance)
    if bool(found.converged.all()):
        return found
    residuals = images - (basis * images).sum(1, keepdim=True) * basis
    for _ in range(2):  # once more for what rounding left
        residuals = torch.linalg.qr((residuals - (residuals @ basis.T) @ basis).T).Q.T
    basis, images = (
        torch.cat([basis, residuals]),
        torch.cat([images, torch.stack([matvec(r).detach() for r in residuals])]),
    )
    return _ritz_pairs(found, basis, images, tolerance, top=top)


def _ritz_pairs(
    found: Spectrum, basis: Tensor, images: Tensor, tolerance: float, *, top: int | None = None
) -> Spectrum:
    """The best pairs in the span of orthonormal vectors (k, n), of which the matrix makes ``images``."""
    products = found.products + len(basis) - (len(found.vectors) if found.exact else 0)
    inner = (basis @ images.T).double()
    values, turns = torch.linalg.eigh((inner + inner.T) / 2)
    values, turns = values.flip(0)[:top], turns.flip(1)[:, :top].T.to(basis.dtype)
    vectors = turns @ basis
    off = (turns @ images - values[:, None].to(basis.dtype) * vectors).norm(dim=1).double().cpu()
    values = values.cpu()
    own: dict[str, Any] = {"eigenvalues": values, "residuals": off, "converged": off <= _limits(values, tolerance, 0.0)}
    return replace(found, **own, vectors=vectors, exact=True, products=products)


def eigenvalues(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss | None = None,
    *,
    top: int = 5,
    ggn: bool = False,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Spectrum:
    """The largest eigenvalues of the Hessian of the mean loss of a model over batches (x, y): its sharpness.

    loss: outputs and labels to one value per sample; by default cross-entropy. ggn: of the Gauss-Newton matrix instead.
    generator: for the random start, on the model's device. settings: those of :func:`lanczos`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> squares = lambda out, y: (out[:, 0] - y) ** 2 / 2
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> eigenvalues(model, [(x, torch.zeros(2))], squares, top=2).eigenvalues.round(decimals=3).tolist()
    [8.0, 2.0]
    """
    matrix = hessian_operator(model, batches, loss or partial(F.cross_entropy, reduction="none"), ggn=ggn)
    generator = generator or torch.Generator(matrix.device).manual_seed(SEED)
    start = torch.randn(matrix.size, generator=generator, device=matrix.device, dtype=matrix.dtype)
    return lanczos(matrix, start, top=min(top, matrix.size), generator=generator, **settings)


def rayleigh(matvec: Matvec, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rayleigh quotients λ = vᵀAv of unit vectors (k, n) and their residuals ‖Av − λv‖; (k,) each, on the CPU.

    >>> matrix = torch.diag(torch.tensor([1.0, 4.0]))
    >>> values, residuals = rayleigh(lambda v: matrix @ v, torch.eye(2))
    >>> values, residuals
    (tensor([1., 4.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    pairs = []
    for v in vectors:
        product = matvec(v).detach()
        value = v @ product
        pairs.append(torch.stack([value, (product - value * v).norm()]))
    found = torch.stack(pairs).double().cpu()
    return found[:, 0], found[:, 1]


def _limits(values: Tensor, tolerance: float, noise: float) -> Tensor:
    """How large the residual of a converged pair may be."""
    return (tolerance * values.abs()).clamp(min=noise)


@dataclass(frozen=True, eq=False)
class Density:
    """The share of eigenvalues per unit of λ, smoothed by a Gaussian of width sigma; its integral is 1.

    grid, values: (G,) float64. nodes, weights: (m,) the quadrature behind it; the weights sum to 1.
    """

    grid: Tensor
    values: Tensor
    nodes: Tensor
    weights: Tensor
    sigma: float


def density(
    matvec: Matvec, probes: Iterable[Tensor], *, steps: int = 40, points: int = 256, sigma: float | None = None
) -> Density:
    """The spectral density by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    probes: random vectors (n,); the more, the less noise. steps: products for each; the more, the finer.
    sigma: width of the smoothing; None is a hundredth of the span of the nodes.

    >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0]))
    >>> probes = torch.eye(3).unbind()
    >>> found = density(lambda v: matrix @ v, probes, steps=3)
    >>> bool(found.grid[0] < 1), bool(found.grid[-1] > 5)
    (True, True)
    """
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    found = []
    for probe in probes:
        size = min(steps, checked_size(probe))
        krylov = Krylov(matvec, probe, rows_that_fit(probe, size + 1, size + 1))
        for _ in range(size):
            krylov.extend()
        krylov.read()
        found.append(krylov.quadrature())
    require(bool(found), "a density needs at least one probe, got none")
    nodes, weights = (torch.cat(parts) for parts in zip(*found, strict=True))
    return smoothed(nodes, weights / len(found), points=points, sigma=sigma)


def smoothed(nodes: Tensor, weights: Tensor, *, points: int = 256, sigma: float | None = None) -> Density:
    """A density from a quadrature: a Gaussian at each node, on a grid that holds all but their far tails.

    >>> found = smoothed(torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double(), points=5)
    >>> len(found.grid)
    5
    """
    low, high = float(nodes.min()), float(nodes.max())
    if sigma is None:
        sigma = (high - low) / 100 or max(abs(high), 1.0) / 100
    require(sigma > 0, f"sigma must be > 0, got {sigma}")
    require(points >= 2, f"points must be >= 2, got {points}")
    grid = torch.linspace(low - 5 * sigma, high + 5 * sigma, points, dtype=torch.float64)
    bells = torch.exp(-(((grid[:, None] - nodes) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return Density(grid, bells @ weights, nodes, weights, sigma)
