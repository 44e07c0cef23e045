"""Losses, one value per sample: the caller weighs and averages.

First classification; then the terms of the evidence lower bound (ELBO) of a variational autoencoder, in which
q(z|x) = N(mean, exp(log_var)) with a diagonal, p(z) = N(0, 1), p(x|z) = N(decoded, σ²) with one σ.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) cross-entropy of logits (B, K) with classes (B,) or probabilities (B, K).

    Half-precision logits are widened first: the logarithm of a sum of exponentials needs the range.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.])
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, label, reduction="none")


def generalized_cross_entropy(logits: Tensor, y: Tensor, *, q: float = 0.7, scaled: bool = False) -> Tensor:
    """(B,) (1 − p_y^q) / q of Zhang and Sabuncu (2018): cross-entropy for q → 0, 1 − p_y for q = 1.

    scaled: q · p_y^q · cross-entropy with p_y held fixed, as the authors of LfF code it; its gradient is q times as
    long.

    >>> generalized_cross_entropy(torch.zeros(1, 4), torch.tensor([2]), q=1.0)
    tensor([0.7500])
    """
    loss = cross_entropy(logits, y)
    if scaled:
        return loss * (q * (-q * loss.detach()).exp())
    return -torch.expm1(-q * loss) / q


LOG_TWO_PI = math.log(2 * math.pi)
REPORT_SIGMA = math.sqrt(0.5)
"""With σ² = 1/2 the reconstruction term is the plain squared error, but for a constant."""


def kl_to_standard_normal(mean: Tensor, log_var: Tensor) -> Tensor:
    """(B,) KL(N(mean, exp(log_var)) ‖ N(0, 1)) of (B, K), summed over K: ½ Σ (μ² + σ² − log σ² − 1).

    >>> kl_to_standard_normal(torch.zeros(1, 3), torch.zeros(1, 3))
    tensor([0.])
    """
    return 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1)


def gaussian_nll(x: Tensor, decoded: Tensor, log_sigma: Tensor | float) -> Tensor:
    """(B,) −log N(x; decoded, σ²), summed over all pixels, the constant included.

    >>> x = torch.zeros(1, 2)
    >>> gaussian_nll(x, x, 0.0)  # log 2π
    tensor([1.8379])
    """
    squares = squared_error(x, decoded)
    pixels = x.shape[1:].numel()
    return 0.5 * squares * _exp(-2 * log_sigma) + pixels * (log_sigma + 0.5 * LOG_TWO_PI)


def squared_error(x: Tensor, decoded: Tensor) -> Tensor:
    """(B,) Σ (x − decoded)² over all pixels.

    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([5.])
    """
    return (x - decoded).square().flatten(1).sum(1)


def log_normal(z: Tensor, mean: Tensor | float = 0.0, log_var: Tensor | float = 0.0) -> Tensor:
    """(...,) log N(z; mean, exp(log_var)) of (..., K), summed over K.

    >>> round(float(log_normal(torch.zeros(1))), 4)
    -0.9189
    """
    return -0.5 * ((z - mean).square() * _exp(-log_var) + log_var + LOG_TWO_PI).sum(-1)


def reparameterise(mean: Tensor, log_var: Tensor, noise: Tensor) -> Tensor:
    """mean + σ · noise: a draw of q(z|x) through which gradients flow to both.

    >>> reparameterise(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([2.0]))
    tensor([3.])
    """
    return mean + torch.exp(0.5 * log_var) * noise


def importance_weighted_bound(log_weights: Tensor) -> Tensor:
    """(B,) log mean exp over the K draws of log p(x, z) − log q(z|x), given as (K, B).

    K = 1 is the ELBO by a single draw; the bound rises with K towards log p(x) (Burda et al., 2016).

    >>> importance_weighted_bound(torch.full((5, 2), -3.0))
    tensor([-3., -3.])
    """
    return log_weights.logsumexp(0) - math.log(len(log_weights))


def _exp(value: Tensor | float) -> Tensor | float:
    """A number stays one: as a tensor it would have to be sent to the device, which a CUDA graph cannot do."""
    return value.exp() if isinstance(value, Tensor) else math.exp(value)
