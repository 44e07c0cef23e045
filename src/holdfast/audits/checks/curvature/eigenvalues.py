"""The largest eigenvalues of the Hessian of the training loss over some of its images: the check ``curvature``.

They have no interval over images, because none covers. The largest eigenvalue is convex in the matrix, so that of a
sample is on average larger than that of all images (Jensen), by a factor that the sample does not show: its
eigenvector fits the sample, the more so the more parameters there are. See docs/methods/curvature.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.curvature import NoSpectrum, Operator, Spectrum, hessian_operator, lanczos, smoothed
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Split
from holdfast.devices import exact, tf32_as_asked
from holdfast.losses import cross_entropy
from holdfast.rng import derive
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.curvature import Curvature

TOP = 5
TOLERANCE = 1e-3
DENSITY_STEPS = 20
"""Products given to the spectral density; the eigenvalues alone often need fewer."""
POINTS = 201
LARGER, PIXELS = 4, 2**20
"""On a GPU a batch is so many times that of other checks, unless it has more pixels then: fewer and larger kernels."""


def top_eigenvalues(subject: Subject, told: Curvature) -> tuple[Finding, ...]:
    ggn = told.ggn
    name, split = ("train", subject.data.train) if len(subject.data.train) else ("test", subject.split)
    chosen = draw(len(split), told.images or told.usual_images(subject.device.type), subject.seed, "curvature/images")
    matrix = "generalised Gauss-Newton" if ggn else "Hessian"
    settings = {"matrix": matrix, "loss": "mean cross-entropy", "split": name, "images": len(chosen)}
    precision = "fp32; vectors and density in tf32" if subject.device.type == "cuda" else "fp32"
    settings |= {"augmentation": "none", "precision": precision, "tolerance": TOLERANCE, "seed": subject.seed}
    try:
        found = spectrum(subject, split.subset(chosen), ggn=ggn)
    except NoSpectrum as reason:
        return (Finding("curvature", "top_eigenvalue", None, 0, settings=settings, evidence={"reason": str(reason)}),)
    return findings(found, len(chosen), {**settings, "parameters": found.vectors.shape[1]})


def spectrum(subject: Subject, split: Split, *, ggn: bool) -> Spectrum:
    """Top eigenvalues on all images of a split, in float32: shorter formats lose the small ones in noise. On a GPU the
    vectors are found in TF32, which is twice as fast; eigenvalues and residuals are then computed in float32."""
    device = subject.device

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        subject.check_outputs(outputs)
        return cross_entropy(outputs, y)

    generator = torch.Generator(device).manual_seed(derive(subject.seed, "curvature/start"))
    with exact(device):
        matrix = hessian_operator(subject.model, batches(subject, split), loss, ggn=ggn)
        start = torch.randn(matrix.size, generator=generator, device=device, dtype=matrix.dtype)
        top, least = min(TOP, matrix.size), DENSITY_STEPS
        rough = partial(in_tf32, matrix) if device.type == "cuda" else None
        return lanczos(matrix, start, top=top, tolerance=TOLERANCE, least=least, rough=rough, generator=generator)


def in_tf32(matrix: Operator, vector: Tensor) -> Tensor:
    with tf32_as_asked("tf32"):
        return matrix(vector)


def batches(subject: Subject, split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    size = subject.batch_size
    if subject.device.type == "cuda":
        _, height, width = split.shape
        size *= LARGER if LARGER * size * height * width <= PIXELS else 1
        size = -(-len(split) // -(-len(split) // size))  # as many batches, of one size
    loader = make_loader(split, batch_size=size, device=subject.device, workers=subject.workers)
    for batch in loader.batches(torch.arange(len(split))):
        yield to_float(batch.x), batch.y


def findings(found: Spectrum, n: int, settings: dict[str, Any]) -> tuple[Finding, ...]:
    values, residuals, converged = (t.tolist() for t in (found.eigenvalues, found.residuals, found.converged))
    whole: dict[str, Any] = {"eigenvalues": values, "residuals": residuals, "converged": converged}
    whole |= {"complete": found.complete, "products": found.products}
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
