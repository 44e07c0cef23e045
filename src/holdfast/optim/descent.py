"""The torch optimiser that descends: built from settings, its step inside a sharpness-aware one, and what the SAM
family refuses of it, with the reason and the remedy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.errors import HoldfastError, UnknownArgument, require, unknown
from holdfast.optim.foreach import are_spread
from holdfast.settings import OptimizerSettings

SCALE = "lr_scale"
"""The option of a group that says what its learning rate is multiplied by."""


def build_optimizer(
    settings: OptimizerSettings,
    parameters: Iterable[tuple[str, Tensor]],
    around: Callable[..., Optimizer] | None = None,
    *,
    skip_nonfinite: bool = True,
    fused: bool = True,
    scales: Mapping[str, float] | None = None,
) -> Optimizer:
    """The optimiser that settings name, for parameters with their names.

    around: makes that of an ascent (``Ascent.optimizer``).
    fused: use torch's fused kernels on a CPU too; they are faster and round differently. On a GPU they are always used.

    scales: what the learning rate of a parameter is multiplied by, where that is not 1; equal ones share a group.

    On a GPU its learning rate and radius are tensors there, so that a CUDA graph follows their schedules.

    >>> from holdfast.settings import OptimizerSettings
    >>> network = torch.nn.Linear(2, 1)
    >>> optimizer = build_optimizer(OptimizerSettings("adamw", 1e-3), network.named_parameters())
    >>> type(optimizer).__name__, optimizer.param_groups[0]["lr"]
    ('AdamW', 0.001)
    """
    named = [(name, p) for name, p in parameters if p.requires_grad]
    trained = [p for _, p in named]
    on_gpu = trained[0].is_cuda

    def scheduled(value: float) -> float | Tensor:
        return torch.tensor(value, device=trained[0].device) if on_gpu else value

    # torch's fused kernels know no complex weights
    fused = (fused or on_gpu) and all(p.is_floating_point() for p in trained)
    options: dict[str, Any] = {"lr": scheduled(settings.lr), "weight_decay": settings.weight_decay, "fused": fused}
    if settings.name == "sgd":
        options |= {"momentum": settings.momentum, "nesterov": settings.nesterov}
    else:
        options |= {"betas": settings.betas, "capturable": on_gpu}
    params: list[Any] = named
    if scales is not None:
        by_scale: dict[float, list[tuple[str, Tensor]]] = {}
        for name, p in named:
            by_scale.setdefault(scales.get(name, 1.0), []).append((name, p))
        rate = settings.lr
        params = [{"params": own, "lr": scheduled(rate * by), SCALE: by} for by, own in by_scale.items()]
    kind: type[Optimizer] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}[settings.name]
    if around is None:
        return kind(params, **options)
    return around(params, kind, scheduled=scheduled, skip_nonfinite=skip_nonfinite, **options)


def set_option(optimizer: Optimizer, name: str, value: float) -> None:
    """Change an option such as ``lr`` or ``rho`` where it lives, without waiting for the device.

    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    >>> set_option(optimizer, "lr", 0.01)
    >>> optimizer.param_groups[0]["lr"]
    0.01
    """
    for group in optimizer.param_groups:
        own = value * group.get(SCALE, 1.0) if name == "lr" else value
        if isinstance(group[name], Tensor):
            group[name].fill_(own)
        else:
            group[name] = own


def trained_parameters(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter the optimiser moves.

    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    >>> [tuple(p.shape) for p in trained_parameters(optimizer)]
    [(1, 2), (1,)]
    """
    return [p for group in optimizer.param_groups for p in group["params"]]


def descend(base: Optimizer, bad: Tensor | None) -> None:
    """A step, unless ``bad`` is 1. Decided on the device where the base optimiser's kernels can skip by themselves."""
    fused = all(group.get("fused") for group in base.param_groups)  # a loaded state may have changed it
    ready = fused and _begin_momentum(base)
    if bad is None:
        base.step()
    elif ready and getattr(base, "_step_supports_amp_scaling", False):
        base.found_inf = bad  # type: ignore[attr-defined]
        try:
            base.step()
        finally:
            del base.found_inf  # type: ignore[attr-defined]
    elif not bool(bad):
        base.step()


def _begin_momentum(base: Optimizer) -> bool:
    """Give fused SGD its first momentum. False: this step cannot be left to the kernel.

    Fused SGD takes unset memory for its first momentum, and a skipped step would leave it unset; nor can it begin
    with some parameters later than with others. Zeros do the same without that, except under dampening, which
    spares the first gradient only.
    """
    if not isinstance(base, SGD) or len(base.state) == sum(len(group["params"]) for group in base.param_groups):
        return True
    for group in base.param_groups:
        if not group["momentum"]:
            continue
        fresh = [p for p in group["params"] if p.grad is not None and "momentum_buffer" not in base.state.get(p, ())]
        if fresh and group["dampening"]:
            return False
        for p in fresh:
            base.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return True


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
