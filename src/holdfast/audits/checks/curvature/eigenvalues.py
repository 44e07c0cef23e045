"""The largest eigenvalues of the Hessian of the training loss, with intervals over images: the check ``curvature``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.curvature import NoSpectrum, Spectrum, hessian_operator, lanczos, smoothed
from holdfast.curvature.derivatives import many_derivatives
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Split
from holdfast.devices import exact
from holdfast.errors import HoldfastError, first_line, require
from holdfast.losses import cross_entropy
from holdfast.metrics import mean_interval
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.curvature import Curvature

TOP = 5
TOLERANCE = 1e-3
DENSITY_STEPS = 20
"""Products given to the spectral density; the eigenvalues alone often need fewer."""
POINTS = 201
OFF = 1e-3
"""By how much of λ1 an eigenvalue and the mean over images may differ: rounding."""


def top_eigenvalues(subject: Subject, told: Curvature) -> tuple[Finding, ...]:
    """What the check ``curvature`` finds; see its settings."""
    ggn = told.ggn
    name, split = ("train", subject.data.train) if len(subject.data.train) else ("test", subject.split)
    wanted = told.images or told.usual_images(subject.device.type)
    chosen = draw(len(split), wanted, subject.seed, "curvature/images")
    settings = {
        "matrix": "generalised Gauss-Newton" if ggn else "Hessian",
        "loss": "mean cross-entropy",
        "split": name,
        "images": len(chosen),
        "augmentation": "none",
        "precision": "fp32",
        "tolerance": TOLERANCE,
        "seed": subject.seed,
    }
    try:
        found = spectrum(subject, split.subset(chosen), ggn=ggn)
    except NoSpectrum as reason:
        return (Finding("curvature", "top_eigenvalue", None, 0, settings=settings, evidence={"reason": str(reason)}),)
    made = findings(found, len(chosen), {**settings, "parameters": found.vectors.shape[1]})
    return tuple(with_intervals(subject, split.subset(chosen), found, made, ggn=ggn))


def spectrum(subject: Subject, split: Split, *, ggn: bool) -> Spectrum:
    """Top eigenvalues on all images of a split. In float32 throughout: shorter formats lose the small ones in noise."""
    device = subject.device

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        subject.check_outputs(outputs)
        return cross_entropy(outputs, y)

    generator = torch.Generator(device).manual_seed(derive(subject.seed, "curvature/start"))
    with exact(device):
        matrix = hessian_operator(subject.model, batches(subject, split), loss, ggn=ggn)
        start = torch.randn(matrix.size, generator=generator, device=device, dtype=matrix.dtype)
        return lanczos(
            matrix, start, top=min(TOP, matrix.size), tolerance=TOLERANCE, least=DENSITY_STEPS, generator=generator
        )


def with_intervals(
    subject: Subject, split: Split, found: Spectrum, made: Sequence[Finding], *, ggn: bool
) -> Iterator[Finding]:
    """The findings with 95 % intervals over images: to first order, each moves an eigenvalue by its own curvature."""
    try:
        require(not ggn, "no interval for the Gauss-Newton matrix")
        first, last = (_moves(subject, split, found, i) for i in (0, len(found.eigenvalues) - 1))
    except (HoldfastError, RuntimeError, NotImplementedError) as error:  # not every layer can be differentiated thrice
        text = f"no interval: {first_line(error)}"
        yield from (f if f.value is None else replace(f, evidence={**f.evidence, "reason": text}) for f in made)
        return
    moves = {"top_eigenvalue": first, "fifth_eigenvalue": last}
    for f in made:
        if f.value is not None:
            own = moves.get(f.name, f.value * (1 + first / first.mean() - last / last.mean()))
            _, low, high = mean_interval(own - own.mean() + f.value)
            f = replace(f, low=low, high=high)
        yield f


def _moves(subject: Subject, split: Split, found: Spectrum, number: int) -> Tensor:
    """(N,) of one eigenvector; refused where their mean is not its eigenvalue, which would mean another matrix."""
    with exact(subject.device):
        each = per_sample_curvature(subject.model, batches(subject, split), found.vectors[number])
    value = float(found.eigenvalues[number])
    off = abs(float(each.mean()) - value)
    allowed = OFF * abs(float(found.eigenvalues[0])) + float(found.residuals[number])
    require(off <= allowed, f"single images curve the loss by {float(each.mean()):.4g} on average, not by {value:.4g}")
    return each


def batches(subject: Subject, split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    loader = make_loader(split, batch_size=subject.batch_size, device=subject.device, workers=subject.workers)
    for batch in loader.batches(torch.arange(len(split))):
        yield to_float(batch.x), batch.y


def findings(found: Spectrum, n: int, settings: dict[str, Any]) -> tuple[Finding, ...]:
    """λ1 with the whole spectrum as its evidence, λ5, and λ1/λ5."""
    values, residuals, converged = (t.tolist() for t in (found.eigenvalues, found.residuals, found.converged))
    whole: dict[str, Any] = {
        "eigenvalues": values,
        "residuals": residuals,
        "converged": converged,
        "complete": found.complete,
        "products": found.products,
    }
    if len(found.nodes):
        curve = smoothed(found.nodes, found.weights, points=POINTS)
        whole["density"] = {"grid": curve.grid.tolist(), "density": curve.values.tolist(), "sigma": curve.sigma}
    made = [Finding("curvature", "top_eigenvalue", values[0], n, settings=settings, evidence=whole)]
    if len(values) < TOP:
        return tuple(made)
    last = {"residual": residuals[-1], "converged": converged[-1]}
    made.append(Finding("curvature", "fifth_eigenvalue", values[-1], n, settings=settings, evidence=last))
    return (*made, ratio(values, residuals, n, settings))


def ratio(values: list[float], residuals: list[float], n: int, settings: dict[str, Any]) -> Finding:
    """λ1/λ5, which says something only where λ5 is clearly above zero."""
    if values[-1] <= residuals[-1]:
        reason = f"λ{TOP} is not clearly above zero: {values[-1]:.3g}, with a residual of {residuals[-1]:.3g}"
        return Finding("curvature", "eigenvalue_ratio", None, 0, settings=settings, evidence={"reason": reason})
    value = values[0] / values[-1]
    # to first order, the relative errors add up
    error = value * (residuals[0] / values[0] + residuals[-1] / values[-1])
    evidence = {"residual": error, "residuals": [residuals[0], residuals[-1]]}
    return Finding("curvature", "eigenvalue_ratio", value, n, settings=settings, evidence=evidence)


def per_sample_curvature(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], direction: Tensor) -> Tensor:
    """(N,) vᵀ Hᵢ v of every image's own cross-entropy, on the CPU in float64.

    direction: (P,) v over the parameters that require a gradient, or all if none does, in the model's order. Where v is
    an eigenvector of unit length, the mean is its eigenvalue, and to first order each image moves the eigenvalue by its
    own curvature; so the spread of these is that of the eigenvalue. The weights of the samples enter the loss linearly:
    differentiating twice by the parameters along v, then by the weights, leaves one number an image.
    """
    model = getattr(model, "_orig_mod", model)  # a compiled graph cannot be differentiated twice
    named = dict(model.named_parameters())
    chosen = [name for name, p in named.items() if p.requires_grad] or list(named)
    leaves = {name: p.detach().contiguous().requires_grad_(name in chosen) for name, p in named.items()}
    wanted = [leaves[name] for name in chosen]
    sizes = [leaf.numel() for leaf in wanted]
    parts = [part.view_as(leaf) for part, leaf in zip(torch.split(direction, sizes), wanted, strict=True)]

    def slope(of: Tensor) -> Tensor:
        """The derivative along v, with its graph."""
        found = torch.autograd.grad(of, wanted, create_graph=True, allow_unused=True)
        return torch.stack([(g * v).sum() for g, v in zip(found, parts, strict=True) if g is not None]).sum()

    made = []
    for x, y in batches:
        with evaluating(model), torch.enable_grad(), many_derivatives():
            weights = torch.ones(len(y), device=x.device, dtype=direction.dtype, requires_grad=True)
            total = (weights * cross_entropy(functional_call(model, leaves, (x,)), y)).sum()
            (each,) = torch.autograd.grad(slope(slope(total)), weights)
        made.append(each.detach().double().cpu())
    return torch.cat(made)
