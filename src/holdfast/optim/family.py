"""The members of the SAM family by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from holdfast.optim.metrics import Adaptive, Fisher, Scales
from holdfast.optim.sam import SAM


class ASAM(SAM):
    """Adaptive SAM: T = abs(w) + eta on weights, 1 on biases and normalisation (tensors of one dimension).

    scales: "weights" goes by names as the authors' code does, so that the weights of normalisation are scaled too; give
    ``model.named_parameters()`` then.
    kwargs: those of :class:`SAM`, such as ``friendly``, ``skip_nonfinite`` and ``capture``, and the base optimiser's.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = ASAM([weight], torch.optim.SGD, rho=0.5, lr=0.1)
    >>> def closure():
    ...     loss = weight.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    >>> weight.item()  # a single number is taken for a bias, so this is SAM: 2 - 0.1 · 2 · (2 + 0.5)
    1.5
    """

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: type[Optimizer],
        *,
        rho: float | Tensor = 0.5,
        eta: float = 0.01,
        scales: Scales = "matrices",
        **kwargs: Any,
    ) -> None:
        super().__init__(params, base_optimizer, rho=rho, metric=Adaptive(eta, scales), **kwargs)


class FisherSAM(SAM):
    """Fisher SAM: T² = 1 / (1 + eta·g²).

    kwargs: those of :class:`SAM`, such as ``rho``, ``friendly``, ``skip_nonfinite`` and ``capture``, and the base
    optimiser's.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = FisherSAM([weight], torch.optim.SGD, rho=0.5, eta=1.0, lr=0.1)
    >>> def closure():
    ...     loss = weight.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    >>> weight.item()  # climbs by rho · T = 0.5 / (1 + 4²)^½ = 0.121: 2 - 0.1 · 2 · 2.121
    1.5757464170455933
    """

    def __init__(self, params: ParamsT, base_optimizer: type[Optimizer], *, eta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(params, base_optimizer, metric=Fisher(eta), **kwargs)


class FriendlySAM(SAM):
    """Friendly SAM: the running mean of the gradient, its full-batch part, is taken out of the ascent.

    sigma: how much of the mean is taken out; with 0 it is SAM. lmbda: how much of the mean stays in a step.
    kwargs: those of :class:`SAM`, such as ``rho``, ``adaptive``, ``skip_nonfinite`` and ``capture``, and the base
    optimiser's.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = FriendlySAM([weight], torch.optim.SGD, rho=0.5, lr=0.1)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = weight.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> _ = optimizer.step(closure)
    >>> weight.item()  # 2 - 0.1 · 2 · (2 + 0.5)
    1.5
    """

    def __init__(
        self, params: ParamsT, base_optimizer: type[Optimizer], *, sigma: float = 1.0, lmbda: float = 0.9, **kwargs: Any
    ) -> None:
        super().__init__(params, base_optimizer, friendly=True, sigma=sigma, lmbda=lmbda, **kwargs)
