"""Spectra of symmetric matrices that are never formed: top eigenvalues, spectral density, curvature of a loss.

A matrix is a function on flat vectors; :func:`hessian_operator` makes one of a model, data and a loss.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.borrow import evaluating
from holdfast.errors import HoldfastError, require

Matvec = Callable[[Tensor], Tensor]
"""v (n,) to A v (n,), on one device, float32 or float64; A is symmetric."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs (B, K) and labels (B,) to one value a sample (B,)."""
Product = Callable[[Sequence[Tensor]], Tensor]
"""A vector, cut into the shapes of the parameters, to a flat vector."""

LEAST_ROOM = 30
"""Rows a basis needs beyond the wanted vectors, to make progress between two restarts."""
SKEW = 0.01
"""A matrix further from symmetric than this, relative to its size, is refused; float32 stays below 1e-5."""
CHUNK = 1 << 18
"""Columns of the rows that are combined at a time: bounds the memory this takes."""
SEED = 0x5EA2C4


class NoSpectrum(HoldfastError):
    """There is no spectrum to be had: no gradient flows, values are not finite, memory is too small."""


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


@dataclass(frozen=True, eq=False)
class Density:
    """The share of eigenvalues a unit of λ, smoothed by a Gaussian of width sigma; its integral is 1.

    grid, values: (G,) float64. nodes, weights: (m,) the quadrature behind it; the weights sum to 1.
    """

    grid: Tensor
    values: Tensor
    nodes: Tensor
    weights: Tensor
    sigma: float


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
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The largest eigenvalues of a symmetric matrix by Lanczos with full reorthogonalisation.

    One start vector sees each distinct eigenvalue once. So when the wanted pairs have converged, a search begins: a
    second chain, from a random vector orthogonal to everything seen, and so on until one adds nothing. A double
    eigenvalue shows twice. A search ends when an eigenvalue among the top, had it been there, would have shown up but
    with probability ``risk`` (Kuczyński and Woźniakowski, 1992: after j products from a random start, Lanczos is short
    of the largest eigenvalue by a share ε with probability at most 1.648 √n exp(-√ε (2j - 1))).

    start: (n,) random numbers; its type and device are those of the computation.
    steps: the most products to spend, not counting those for exact residuals.
    tolerance: a pair has converged when its residual is at most tolerance·|λ|, or ε^⅔·‖A‖, where ε is the spacing of
        floats: less is noise.
    risk: 1 leaves the search for missed eigenvalues out.
    rows: the most vectors to hold, but not fewer than top + 30; beyond, the best are kept and the rest is dropped
        (thick restart, Wu and Simon, 2000). Fewer where half of the free memory does not hold them.
    every: products between two looks at the result; only these make a device wait for the host.
    least: products to give the first chain at least, for the sake of finer nodes and weights.
    exact: compute the residuals with the matrix, at ``top`` more products, rather than report Lanczos' bound.
    generator: for the random vectors of the search, on the device of ``start``; None is one with a seed of its own.

    >>> found = lanczos(lambda v: torch.arange(9.0) * v, torch.ones(9), top=2)
    >>> found.eigenvalues.round(decimals=4), bool(found.converged.all())
    (tensor([8., 7.], dtype=torch.float64), True)
    """
    n = _checked(start)
    require(1 <= top <= n, f"top must be from 1 to the size of the matrix, {n}, got {top}")
    require(steps >= top, f"steps must be at least top ({top}), got {steps}")
    require(every >= 1, f"every must be >= 1, got {every}")
    require(tolerance >= 0, f"tolerance must be >= 0, got {tolerance}")
    require(0 < risk <= 1, f"risk must be in (0, 1], got {risk}")
    generator = generator or torch.Generator(start.device).manual_seed(SEED)
    noise = torch.finfo(start.dtype).eps ** (2 / 3)
    capacity = _capacity(start, min(rows, steps + 1, n + 1), min(top + LEAST_ROOM, steps + 1, n + 1))
    krylov = _Krylov(matvec, start, capacity)
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
        complete = found is False or krylov.exhausted
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
    products, size = krylov.products, krylov.norm
    del krylov
    if exact:
        values, residuals = rayleigh(matvec, vectors)
        order = values.argsort(descending=True, stable=True)
        values, residuals, vectors = values[order], residuals[order], vectors[order.to(vectors.device)]
        products += top
    return Spectrum(
        eigenvalues=values,
        residuals=residuals,
        exact=exact,
        converged=residuals <= _limits(values, tolerance, noise * size),
        complete=complete,
        vectors=vectors,
        products=products,
        nodes=nodes,
        weights=weights,
    )


def rayleigh(matvec: Matvec, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rayleigh quotients λ = vᵀAv of unit vectors (k, n) and their residuals ‖Av − λv‖; (k,) each, on the CPU."""
    pairs = []
    for v in vectors:
        product = matvec(v).detach()
        value = v @ product
        pairs.append(torch.stack([value, (product - value * v).norm()]))
    found = torch.stack(pairs).double().cpu()
    return found[:, 0], found[:, 1]


