"""The Krylov space that products of a symmetric matrix span, and the approximate eigenpairs in it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require

Matvec = Callable[[Tensor], Tensor]
"""v (n,) to A v (n,), on one device, float32 or float64; A is symmetric."""


class NoSpectrum(HoldfastError):
    """The spectrum cannot be computed: no gradient flows, values are not finite, or memory is too small."""


def free_bytes(device: torch.device) -> int:
    """Free memory of a device; a cautious guess where the system does not report it.

    >>> free_bytes(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 << 30


SKEW = 0.01
"""A matrix further from symmetric than this, relative to its size, is refused; float32 stays below 1e-5."""
ALIGNED = 128
"""Every row of a basis begins at a multiple of so many numbers."""
CHUNK = 1 << 18
"""Columns of the rows that are combined at a time: bounds the memory this takes."""


@dataclass(frozen=True, eq=False)
class Ritz:
    """Approximate eigenpairs, largest first.

    values: (m,). vectors: (m, m), in columns, over the multiplied rows. leaks: (p, m) how much of the product lies
    along each pending row: all that keeps a pair from being exact.
    """

    values: Tensor
    vectors: Tensor
    leaks: Tensor

    @property
    def residuals(self) -> Tensor:
        lengths: Tensor = self.leaks.norm(dim=0)
        return lengths


class Krylov:
    """Orthonormal rows and their products with the matrix, grown one at a time without synchronising with the host.

    A row is pending until it has been multiplied; the new part of the product then becomes a pending row. So the
    product of every multiplied row is known in full as a combination of rows, and a Ritz pair is exact but for what
    leaks into pending rows.

    A search sets the pending rows apart, begins a chain with a random vector, and reads that chain alone. Its rows
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
        self.bounded = capacity <= self.size  # whether there are fewer rows than the matrix could fill
        # Libraries choose their kernels by where a row begins too, and would choose anew for one that begins elsewhere.
        self.rows = start.new_empty(capacity, -(-self.size // ALIGNED) * ALIGNED)[:, : self.size]
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
    def norm(self) -> float:
        """How large the matrix is, as far as is known."""
        return max(abs(self.lowest), abs(self.highest))

    def extend(self) -> None:
        """Multiply the tip; the new part of the product becomes the next tip."""
        m = self.count
        rest, along = self._new_part(self.matvec(self.rows[self.tip]).detach())
        length = rest.norm()
        self.columns[:m, self.tip] = along
        self.columns[m, self.tip] = length
        torch.div(rest, length, out=self.rows[m])
        self.expanded.append(self.tip)
        self.fresh.append((self.tip, m))
        self.tip = m
        self.count += 1
        self.products += 1

    def read(self) -> None:
        """Read the products since the last time. Rows after one that added nothing new are noise and are dropped."""
        columns = self.columns[: self.count, : self.count].double().cpu()
        spacing = torch.finfo(self.rows.dtype).eps
        self.broken = False
        for row, new in self.fresh:
            along = columns[:new, row]
            if not bool(along.isfinite().all()):
                raise NoSpectrum("the matrix gives values that are not finite; check the weights and the data")
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
        inner = (inner + inner.T) / 2
        values, vectors = (part.flip(-1) for part in torch.linalg.eigh(inner))
        found = Ritz(values, vectors, columns[self.pending][:, own] @ vectors)
        self.lowest, self.highest = min(self.lowest, float(values[-1])), max(self.highest, float(values[0]))
        if self.since is not None:
            self.chain = found
            return
        self.ritz = found
        if self.only:
            self.first = inner

    def follow(self, unsettled: Tensor) -> None:
        """Continue with the pending row that the wanted pairs leak into most."""
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
            part, _ = self._new_part(drawn / drawn.norm())
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
            # so many chains are rare; a pending row that no wanted pair leaks into costs nothing
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
        self.ritz = Ritz(self.ritz.values[:keep], torch.eye(keep).double(), leaks[:, :keep])
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
        nodes, vectors = torch.linalg.eigh(self.first)
        return nodes, vectors[:1].flatten() ** 2  # none after a restart

    def _begin(self, vector: Tensor) -> None:
        self.rows[self.count] = vector / vector.norm()
        self.tip = self.count
        self.count += 1

    def _new_part(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """What of a vector is orthogonal to all rows, and how much of it lies along each."""
        held = self.rows[: self.count]
        first = held @ vector
        part = torch.addmv(vector, held.T, first, alpha=-1)
        second = held @ part
        return part.addmv_(held.T, second, alpha=-1), first + second


def checked_size(start: Tensor) -> int:
    given = f"shape {tuple(start.shape)} and {start.dtype}"
    flat = start.ndim == 1 and start.dtype in (torch.float32, torch.float64)
    require(flat, f"the start vector must be flat, float32 or float64, got {given}")
    length = float(start.norm())
    require(0 < length < math.inf, f"the start vector must be finite and not zero, got one of length {length}")
    return len(start)


def rows_that_fit(start: Tensor, wanted: int, least: int) -> int:
    """How many rows of the start vector's kind to hold."""
    row = len(start) * start.element_size()
    fitting = free_bytes(start.device) // 2 // row
    if fitting < least:
        needed = f"{least} vectors of {len(start):,} numbers, {least * row / 2**30:.2f} GiB"
        there = f"half of the free memory of {start.device} is {free_bytes(start.device) / 2**31:.2f} GiB"
        remedy = "free some, or ask for fewer eigenvalues or parameters"
        raise NoSpectrum(f"Lanczos needs {needed}, and {there}; {remedy}")
    return max(least, min(wanted, fitting))


def _combined(rows: Tensor, weights: Tensor) -> Tensor:
    """In float64, which also keeps clear of the shorter formats that matrix products may be allowed to take."""
    return (weights.T.to(rows.device) @ rows.double()).to(rows.dtype)
