"""What the SAM family refuses, with the reason and the remedy."""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from holdfast.errors import HoldfastError, require

OWN = ("rho", "sigma", "lmbda")
"""What a group holds beside the base optimiser's settings."""


def require_settings(given: dict[str, Any]) -> None:
    rho, sigma, lmbda = given.get("rho", 0.0), given.get("sigma", 0.0), given.get("lmbda", 0.0)
    require(isinstance(rho, Tensor) or 0 <= rho < math.inf, f"rho must be >= 0 and finite, got {rho}")
    require(0 <= sigma < math.inf, f"sigma must be >= 0 and finite, got {sigma}")
    require(0 <= lmbda < 1, f"lmbda must be in [0, 1), got {lmbda}")


def require_eta(eta: float) -> None:
    require(0 <= eta < math.inf, f"eta must be >= 0 and finite, got {eta}")


def require_descent(base_optimizer: type[Optimizer]) -> None:
    """Refuse what would not descend, or not as its documentation says."""
    require(
        inspect.isclass(base_optimizer),
        f"base_optimizer must be a class such as torch.optim.SGD, got {base_optimizer}; its settings go beside it",
    )
    name = base_optimizer.__name__
    closure = inspect.signature(base_optimizer.step).parameters.get("closure")
    require(
        closure is None or closure.default is not inspect.Parameter.empty,
        f"{name} evaluates the loss as often as it likes within a step, so there is no single "
        "point to climb to; use an optimiser that takes one gradient a step, such as SGD or AdamW",
    )
    for shared in inspect.signature(base_optimizer).parameters.keys() & set(OWN):
        raise HoldfastError(
            f"{name} has a setting {shared} of its own, where groups hold the ascent's {shared}; use an optimiser "
            f"without one, such as SGD or AdamW, or a subclass that gives its {shared} another name"
        )
