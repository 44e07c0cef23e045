"""What the SAM family refuses, with the reason and the remedy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from holdfast.errors import HoldfastError, UnknownArgument, require, unknown
from holdfast.optim.descent import trained_parameters
from holdfast.optim.foreach import are_spread

OWN = ("rho", "sigma", "lmbda")
"""What a group holds beside the base optimiser's settings."""


def require_settings(given: dict[str, Any]) -> None:
    """Looks at tensors too, which waits for the device."""
    for name, value in given.items():
        if name in OWN:
            number = isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
            least, most, said = (0, 1, "in [0, 1)") if name == "lmbda" else (0, math.inf, ">= 0 and finite")
            require(number and least <= float(value) < most, f"{name} must be a number {said}, got {value!r}")


def require_eta(eta: float) -> None:
    require(0 <= eta < math.inf, f"eta must be >= 0 and finite, got {eta}")


def require_capturable(base_optimizer: Optimizer) -> None:
    params = trained_parameters(base_optimizer)
    places = {p.device for p in params}
    found = f"found {', '.join(sorted(map(str, places)))}; move the model there first, or leave capture out"
    require(len(places) == 1 and params[0].is_cuda, f"capture needs all parameters on one CUDA device, {found}")
    why = "capture cannot record what processes tell each other, and these parameters are spread over several"
    require(not are_spread(params), f"{why}; leave capture out")
    fused = all(group.get("fused") for group in base_optimizer.param_groups)
    remedy = f"give {type(base_optimizer).__name__} fused=True, if it has it"
    require(fused, f"capture needs a fused base optimiser; {remedy}")


def refuse_lost_gradients() -> None:
    """Somebody who adds up gradients before ``step`` would train on the last of them alone: its closure evaluates no
    other, and the ascent needs the loss of all of them again, at the moved weights."""
    raise HoldfastError(
        "there are gradients from before step(closure), as Lightning's accumulate_grad_batches leaves them, and the "
        "step would drop them, since it evaluates the loss by itself; to accumulate gradients, do so inside the "
        "closure (under Lightning: accumulate_grad_batches=1 and larger batches); else call zero_grad() first"
    )


def require_arguments(kind: type[Optimizer], base_optimizer: type[Optimizer], given: Collection[str]) -> None:
    """Refuse what neither an optimiser of the family nor its base optimiser takes, with the name that was meant."""
    base = inspect.signature(base_optimizer).parameters
    if any(p.kind is p.VAR_KEYWORD for p in base.values()):
        return  # it judges them itself
    made = [vars(one)["__init__"] for one in kind.__mro__ if issubclass(one, Optimizer) and "__init__" in vars(one)]
    takes = (p for init in made[:-1] for p in inspect.signature(init).parameters.values())  # the last is torch's
    own = [p.name for p in takes if p.kind is p.KEYWORD_ONLY]
    known = dict.fromkeys([*own, *list(base)[1:]])
    for name in given:
        if name not in known:
            raise UnknownArgument(f"{kind.__name__}: {unknown('argument', name, known)}")


def require_descent(base_optimizer: type[Optimizer]) -> None:
    """Refuse what would not descend, or not as its documentation says."""
    given = f"base_optimizer must be a class such as torch.optim.SGD, got {base_optimizer}"
    require(inspect.isclass(base_optimizer), f"{given}; its settings go beside it")
    name = base_optimizer.__name__
    closure = inspect.signature(base_optimizer.step).parameters.get("closure")
    why = "evaluates the loss as often as it likes within a step, so there is no single point to climb to"
    remedy = "use an optimiser that takes one gradient a step, such as SGD or AdamW"
    once = closure is None or closure.default is not inspect.Parameter.empty
    require(once, f"{name} {why}; {remedy}")
    for shared in inspect.signature(base_optimizer).parameters.keys() & set(OWN):
        own = f"{name} has a setting {shared} of its own, where groups hold the ascent's {shared}"
        remedy = "use an optimiser without one, such as SGD or AdamW"
        raise HoldfastError(f"{own}; {remedy}, or a subclass that gives its {shared} another name")