def density(
    matvec: Matvec,
    probes: Iterable[Tensor],
    *,
    steps: int = 40,
    points: int = 256,
    sigma: float | None = None,
) -> Density:
    """The spectral density by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    probes: random vectors (n,); the more, the less noise. steps: products for each; the more, the finer.
    sigma: width of the smoothing; None is a hundredth of the span of the nodes.
    """
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    found = []
    for probe in probes:
        size = min(steps, _checked(probe))
        krylov = _Krylov(matvec, probe, _capacity(probe, size + 1, size + 1))
        for _ in range(size):
            krylov.extend()
        krylov.read()
        found.append(krylov.quadrature())
    require(bool(found), "a density needs at least one probe, got none")
    nodes, weights = (torch.cat(parts) for parts in zip(*found, strict=True))
    return smoothed(nodes, weights / len(found), points=points, sigma=sigma)


def smoothed(nodes: Tensor, weights: Tensor, *, points: int = 256, sigma: float | None = None) -> Density:
    """A density from a quadrature: a Gaussian at each node, on a grid that holds all but their far tails."""
    low, high = float(nodes.min()), float(nodes.max())
    if sigma is None:
        sigma = (high - low) / 100 or max(abs(high), 1.0) / 100
    require(sigma > 0, f"sigma must be > 0, got {sigma}")
    require(points >= 2, f"points must be >= 2, got {points}")
    grid = torch.linspace(low - 5 * sigma, high + 5 * sigma, points, dtype=torch.float64)
    bells = torch.exp(-(((grid[:, None] - nodes) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return Density(grid, bells @ weights, nodes, weights, sigma)


@dataclass(frozen=True, eq=False)
class Operator:
    """A symmetric matrix as a function of flat vectors (size,), made of one piece a batch.

    kept: how many of the pieces keep their graph, so that a product costs no forward pass.
    """

    shapes: tuple[torch.Size, ...]
    pieces: tuple[Product, ...]
    kept: int
    device: torch.device
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def __call__(self, v: Tensor) -> Tensor:
        require(v.shape == (self.size,), f"the vector must have {self.size} numbers, got shape {tuple(v.shape)}")
        flat = torch.split(v, [shape.numel() for shape in self.shapes])
        parts = [part.view(shape) for part, shape in zip(flat, self.shapes, strict=True)]
        with _explained():
            total = self.pieces[0](parts)
            for piece in self.pieces[1:]:
                total += piece(parts)
        return total


def hessian_operator(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    parameters: Iterable[Tensor] | None = None,
    ggn: bool = False,
    memory: float | None = None,
) -> Operator:
    """The Hessian of the mean loss over all samples of the batches, as a function v → H v; exact, by autograd.

    Every sample counts the same, however the data are cut. The model is run in evaluation mode and given back as it
    was: modes, gradients and buffers. Numbers are those of the model's type; on CUDA, allow TF32 only where three
    digits are enough.

    batches: (x, y) on the model's device.
    parameters: those to differentiate by; None is all that require a gradient, or all if none does.
    ggn: the generalised Gauss-Newton matrix mean(Jᵀ (∂²loss/∂outputs²) J) instead: what is left of the Hessian when the
        outputs are taken as linear in the parameters; positive semi-definite for a convex loss.
    memory: bytes that the graphs of the batches may take. A graph that is kept saves a third of each product; those
        beyond the limit are made anew each time. None is half of what is free.
    """
    model = getattr(model, "_orig_mod", model)  # a compiled graph cannot be differentiated twice
    data = list(batches)
    total = sum(len(y) for _, y in data)
    require(total > 0, "a Hessian needs at least one sample, got none")
    leaves = _leaves(model, parameters)
    chosen = [leaf for leaf in leaves.values() if leaf.requires_grad]
    make = _gauss_newton_piece if ggn else _hessian_piece

    def build(x: Tensor, y: Tensor, keep: bool) -> _Piece:
        with _explained(), evaluating(model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs = _differentiable(functional_call(model, leaves, (x,)))
            return make(outputs, lambda z: loss(z, y).sum() / total, chosen, keep)

    device, dtype = chosen[0].device, chosen[0].dtype
    room = free_bytes(device) / 2 if memory is None else memory
    each = _graph_bytes(lambda: build(data[0][0][:1], data[0][1][:1], True), leaves.values())
    pieces: list[Product] = []
    kept = 0
    for x, y in data:
        room -= each * len(y)
        kept += room > 0
        pieces.append(build(x, y, True).product if room > 0 else _made_anew(build, x, y))
    return Operator(tuple(leaf.shape for leaf in chosen), tuple(pieces), kept, device, dtype)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device; a careful guess where the system does not tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 << 30


@dataclass(frozen=True, eq=False)
class _Ritz:
    """Approximate eigenpairs, largest first.

    values: (m,). vectors: (m, m), in columns, over the multiplied rows. leaks: (p, m) how much of the product lies
    along each pending row: all that keeps a pair from being exact.
    """

    values: Tensor
    vectors: Tensor
    leaks: Tensor

    @classmethod
    def of(cls, projection: Tensor, leaks: Tensor) -> _Ritz:
        values, vectors = (part.flip(-1) for part in torch.linalg.eigh(projection))
        return cls(values, vectors, leaks @ vectors)

    @property
    def residuals(self) -> Tensor:
        lengths: Tensor = self.leaks.norm(dim=0)
        return lengths


class _Krylov:
    """Orthonormal rows, and what the matrix makes of them, grown one product at a time without a word to the host.

    A row is pending until it has been multiplied; the new part of the product then becomes a pending row. So the
    product of every multiplied row is known in full as a combination of rows, and a Ritz pair is exact but for what
    leaks into pending rows.

    A search sets the pending rows apart, begins a chain with a random vector, and looks at that chain alone. Its rows
    are orthogonal to the multiplied rows only, so it sees all that these do not. At its end the rows set apart are
    taken up again, less what the search has found of them.

    rows: (capacity, n); the first ``count`` are in use. columns: (capacity, capacity), the products in these terms.
    expanded: the multiplied rows, in that order. pending: the other ones. tip: the one to multiply next.
    apart: the rows set apart; leaks: how much of the product of each older row lies along them.
    since: where in ``expanded`` the chain of a search begins; None while there is none.
    ritz: the pairs of all multiplied rows but those of a search; chain: those of the search.
    first: the projection as long as there is but one chain and all of its rows.
    """

    def __init__(self, matvec: Matvec, start: Tensor, capacity: int) -> None:
        self.matvec = matvec
        self.size = len(start)
        self.rows = start.new_empty(capacity, self.size)
        self.columns = start.new_zeros(capacity, capacity)
        self.apart = start.new_empty(0, self.size)
        self.count = self.products = self.tip = 0
        self.entry = self.lowest = self.highest = 0.0
        self.expanded: list[int] = []
        self.fresh: list[tuple[int, int]] = []
        self.pending: list[int] = []
        self.since: int | None = None
        self.only = True
        self.first = torch.zeros(0, 0, dtype=torch.float64)
        self.broken = self.random = False
        self._begin(start.detach())

    @property
    def room(self) -> int:
        """How many rows can still be added."""
        reserved = len(self.apart) if self.bounded and self.since is not None else 0
        return len(self.rows) - self.count - reserved

    @property
    def bounded(self) -> bool:
        """Whether there are fewer rows than the matrix could fill."""
        return len(self.rows) <= self.size

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing left to know."""
        return self.since is None and len(self.expanded) == self.size

    @property
    def norm(self) -> float:
        """How large the matrix is, as far as is known."""
        return max(abs(self.lowest), abs(self.highest))

    def extend(self) -> None:
        """Multiply the tip, and go on with what is new."""
        m = self.count
        held = self.rows[:m]
        product = self.matvec(self.rows[self.tip]).detach()
        along = held @ product
        rest = torch.addmv(product, held.T, along, alpha=-1)
        again = held @ rest
        rest.addmv_(held.T, again, alpha=-1)
        length = rest.norm()
        self.columns[:m, self.tip] = along + again
        self.columns[m, self.tip] = length
        torch.div(rest, length, out=self.rows[m])
        self.expanded.append(self.tip)
        self.fresh.append((self.tip, m))
        self.tip = m
        self.count += 1
        self.products += 1

    def read(self) -> None:
        """Look at the products since the last time. Rows after one that brought nothing new are noise and dropped."""
        columns = self.columns[: self.count, : self.count].double().cpu()
        spacing = torch.finfo(self.rows.dtype).eps
        self.broken = False
        for row, new in self.fresh:
            along = columns[:new, row]
            if not bool(along.isfinite().all()):
                raise NoSpectrum("the matrix gives values that are not finite; look at the weights and the data")
            self.entry = max(self.entry, float(along.abs().max()))
            if new >= self.size or columns[new, row] <= 10 * spacing * self.entry:
                self.expanded = self.expanded[: self.expanded.index(row) + 1]
                self.columns[new:] = self.columns[:, new:] = 0
                self.count, self.broken = new, True
                break
        self.fresh = []
        self.pending = sorted(set(range(self.count)) - set(self.expanded))
        own = self.expanded[self.since or 0 :]
        inner = columns[own][:, own]
        skew = float((inner - inner.T).abs().max())
        if skew > SKEW * self.entry:
            raise NoSpectrum(f"the matrix is not symmetric: off by {skew:.1g} where entries go up to {self.entry:.1g}")
        found = _Ritz.of((inner + inner.T) / 2, columns[self.pending][:, own])
        self.lowest = min(self.lowest, float(found.values[-1]))
        self.highest = max(self.highest, float(found.values[0]))
        if self.since is not None:
            self.chain = found
            return
        self.ritz = found
        if self.only:
            self.first = (inner + inner.T) / 2

    def follow(self, unsettled: Tensor) -> None:
        """Go on with the pending row that the wanted pairs leak into most."""
        wanted = unsettled.nonzero()[:, 0] if bool(unsettled.any()) else slice(None)
        self.tip = self.pending[int(self.ritz.leaks[:, wanted].norm(dim=1).argmax())]

    def search(self, generator: torch.Generator) -> None:
        """Begin a chain with a random vector; one that is nearly a combination of the rows is drawn again."""
        m = len(self.expanded)
        self.apart = self.rows[self.pending]
        self.leaks = self.columns[self.pending][:, self.expanded]
        self._replace(None, [])
        self.since, self.random, self.only = m, True, False
        usual = math.sqrt((self.size - m) / self.size)
        while True:
            drawn = torch.randn(self.size, generator=generator, dtype=self.rows.dtype, device=self.rows.device)
            part, _ = self._new_part(_unit(drawn))
            if float(part.norm()) >= 0.1 * usual:
                return self._begin(part)

    def found(self, top: int, risk: float, slack: float) -> bool | None:
        """Whether the search has met something that belongs among the top; None while that is open."""
        if self.since is None:
            return None
        if self.since < top:
            return True
        least, best = float(self.ritz.values[top - 1]), float(self.chain.values[0])
        if best > least + slack:
            return True
        if self.broken or float(self.chain.residuals[0]) <= slack / 10:
            return False
        short = max(0.0, least - best) / (least - self.lowest) if least > self.lowest else 0.0
        chance = 1.648 * math.sqrt(self.size) * math.exp(-math.sqrt(short) * (2 * len(self.chain.values) - 1))
        return False if self.random and chance <= risk else None

    def end_search(self) -> None:
        """Take the rows that were set apart up again."""
        older = self.expanded[: self.since]
        for row, leaks in zip(self.apart, self.leaks, strict=True):
            part, along = self._new_part(row)
            self.columns[: self.count, older] += torch.outer(along, leaks)
            length = part.norm()
            if self.count < self.size and float(length) > math.sqrt(torch.finfo(part.dtype).eps):
                self.columns[self.count, older] = length * leaks
                self._begin(part)
        self.since = None

    def make_room(self, least: int, top: int) -> None:
        """Keep only the best combinations of rows if there is room for fewer than so many new ones."""
        if self.room >= least or not self.bounded:
            return
        if self.since is None:
            third = (len(self.rows) - top) // 3
            keep = min(len(self.expanded), top + third)
            # so many chains are rare; a pending row that no wanted pair leaks into is no loss
            order = self.ritz.leaks[:, :top].norm(dim=1).argsort(descending=True)[:third].tolist()
            leaks = self.ritz.leaks[order]
            self._replace(self.ritz.vectors[:, :keep], [self.pending[i] for i in order])
        else:
            keep, leaks = top, self.ritz.leaks
            best = self.rows[self.expanded[self.since :]].T @ self.chain.vectors[:, 0].to(self.rows)
            self.expanded = self.expanded[: self.since]
            self.leaks = self.leaks @ self.ritz.vectors[:, :keep].to(self.leaks)
            self._replace(self.ritz.vectors[:, :keep], [])
            self._begin(self._new_part(best)[0])
            self.since, self.random = keep, False
        self.ritz = _Ritz(self.ritz.values[:keep], torch.eye(keep).double(), leaks[:, :keep])
        self.only, self.first = False, self.first[:0, :0]

    def _replace(self, mixed: Tensor | None, pending: Sequence[int]) -> None:
        """Make combinations (old, new) of the multiplied rows the only ones, beside some of the pending rows."""
        m = len(self.expanded) if mixed is None else mixed.shape[1]
        count = m + len(pending)
        known = self.columns[:, self.expanded].double()
        inner, leaks = known[self.expanded], known[pending]
        if mixed is not None:
            weights = mixed.to(known)
            inner, leaks = weights.T @ inner @ weights, leaks @ weights
        for piece in torch.split(self.rows, CHUNK, dim=1):
            taken = piece[self.expanded] if mixed is None else _combined(piece[self.expanded], mixed)
            piece[:count] = torch.cat([taken, piece[pending]])
        self.columns.zero_()
        self.columns[:m, :m] = inner
        self.columns[m:count, :m] = leaks
        self.tip = m
        self.expanded, self.pending = list(range(m)), list(range(m, count))
        self.count = count

    def combine(self, weights: Tensor) -> Tensor:
        """Unit vectors (k, n) from weights (m, k) of the multiplied rows."""
        pieces = torch.split(self.rows, CHUNK, dim=1)
        made = torch.cat([_combined(piece[self.expanded[: len(weights)]], weights) for piece in pieces], dim=1)
        return torch.nn.functional.normalize(made, dim=1)

    def quadrature(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the first chain: Σ weight f(node) estimates startᵀ f(A) start / ‖start‖²."""
        if not len(self.first):
            return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        nodes, vectors = torch.linalg.eigh(self.first)
        return nodes, vectors[0] ** 2

    def _begin(self, vector: Tensor) -> None:
        self.rows[self.count] = _unit(vector)
        self.tip = self.count
        self.count += 1

    def _new_part(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """What of a vector is orthogonal to all rows, and how much of it lies along each."""
        held = self.rows[: self.count]
        first = held @ vector
        part = torch.addmv(vector, held.T, first, alpha=-1)
        second = held @ part
        return torch.addmv(part, held.T, second, alpha=-1), first + second


def _limits(values: Tensor, tolerance: float, noise: float) -> Tensor:
    """How large the residual of a converged pair may be."""
    return (tolerance * values.abs()).clamp(min=noise)


def _combined(rows: Tensor, weights: Tensor) -> Tensor:
    """In float64, which also keeps clear of the shorter formats that matrix products may be allowed to take."""
    return (weights.T.to(rows.device) @ rows.double()).to(rows.dtype)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm()
    return unit


def _checked(start: Tensor) -> int:
    require(
        start.ndim == 1 and start.dtype in (torch.float32, torch.float64),
        f"the start vector must be flat, float32 or float64, got shape {tuple(start.shape)} and {start.dtype}",
    )
    length = float(start.norm())
    require(0 < length < math.inf, f"the start vector must be finite and not zero, got one of length {length}")
    return len(start)


def _capacity(start: Tensor, wanted: int, least: int) -> int:
    """How many rows of the start vector's kind to hold."""
    row = len(start) * start.element_size()
    fitting = free_bytes(start.device) // 2 // row
    if fitting < least:
        raise NoSpectrum(
            f"Lanczos needs {least} vectors of {len(start):,} numbers, {least * row / 2**30:.2f} GiB, and half of the "
            f"free memory of {start.device} is {free_bytes(start.device) / 2**31:.2f} GiB; free some, or ask for fewer "
            "eigenvalues or parameters"
        )
    return max(least, min(wanted, fitting))


def _leaves(model: nn.Module, parameters: Iterable[Tensor] | None) -> dict[str, Tensor]:
    """Every parameter of a model as a leaf of its own that shares the numbers; the chosen ones ask for a gradient."""
    named = dict(model.named_parameters())
    chosen = {id(p) for p in named.values() if p.requires_grad} or {id(p) for p in named.values()}
    if parameters is not None:
        chosen = {id(p) for p in parameters}
        require(chosen <= {id(p) for p in named.values()}, "parameters must be among model.parameters()")
    if not chosen:
        raise NoSpectrum("there are no parameters to differentiate by")
    kinds = {(p.dtype, p.device) for p in named.values() if id(p) in chosen}
    if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise NoSpectrum(f"parameters must all be float32 or all float64, on one device, got {found}")
    return {name: p.detach().requires_grad_(id(p) in chosen) for name, p in named.items()}


def _differentiable(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise NoSpectrum(f"the model gives a {type(outputs).__name__}, not a tensor of outputs")
    if not outputs.requires_grad:
        raise NoSpectrum(f"no gradient flows from the outputs ({outputs.dtype}) back to the parameters")
    return outputs


@dataclass(frozen=True, eq=False)
class _Piece:
    """What one batch adds to a matrix, and the first derivatives behind it."""

    product: Product
    slopes: Sequence[Tensor]


def _hessian_piece(outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool) -> _Piece:
    """v → H v of one batch: the derivative of the gradient along v, by a second backward pass."""
    gradient = torch.autograd.grad(loss(outputs), leaves, create_graph=True, materialize_grads=True)

    def product(parts: Sequence[Tensor]) -> Tensor:
        return _flat(_pulled_back(gradient, leaves, parts, keep))

    return _Piece(product, gradient)


def _gauss_newton_piece(
    outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool
) -> _Piece:
    """v → Jᵀ L J v of one batch, with L the second derivative of the loss by the outputs.

    J v takes two backward passes: Jᵀu is linear in u, and the derivative of vᵀ(Jᵀu) by u is J v.
    """
    point = outputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(point), point, create_graph=True)
    zero = torch.zeros_like(outputs, requires_grad=True)
    back = torch.autograd.grad(outputs, leaves, zero, create_graph=True, materialize_grads=True)

    def product(parts: Sequence[Tensor]) -> Tensor:
        pushed = _pulled_back(back, [zero], parts, True)
        bent = _pulled_back([slope], [point], pushed, True)
        return _flat(_pulled_back([outputs], leaves, bent, keep))

    return _Piece(product, back)


def _pulled_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], along: Sequence[Tensor], keep: bool
) -> Sequence[Tensor]:
    """A vector-Jacobian product; outputs that are constant add nothing."""
    live = [(o, a) for o, a in zip(outputs, along, strict=True) if o.requires_grad]
    if not live:
        return [torch.zeros_like(i) for i in inputs]
    outputs, along = zip(*live, strict=True)
    return torch.autograd.grad(outputs, inputs, along, retain_graph=keep, materialize_grads=True)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _made_anew(build: Callable[[Tensor, Tensor, bool], _Piece], x: Tensor, y: Tensor) -> Product:
    return lambda parts: build(x, y, False).product(parts)


def _graph_bytes(build: Callable[[], _Piece], leaves: Iterable[Tensor]) -> int:
    """Bytes that the graph of a piece holds on to, beside the leaves; a graph with a dead end is refused."""
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    held: dict[int, Tensor] = {}

    def see(saved: Tensor) -> Tensor:
        saved = saved.detach()
        held[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(see, lambda saved: saved):
        _refuse_dead_ends(build().slopes)
    return sum(t.untyped_storage().nbytes() for pointer, t in held.items() if pointer not in known)


def _refuse_dead_ends(slopes: Iterable[Tensor]) -> None:
    """A function marked as once differentiable ends the graph without a word, and would count as constant."""
    seen: set[Any] = set()
    open_ = [slope.grad_fn for slope in slopes]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("::Error"):
            raise NoSpectrum("the model cannot be differentiated twice: a function in it is marked once_differentiable")
        seen.add(node)
        open_ += [following for following, _ in node.next_functions]


@contextmanager
def _explained() -> Iterator[None]:
    """Say what it means when torch cannot differentiate twice."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if any(words in text for words in ("not implemented", "double backward", "differentiate twice")):
            raise NoSpectrum(f"the model cannot be differentiated twice: {text.splitlines()[0]}") from error
        raise
