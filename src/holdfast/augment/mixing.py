"""Neighbours of samples and labels: mixed images, smoothed and adversarial labels (B, K), and how far to mix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.errors import require


def one_hot(y: Tensor, num_classes: int) -> Tensor:
    """(B, K) in float32."""
    return F.one_hot(y, num_classes).float()


def smooth_labels(y: Tensor, num_classes: int, *, epsilon: float) -> Tensor:
    """1−ε on the class, ε/(K−1) on each other (ALPS, eq. 6); torch's label smoothing of ε·K/(K−1).

    >>> import torch
    >>> smooth_labels(torch.tensor([1]), 3, epsilon=0.5)
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    require(num_classes >= 2, f"smoothing needs at least 2 classes, got {num_classes}")
    require(0 <= epsilon <= 1, f"epsilon must be in [0, 1], got {epsilon}")
    return one_hot(y, num_classes) * (1 - epsilon * num_classes / (num_classes - 1)) + epsilon / (num_classes - 1)


def adversarial_labels(logits: Tensor, y: Tensor, *, epsilon: float) -> Tensor:
    """The probabilities within L1 distance ε of the class for which cross-entropy is largest (ALPS, theorem 1).

    ε/2 moves from the class to the least likely one; where that is the class itself, the label stays.

    >>> import torch
    >>> adversarial_labels(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]), epsilon=0.5)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    require(0 <= epsilon <= 2, f"epsilon must be in [0, 2], the widest L1 distance of two labels, got {epsilon}")
    k = logits.shape[1]
    least = logits.detach().argmin(1)
    return one_hot(y, k) * (1 - epsilon / 2) + one_hot(least, k) * (epsilon / 2)


def mix(x: Tensor, partner: Tensor, lam: Tensor | float) -> Tensor:
    """λ·x + (1−λ)·partner (ALPS, eq. 9), with one λ for all or one per sample.

    >>> mix(torch.tensor([[0.0], [8.0]]), torch.tensor([[4.0], [4.0]]), torch.tensor([0.75, 1.0]))
    tensor([[1.],
            [8.]])
    """
    lam = torch.as_tensor(lam, dtype=x.dtype, device=x.device)
    return torch.lerp(partner, x, lam.reshape(-1, *[1] * (x.ndim - 1)) if lam.ndim else lam)


def cut(x: Tensor, partner: Tensor, lam: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A box of the partner pasted into each image (CutMix); the images, and the share of each that is still its own.

    The box covers 1−λ of the area and is centred anywhere on the image; the part beyond the border is lost, so the
    share that is left can exceed λ.

    >>> lam = torch.tensor([0.75])
    >>> x, share = cut(torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8), lam, generator=torch.Generator().manual_seed(0))
    >>> bool(share[0] == (x == 0).float().mean()), bool(share[0] >= 0.75)
    (True, True)
    """
    centre = torch.rand(2, len(x), 1, device=x.device, generator=generator)
    side = (1 - lam.float()).sqrt()[:, None]
    rows, columns = (
        covered((middle * length - side * length / 2).round(), (side * length).round(), length)
        for middle, length in zip(centre, x.shape[-2:], strict=True)
    )
    box = rows[:, :, None] & columns[:, None, :]
    return torch.where(box[:, None], partner, x), 1 - box.float().mean((1, 2))


def draw_beta(alpha: float, beta: float, n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """(n,) draws from Beta(alpha, beta), as a ratio of gamma variables; in float64, where small ones do not vanish.

    >>> drawn = draw_beta(1.0, 1.0, 1000, generator=torch.Generator().manual_seed(0), device=torch.device("cpu"))
    >>> bool((drawn.mean() - 0.5).abs() < 0.05), bool(((drawn > 0) & (drawn < 1)).all())
    (True, True)
    """
    first, second = (
        torch._standard_gamma(torch.full((n,), shape, dtype=torch.float64, device=device), generator=generator)
        for shape in (alpha, beta)
    )
    return (first / (first + second)).float()


def beta_of(mode: float, concentration: float) -> tuple[float, float]:
    """(alpha, beta) of the Beta distribution with this mode and alpha + beta = concentration.

    >>> beta_of(0.75, 10)
    (7.0, 3.0)
    """
    require(0 <= mode <= 1, f"mode must be in [0, 1], got {mode}")
    require(concentration > 2, f"concentration must be > 2 for a mode to exist, got {concentration}")
    return 1 + mode * (concentration - 2), 1 + (1 - mode) * (concentration - 2)


def shuffled(n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """(n,) a partner for each sample."""
    return torch.rand(n, generator=generator, device=device).argsort()


def covered(start: Tensor, side: Tensor | int, length: int) -> Tensor:
    """(n, length) which pixels of a line the stretches from (n, 1) on cover."""
    at = torch.arange(length, device=start.device)
    return (at >= start) & (at < start + side)
