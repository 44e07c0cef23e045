"""Sharpness-aware minimisation, plain and friendly, around any torch optimiser."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from holdfast.devices import Recordings, branch
from holdfast.errors import require
from holdfast.optim.average import Due, GradientAverage, with_averages, without_averages
from holdfast.optim.descent import (
    OWN,
    descend,
    refuse_lost_gradients,
    require_arguments,
    require_capturable,
    require_descent,
    require_settings,
    trained_parameters,
)
from holdfast.optim.foreach import (
    Tensors,
    add_any,
    dense_gradient,
    is_spread,
    lies_like,
    norm_of,
    own,
    own_parts,
    require_seen,
    spread_like,
)
from holdfast.optim.metrics import Adaptive, Euclidean, Fisher, Metric

Result = TypeVar("Result")
Scaler = torch.amp.GradScaler | None

TINY = 1e-12
"""Added to the norm of the direction, so that a vanishing gradient moves nothing."""


class SAM(Optimizer):
    """Climb to w + ε, take the gradient there, descend from w with the base optimiser.

    ε = ρ T²d / (‖T d‖₂ + 1e-12) over all parameters together, with d = g (SAM) or, if friendly, d = g − σ·m of the
    step before, where m ← λ·m + (1 − λ)·g with the raw gradient g (Friendly SAM, eq. 51). In a friendly
    first step m = g and d = g. A gradient that is not finite, in either pass, skips the step: weights, averages and
    the base optimiser's state stay as they were.

    params: parameters or groups, each of which may set its own ``rho``.
    base_optimizer: the class that descends; ``kwargs`` go to it. With ``fused=True`` no step waits for the device.
    adaptive: T = abs(w). metric: any other T. friendly: take the mean gradient out of the ascent, with ``sigma`` (1.0)
    and ``lmbda`` (0.9).
    skip_nonfinite: turn the check off to save its two passes over the gradients and one copy of the parameters. With a
    scaler that is enabled it stays on, since overflows are how a scaler finds its scale.
    capture: replay both halves of the step as CUDA graphs, where the gradients lie as they lay before; the loop around
    them stays as it is. For fused base optimisers on one GPU. Learning rate and radius become tensors there, so that
    schedules reach the graphs. A scaler, ``before_descent`` and a metric of your own leave their half as it was.

    As with every torch optimiser, ``step(closure)`` calls the closure; here twice. It computes the loss and its
    gradient and returns the loss; gradients are cleared before each call. Without a closure: backward,
    ``first_step()``, forward and backward again, ``second_step()``.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = SAM([weight], torch.optim.SGD, rho=0.5, lr=0.1)
    >>> def closure():
    ...     loss = weight.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    >>> weight.item()  # 2 - 0.1 · 2 · (2 + 0.5)
    1.5
    """

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: type[Optimizer],
        *,
        rho: float | Tensor = 0.05,
        adaptive: bool = False,
        friendly: bool = False,
        sigma: float | None = None,
        lmbda: float = 0.9,
        metric: Metric | None = None,
        skip_nonfinite: bool = True,
        capture: bool = False,
        **kwargs: Any,
    ) -> None:
        if sigma is None:
            sigma = 1.0 if friendly else 0.0
        require_settings({"rho": rho, "sigma": sigma, "lmbda": lmbda})
        remedy = "give friendly=True as well, or leave it out"
        require(friendly or sigma == 0, f"sigma {sigma} is of friendly ascents; {remedy}")
        require(not (adaptive and metric), f"adaptive and metric ({metric}) exclude each other; give one of them")
        require_descent(base_optimizer)
        require_arguments(type(self), base_optimizer, kwargs)
        self.metric = metric or (Adaptive() if adaptive else Euclidean())
        self.skip_nonfinite = skip_nonfinite
        self.average = GradientAverage()
        self._saved: dict[Tensor, Tensor] = {}
        self._moved: Tensors = []
        self._first_norm: Tensor | None = None
        self._telling: RemovableHandle | None = None
        self._recordings: Recordings | None = None
        self._skipped: Tensor | None = None
        if capture and "capturable" in inspect.signature(base_optimizer).parameters:
            kwargs = {"capturable": True, **kwargs}
        super().__init__(params, {"rho": rho, "sigma": sigma, "lmbda": lmbda})
        named = all("param_names" in group for group in self.param_groups)
        remedy = "give model.named_parameters() instead of parameters()"
        need = f'scales "weights" goes by the names of parameters; {remedy}'
        require(getattr(metric, "scales", "") != "weights" or named, need)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.defaults = {**self.base_optimizer.defaults, **self.defaults}
        self._link()
        if capture:
            self._prepare_capture()

    def _link(self) -> None:
        """One set of groups and states, whoever looks: schedulers change what the base optimiser reads."""
        self.param_groups = self.base_optimizer.param_groups
        self.state = self.base_optimizer.state

    @property
    def skipped(self) -> int:
        """How many steps were skipped, since a gradient was not finite. Waits for the device; no part of the state."""
        return 0 if self._skipped is None else int(self._skipped)

    @_disable_dynamo
    @torch.no_grad()
    def first_step(self, zero_grad: bool = False, *, scaler: Scaler = None) -> None:
        """Climb: from w, with the gradient there, to w + ε. ``scaler``: the one that scaled the loss."""
        require(not self._moved, "first_step was called twice; call second_step in between")
        scaler = _enabled(scaler)
        self.average.due = []  # of a step that was never finished
        moved = self._with_gradient()
        if not moved:
            return
        # A checked step needs the direction until its end, when this memory may hold the second gradient; and a
        # metric other than these may look at the gradient itself.
        checked = self.skip_nonfinite or scaler is not None
        in_place = zero_grad and not checked and isinstance(self.metric, (Euclidean, Adaptive))
        climb = partial(self._climb, scaler, checked=checked, in_place=in_place)
        recorded = scaler is None and isinstance(self.metric, (Euclidean, Adaptive, Fisher))
        self._first_norm, self.average.due = self._run(climb, moved, in_place) if recorded else climb()
        self._moved = moved
        # The kernels that moved the weights are none that torch watches.
        torch.autograd.graph.increment_version(moved)  # a graph of before must not be gone back through
        torch.clear_autocast_cache()  # nor casts of before be used, where the caller has autocast around both passes
        self._tell_other_processes()
        if zero_grad:
            self.zero_grad()

    def _tell_other_processes(self) -> None:
        """Let a first gradient that was not finite into the second, which the processes share.

        The weights are NaN then, but not every loss that meets them has a gradient that shows it: sign(NaN) is 0. Where
        weights are spread, the norm of the first gradient was everybody's already.
        """
        if self._first_norm is None or not (dist.is_available() and dist.is_initialized()):
            return
        bad = self._first_norm * 0
        able = (p for p in self._moved if p.requires_grad and p.numel() and not is_spread(p))
        smallest = min(able, key=Tensor.numel, default=None)
        if smallest is not None:
            self._telling = smallest.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: grad + bad.to(grad.device, grad.dtype)
            )

    def _climb(self, scaler: Scaler, *, checked: bool, in_place: bool) -> tuple[Tensor | None, list[Due]]:
        """Keep w and move to w + ε. What a checked step needs at its end: ‖T·d‖, and how the averages are to move."""
        params = self._with_gradient()
        weights = own_parts(params)
        grads = [dense_gradient(g, w) for g, w in zip(own_parts(list(self._gradients())), weights, strict=True)]
        if scaler is not None:
            one = torch.ones((), device=grads[0].device)
            grads = list(torch._foreach_mul(grads, scaler.scale(one).double().reciprocal().to(one.dtype)))
        spans = self._spans(params)
        places = [self._place(p, w) for p, w in zip(params, weights, strict=True)]
        with branch(weights) as saved:
            torch._foreach_copy_(places, weights)
        direction = self._direction(spans, params, grads, in_place=in_place)
        with branch(weights) as averaged:
            if not checked:
                self.average.commit(None)
        normed, climb = self._scaled(params, weights, grads, direction)
        norm = norm_of(spread_like(params, normed))
        if checked:
            norm = norm.fmod(torch.inf)  # ∞ becomes NaN, and so do the weights it moves
        inverse = (norm + TINY).reciprocal_()
        rates = [inverse * _signed_radius(group) for group, _ in spans]
        saved()
        for (_, mine), rate in zip(spans, rates, strict=True):
            add_any(weights[mine], climb[mine], rate)
        averaged()
        return (norm if checked else None), self.average.due

    @_disable_dynamo
    @torch.no_grad()
    def restore(self) -> None:
        """Back to w exactly, in place, as if there had been no ascent.

        Without a check (``skip_nonfinite=False``) the mean of a friendly ascent has taken the gradient in already.
        """
        self._to_saved()
        self._end()

    def _to_saved(self) -> None:
        if self._moved:
            torch._foreach_copy_(own_parts(self._moved), [self._saved[p] for p in self._moved])
            torch.clear_autocast_cache()

    def _end(self) -> None:
        self._moved, self._first_norm = [], None
        if self._telling is not None:
            self._telling.remove()
            self._telling = None
        self.average.due = []

    @_disable_dynamo
    @torch.no_grad()
    def second_step(
        self, zero_grad: bool = False, *, scaler: Scaler = None, before_descent: Callable[[], Any] | None = None
    ) -> None:
        """Back to w, then descend with the gradient taken at w + ε. ``before_descent`` is the place to clip it."""
        scaler = _enabled(scaler)
        try:
            if scaler is None and before_descent is None:
                self._run(self._fall, self._with_gradient())
            else:
                self._fall(scaler, before_descent)
        except BaseException:
            self.restore()  # the model is left at w
            raise
        self._end()
        self._opt_called = True  # learning-rate schedulers look for it
        if zero_grad:
            self.zero_grad()

    def _run(self, work: Callable[[], Result], params: Tensors, *also: Hashable) -> Result:
        """Half a step: from its recording, if there is one for the same memory and settings."""
        if self._recordings is None:
            return work()
        grads: Tensors = [p.grad for p in params]  # type: ignore[misc]
        held = [*params, *grads]
        if self._moved and not (len(params) == len(self._moved) and all(map(operator.is_, params, self._moved))):
            held += self._moved
        if self._first_norm is not None:
            held.append(self._first_norm)
            held += [r for due in self.average.due for r in due.residual]
        settings: list[Any] = [len(held), self.metric, self.skip_nonfinite, self.average.version, *also]
        settings += [(i, g.stride()) for i, g in enumerate(grads) if not g.is_contiguous()]
        for group in self.param_groups:
            values = group.values()
            held += [value for value in values if isinstance(value, Tensor)]
            settings += [value for value in values if isinstance(value, (float, int, tuple))]
        return self._recordings.run((*map(Tensor.data_ptr, held), *settings), work)

    def _with_gradient(self) -> Tensors:
        return [p for p in trained_parameters(self) if p.grad is not None]

    def _gradients(self) -> Iterator[Tensor]:
        return (g for p in trained_parameters(self) if (g := p.grad) is not None)

    def _fall(self, scaler: Scaler = None, before_descent: Callable[[], Any] | None = None) -> None:
        with branch(self._moved) as returned:
            self._to_saved()
        if scaler is not None:
            scaler.unscale_(self.base_optimizer)
        # before anyone clips: ∞ cut to size would pass
        bad = self._bad() if self.skip_nonfinite or scaler is not None else None
        returned()
        if scaler is not None and bad is not None:
            for found in scaler._found_inf_per_device(self.base_optimizer).values():
                found.copy_(torch.maximum(found, bad.to(found.device)))  # it has seen the second gradient only
        if before_descent is not None:
            before_descent()
        self._descend(bad)

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        scaler: Scaler = None,
        ascent_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        descent_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        before_descent: Callable[[], Any] | None = None,
    ) -> Any:
        """One whole step; returns the loss at w.

        scaler: the GradScaler that the closure scales its loss with; call its ``update()`` afterwards.
        ascent_context: entered around the first call. ``model.no_sync`` of a DistributedDataParallel model makes
        each process climb with its own gradient (m-sharpness); without it all climb together.
        descent_context: entered around the second call, such as ``lambda: frozen_statistics(model)``.
        before_descent: called with the final gradient in place, at w; the place to clip it.
        """
        if closure is None:
            self._begin_state()
            return None
        evaluate = torch.enable_grad()(closure)
        first = next(self._gradients(), None)
        if first is not None and not hasattr(first, "left_by_step"):
            refuse_lost_gradients()
        self.zero_grad()
        try:
            with ascent_context():
                loss = evaluate()
            self.first_step(zero_grad=True, scaler=scaler)
            with descent_context():
                evaluate()
            self.second_step(scaler=scaler, before_descent=before_descent)
        except BaseException:
            self.restore()  # the model is left at w
            raise
        finally:
            if (first := next(self._gradients(), None)) is not None:
                first.left_by_step = True  # type: ignore[attr-defined]
        return loss

    @torch.no_grad()
    def _begin_state(self) -> None:
        """What a step of zeros asks for: torch.distributed.checkpoint takes one to see what a state is made of."""
        moves = any(group.get("lr") for group in self.param_groups)
        require(
            not (moves or self.state or any(bool(own(g).any()) for g in self._gradients())),
            "step() needs a closure, because the loss is evaluated twice: def closure(): loss = ...; loss.backward(); "
            "return loss. Without one use first_step() and second_step(); a GradScaler is given to the step, "
            "step(closure, scaler=scaler), not the step to it",
        )
        self.base_optimizer.step()
        friendly = (group["params"] for group in self.param_groups if group["sigma"])
        self.average.begin([p for params in friendly for p in params if p.grad is not None])

    def _prepare_capture(self) -> None:
        """Settings that schedules change become tensors, which graphs read; recordings of before are void."""
        require_capturable(self.base_optimizer)
        for group in self.param_groups:
            for name in ("lr", "rho"):
                if not isinstance(group[name], Tensor):
                    group[name] = torch.tensor(group[name], device=group["params"][0].device)
        self._recordings = Recordings()

    def _place(self, parameter: Tensor, weight: Tensor) -> Tensor:
        """Where a parameter's weight is kept while it is moved."""
        place = self._saved.get(parameter)
        if place is None or not lies_like(place, weight):
            place = self._saved[parameter] = torch.empty_like(weight, requires_grad=False)
            if self._recordings is not None:
                self._recordings.clear()
        return place

    def _spans(self, params: Tensors) -> list[tuple[dict[str, Any], slice]]:
        """The groups that have some of these parameters, which come group by group, and where theirs are."""
        wanted, spans, start = set(params), [], 0
        for group in self.param_groups:
            count = sum(p in wanted for p in group["params"])
            if count:
                spans.append((group, slice(start, start := start + count)))
        return spans

    @_disable_dynamo
    @torch.no_grad()
    def ascent_norm(self, params: Tensors, grads: Tensors) -> float:
        """‖ε‖ for these gradients, without moving anything. Waits for the device. Parameters come group by group."""
        spans = self._spans(params)
        weights, grads = own_parts(params), own_parts(grads)
        direction = self._direction(spans, params, grads, in_place=False)
        normed, climb = self._scaled(params, weights, grads, direction)
        self.average.due = []
        steps = [step for group, mine in spans for step in torch._foreach_mul(climb[mine], _signed_radius(group))]
        return float(norm_of(spread_like(params, steps)) / (norm_of(spread_like(params, normed)) + TINY))

    def _scaled(self, params: Tensors, weights: Tensors, grads: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        """(T·d, T²·d)."""
        if not (isinstance(self.metric, Adaptive) and self.metric.scales == "weights"):
            return self.metric.scale(weights, grads, direction)
        name = {p: n for g in self.param_groups for p, n in zip(g["params"], g["param_names"], strict=True)}
        return self.metric.scale(weights, grads, direction, [name[p] for p in params])

    def _direction(
        self, spans: list[tuple[dict[str, Any], slice]], params: Tensors, grads: Tensors, *, in_place: bool
    ) -> Tensors:
        """g, or g − σ·m in friendly groups."""
        direction = list(grads)
        for group, mine in spans:
            if group["sigma"]:
                own = params[mine]
                away = self.average.residual(own, grads[mine], lmbda=group["lmbda"], in_place=in_place)
                if group["sigma"] != 1:
                    away = list(torch._foreach_add(away, [self.average[p] for p in own], alpha=1 - group["sigma"]))
                direction[mine] = away
        return direction

    def _descend(self, bad: Tensor | None) -> None:
        """The base optimiser's step, and the averages', unless a gradient was not finite."""
        descend(self.base_optimizer, bad)
        self.average.commit(bad)  # last: a hook that raises in the step leaves all as it was
        if bad is not None:
            if self._skipped is None or self._skipped.device != bad.device:
                self._skipped = torch.full((), float(self.skipped), device=bad.device)
            self._skipped += bad

    def _bad(self) -> Tensor | None:
        """1 if the gradient of either pass was not finite, else 0; None if there is none."""
        norm = self._first_norm
        if grads := list(self._gradients()):
            second = norm_of([g.coalesce().values() if g.is_sparse else g for g in grads])
            norm = second if norm is None else norm + second
        return None if norm is None else (norm * 0).ne_(0).float()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        require_settings(param_group)
        if not hasattr(self, "base_optimizer"):
            super().add_param_group(param_group)
            require_seen(trained_parameters(self))
            return
        ascent = {name: self.defaults[name] for name in OWN}
        self.base_optimizer.add_param_group({**ascent, **param_group})
        if self._recordings is not None:
            self._prepare_capture()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed training needs: the base optimiser's state, the gradient averages, all settings."""
        self._require_whole("saving")
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = with_averages(self.base_optimizer.state_dict(), trained_parameters(self), self.average.kept())
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave. The base optimiser's own state will do: the ascent keeps its settings."""
        self._require_whole("loading")
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        plain, averages = without_averages(state_dict, trained_parameters(self))
        ascents = [{name: group[name] for name in OWN} for group in self.param_groups]
        self.base_optimizer.load_state_dict(plain)
        self._link()
        for group, ascent in zip(self.param_groups, ascents, strict=True):
            group.update({name: group.get(name, value) for name, value in ascent.items()})
        self.average.load(averages)
        if self._recordings is not None:
            self._prepare_capture()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        self._require_whole("copying")
        kept = ("base_optimizer", "metric", "skip_nonfinite", "average")
        captured = {"capture": self._recordings is not None}
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept}, **captured}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._saved, self._moved, self._first_norm, self._recordings, self._telling = {}, [], None, None, None
        self._skipped = None
        capture = state.pop("capture", False)
        super().__setstate__(state)
        if self.defaults.get("fused"):  # a copy of a torch optimiser forgets that it can do this
            self.base_optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        if capture:
            self._prepare_capture()

    def _require_whole(self, act: str) -> None:
        when = "between first_step and second_step would meet moved weights"
        require(not self._moved, f"{act} {when}; call second_step() or restore() first")


def _enabled(scaler: Scaler) -> Scaler:
    return scaler if scaler is not None and scaler.is_enabled() else None


def _signed_radius(group: dict[str, Any]) -> float | Tensor:
    """A maximiser's worst case lies downhill."""
    rho: float | Tensor = group["rho"]
    return -rho if group.get("maximize") else rho
