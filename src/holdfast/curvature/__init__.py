"""Curvature of a loss: its largest Hessian eigenvalues (sharpness) and spectral density, without forming the Hessian.

:func:`eigenvalues` measures a model on batches; :func:`lanczos` and :func:`density` take any symmetric matrix that is
given as a function on flat vectors, such as :func:`hessian_operator` makes.
"""

from holdfast.curvature.krylov import Matvec, NoSpectrum, free_bytes
from holdfast.curvature.lanczos import Density, Spectrum, density, eigenvalues, lanczos, rayleigh, smoothed
from holdfast.curvature.operator import Loss, Operator, Product, hessian_operator

__all__ = [
    "Density", "Loss", "Matvec", "NoSpectrum", "Operator", "Product", "Spectrum", "density", "eigenvalues",
    "free_bytes", "hessian_operator", "lanczos", "rayleigh", "smoothed",
]  # fmt: skip
