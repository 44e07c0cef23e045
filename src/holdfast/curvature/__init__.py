"""Spectra of symmetric matrices that are never formed: top eigenvalues, spectral density, curvature of a loss.

A matrix is a function on flat vectors; :func:`hessian_operator` makes one of a model, data and a loss.
"""

from holdfast.curvature.lanczos import Spectrum, lanczos, rayleigh
from holdfast.curvature.matrices import Matvec, NoSpectrum, free_bytes
from holdfast.curvature.operator import Loss, Operator, Product, hessian_operator
from holdfast.curvature.quadrature import Density, density, smoothed

__all__ = [
    "Density",
    "Loss",
    "Matvec",
    "NoSpectrum",
    "Operator",
    "Product",
    "Spectrum",
    "density",
    "free_bytes",
    "hessian_operator",
    "lanczos",
    "rayleigh",
    "smoothed",
]
