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

LEAST_ROOM = 30
"""Rows a basis needs beyond the wanted vectors, to make progress between two restarts."""
SKEW = 0.01
"""A matrix further from symmetric than this, relative to its size, is refused; float32 stays below 1e-5."""
CHUNK = 1 << 20


class NoSpectrum(HoldfastError):
    """There is no spectrum to be had: no gradient flows, values are not finite, memory is too small."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest eigenvalues of a symmetric matrix, in the algebraic sense: 2 comes before -3.

    eigenvalues: (k,) float64, on the CPU, largest first.
    residuals: (k,) ‖A v − λ v‖ of the unit vectors v; some eigenvalue lies within this distance of λ.
    exact: residuals were computed with the matrix; otherwise they are the bound that Lanczos gives for free.
    converged: (k,) whether the residual is within the tolerance.
    complete: whether a search beside the vectors found nothing larger that had been missed.
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
    every: int = 5,
    exact: bool = True,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The largest eigenvalues of a symmetric matrix by Lanczos with full reorthogonalisation.

    One start vector sees each distinct eigenvalue once. So when the wanted pairs have converged, a second chain starts
    from a random vector orthogonal to all before it, and so on until one adds nothing: a double eigenvalue shows twice.
    Such a search ends when an eigenvalue that belongs among the top would have shown up but with probability ``risk``
    (Kuczyński and Woźniakowski, 1992: after j products from a random start, Lanczos is short of the largest eigenvalue
    by a share ε with probability at most 1.648 √n exp(-√ε (2j - 1))).

    start: (n,) random numbers; its type and device are those of the computation.
    steps: the most products to spend, not counting those for exact residuals.
    tolerance: a pair has converged when its residual is at most tolerance·|λ|, or ε^⅔·‖A‖, where ε is the spacing of
        floats: less is noise.
    risk: 1 leaves the search for missed eigenvalues out.
    rows: the most vectors to hold; beyond, the best are kept and the rest is dropped (thick restart, Wu and Simon,
        2000). Lowered to what fits into half of the free memory.
    every: products between two looks at the result; only these make a device wait for the host.
    exact: compute the residuals with the matrix, at ``top`` more products, rather than report Lanczos' bound.
    generator: for the random vectors of the search, on the device of ``start``; None is one seeded with 0.

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
    generator = generator or torch.Generator(start.device).manual_seed(0)
    noise = torch.finfo(start.dtype).eps ** (2 / 3)
    krylov = _Krylov(matvec, start, _capacity(start, min(rows, steps, n), min(n, steps, top + LEAST_ROOM)))
    while True:
        for _ in range(min(every, krylov.room, max(1, steps - krylov.products))):
            krylov.extend()
        ritz = krylov.ritz()
        limits = _limits(ritz.values[:top], tolerance, noise * float(ritz.values.abs().max()))
        settled = krylov.count >= top and bool((ritz.bounds[:top] <= limits).all())
        nothing_missed = krylov.count == n or krylov.nothing_missed(top, risk, float(limits[-1]))
        if krylov.count == n or (settled and (nothing_missed or risk == 1)):
            break
        if krylov.products >= steps and krylov.count >= top:
            break
        if krylov.broken:
            every = 1  # so few dimensions that looking ahead would only be cut off again
        if krylov.broken or (settled and nothing_missed is False):
            krylov.end()
            if krylov.room < min(LEAST_ROOM, n - krylov.count):
                krylov.compress(ritz, top)
            krylov.begin(torch.randn(n, generator=generator, dtype=start.dtype, device=start.device))
        elif krylov.room == 0:
            krylov.compress(ritz, top)
    nodes, weights = krylov.quadrature()
    vectors = krylov.combine(ritz.vectors[:, :top])
    values, residuals = ritz.values[:top], ritz.bounds[:top]
    products, size = krylov.products, float(ritz.values.abs().max())
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
        complete=bool(nothing_missed),
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
        krylov = _Krylov(matvec, probe, _capacity(probe, size, size))
        for _ in range(size):
            krylov.extend()
        krylov.ritz()
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
    pieces: tuple[Callable[[Sequence[Tensor]], Tensor], ...]
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

    def build(x: Tensor, y: Tensor, keep: bool) -> Callable[[Sequence[Tensor]], Tensor]:
        with _explained(), evaluating(model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs = _differentiable(functional_call(model, leaves, (x,)))
            return make(outputs, lambda z: loss(z, y).sum() / total, chosen, keep)

    device, dtype = chosen[0].device, chosen[0].dtype
    room = free_bytes(device) / 2 if memory is None else memory
    each = _graph_bytes(lambda: build(data[0][0][:1], data[0][1][:1], True), leaves.values()) if room else 0
    pieces: list[Callable[[Sequence[Tensor]], Tensor]] = []
    kept = 0
    for x, y in data:
        room -= each * len(y)
        kept += room > 0
        pieces.append(build(x, y, True) if room > 0 else _made_anew(build, x, y))
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
    """Eigenpairs of the projection, largest first: values (m,), vectors (m, m) in columns, residual bounds (m,)."""

    values: Tensor
    vectors: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, projection: Tensor, loose: Tensor) -> _Ritz:
        """projection: (m, m), its upper triangle. loose: (E, m) how much each row leaks into each unknown direction."""
        values, vectors = (part.flip(-1) for part in torch.linalg.eigh(projection, UPLO="U"))
        return cls(values, vectors, (loose @ vectors).abs().sum(0))


class _Krylov:
    """Orthonormal rows Q and the projection Q A Qᵀ, grown one product at a time without a word to the host.

    Rows come in chains: one begins with a vector of its own, and each further row is the new part of what A makes of
    the row before. A chain that is ended leaves a loose end: the new part of its last row, known by its length only.
    """

    def __init__(self, matvec: Matvec, start: Tensor, capacity: int) -> None:
        self.matvec = matvec
        self.capacity = capacity
        self.rows = start.new_empty(capacity + 1, len(start))
        self.projection = start.new_zeros(capacity, capacity)
        self.lengths = start.new_zeros(capacity)
        self.known: tuple[Tensor, Tensor] = (torch.zeros(0, 0), torch.zeros(0))
        self.loose = torch.zeros(0, 0, dtype=torch.float64)
        self.count = self.products = 0
        self.main: int | None = 0
        self.broken = False
        self.begin(start)

    @property
    def room(self) -> int:
        return self.capacity - self.count

    def begin(self, vector: Tensor) -> None:
        """Start a chain with the part of a vector that is orthogonal to all rows."""
        self.rows[self.count] = _unit(self._new_part(_unit(vector.detach())))
        self.first = self.linked = self.count
        self.broken = False

    def extend(self) -> None:
        """Multiply the newest row and make the next one of what is new."""
        m = self.count + 1
        held = self.rows[:m]
        product = self.matvec(held[-1]).detach()
        along = held @ product
        rest = torch.addmv(product, held.T, along, alpha=-1)
        again = held @ rest
        rest.addmv_(held.T, again, alpha=-1)
        length = rest.norm()
        self.projection[:m, m - 1] = along + again
        self.lengths[m - 1] = length
        torch.div(rest, length, out=self.rows[m])
        self.count = m
        self.products += 1

    def ritz(self) -> _Ritz:
        """Read the projection. Rows after one that A maps into the others are dropped: they are noise."""
        projection, lengths = (t.double().cpu() for t in (self.projection, self.lengths))
        spacing = torch.finfo(self.rows.dtype).eps
        size = 0.0
        for i in range(self.count):
            column = projection[: i + 1, i]
            if not bool(column.isfinite().all()):
                raise NoSpectrum("the matrix gives values that are not finite; look at the weights and the data")
            size = max(size, float(column.abs().max()))
            if i >= self.linked and lengths[i] <= 10 * spacing * size:
                self.count, self.broken = i + 1, True
                break
        m = self.count
        skew = (projection.diagonal(1)[self.linked : m - 1] - lengths[self.linked : m - 1]).abs()
        if bool((skew > SKEW * size).any()):
            raise NoSpectrum(
                f"the matrix is not symmetric: off by {float(skew.max()):.1g} where entries go up to {size:.1g}"
            )
        self.known = (projection[:m, :m], lengths[:m])
        if self.first == 0 and self.main is not None:
            self.main = m
        loose = torch.cat([_widened(self.loose, m), _last(m, lengths[m - 1])])
        if m == self.rows.shape[1]:  # the rows span everything: no direction is left to leak into
            loose = torch.zeros_like(loose)
        return _Ritz.of(projection[:m, :m], loose)

    def nothing_missed(self, top: int, risk: float, slack: float) -> bool | None:
        """Whether the newest chain shows that nothing above the top of the older rows is left; None if still open."""
        if self.first < top:
            return False
        projection, lengths = self.known
        older = torch.linalg.eigvalsh(projection[: self.first, : self.first], UPLO="U")
        own = projection[self.first :, self.first :]
        chain = _Ritz.of(own, _last(len(own), lengths[-1]))
        least, largest = float(older[-top]), float(chain.values[0])
        if largest > least + slack:
            return False
        if self.broken or float(chain.bounds[0]) <= slack:
            return True
        span = least - min(float(older[0]), float(chain.values[-1]))
        short = max(0.0, least - largest) / span if span > 0 else 0.0
        chance = 1.648 * math.sqrt(self.rows.shape[1]) * math.exp(-math.sqrt(short) * (2 * len(own) - 1))
        return True if chance <= risk else None

    def end(self) -> None:
        """Leave the newest chain as it is."""
        self.loose = torch.cat([_widened(self.loose, self.count), _last(self.count, self.known[1][-1])])
        self.broken = True

    def compress(self, ritz: _Ritz, top: int) -> None:
        """Keep the best combinations of rows; the chain, unless ended, goes on from its last direction."""
        keep = min(self.count, top + (self.capacity - top) // 3)
        mixed = ritz.vectors[:, :keep]
        weights = mixed.T.to(self.rows)
        for columns in torch.split(self.rows, CHUNK, dim=1):
            columns[:keep] = weights @ columns[: self.count]
        self.rows[keep] = self.rows[self.count]
        self.loose = _widened(self.loose, self.count) @ mixed
        self.projection.zero_()
        self.projection.diagonal()[:keep] = ritz.values[:keep].to(self.projection)
        self.lengths.zero_()
        self.count = self.linked = keep
        self.first, self.main = 0, None

    def combine(self, weights: Tensor) -> Tensor:
        """Unit vectors (k, n) from weights (count, k) of the rows."""
        return torch.nn.functional.normalize(weights.T.to(self.rows) @ self.rows[: self.count], dim=1)

    def quadrature(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the first chain: Σ weight f(node) estimates startᵀ f(A) start / ‖start‖²."""
        if self.main is None:
            return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        nodes, vectors = torch.linalg.eigh(self.known[0][: self.main, : self.main], UPLO="U")
        return nodes, vectors[0] ** 2

    def _new_part(self, vector: Tensor) -> Tensor:
        held = self.rows[: self.count]
        for _ in range(2):
            vector = torch.addmv(vector, held.T, held @ vector, alpha=-1)
        return vector


def _limits(values: Tensor, tolerance: float, noise: float) -> Tensor:
    """How large the residual of a converged pair may be."""
    return (tolerance * values.abs()).clamp(min=noise)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm()
    return unit


def _widened(loose: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(loose, (0, width - loose.shape[1]))


def _last(width: int, value: Tensor) -> Tensor:
    """(1, width) zeros but for the last."""
    return _widened(value.view(1, 1), width).flip(1)


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
    fitting = free_bytes(start.device) // 2 // row - 1
    if fitting < least:
        raise NoSpectrum(
            f"Lanczos needs {least + 1} vectors of {len(start):,} numbers, {(least + 1) * row / 2**30:.1f} GiB, and "
            f"half of the free memory of {start.device} is {free_bytes(start.device) / 2**31:.1f} GiB; free some, or "
            "ask for fewer eigenvalues or parameters"
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


def _hessian_piece(
    outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool
) -> Callable[[Sequence[Tensor]], Tensor]:
    """v → H v of one batch: the derivative of the gradient along v, by a second backward pass."""
    gradient = torch.autograd.grad(loss(outputs), leaves, create_graph=True, materialize_grads=True)

    def product(parts: Sequence[Tensor]) -> Tensor:
        return _flat(_pulled_back(gradient, leaves, parts, keep))

    return product


def _gauss_newton_piece(
    outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool
) -> Callable[[Sequence[Tensor]], Tensor]:
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

    return product


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


def _made_anew(
    build: Callable[[Tensor, Tensor, bool], Callable[[Sequence[Tensor]], Tensor]], x: Tensor, y: Tensor
) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda parts: build(x, y, False)(parts)


def _graph_bytes(build: Callable[[], object], leaves: Iterable[Tensor]) -> int:
    """Bytes that a graph holds on to, beside the leaves."""
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    held: dict[int, Tensor] = {}

    def see(saved: Tensor) -> Tensor:
        saved = saved.detach()
        held[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(see, lambda saved: saved):
        built = build()
    del built
    return sum(t.untyped_storage().nbytes() for pointer, t in held.items() if pointer not in known)


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
