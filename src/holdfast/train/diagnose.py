"""A look at the ascent, off the hot path: what the batch gradient holds of the full one (F-SAM, section A1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.optim import SAM
from holdfast.optim.foreach import inner
from holdfast.train.step import Step
from holdfast.types import Batch


def diagnose(step: Step, batch: Batch) -> dict[str, float]:
    """Norms and angles at the present weights, for one batch, not augmented.

    ``gradient_norm``, ``full_gradient_norm``: ‖g‖ and ‖G‖. ``full_gradient_share``: cos²(g, G), the part of the batch
    gradient's energy along the full gradient. ``ascent_norm``: ‖ε‖. ``ema_cosine``: cos(m, G) of a friendly ascent.
    """
    generators = step.rng.state_dict()
    devices = [batch.x.device] if batch.x.is_cuda else []
    with torch.random.fork_rng(devices):  # dropout draws from torch's own generators
        with step.without_trace():
            step.gradients(step.draw(batch, augment=False))
        params = [p for p in step.trained() if p.grad is not None]
        scale = float(step.scaler.get_scale())
        own = [p.grad / scale for p in params if p.grad is not None]
        step.full_gradient()
    full = [torch.zeros_like(p) if p.grad is None else p.grad / scale for p in params]
    step.optimizer.zero_grad(set_to_none=True)
    step.rng.load_state_dict(generators)
    found = {
        "gradient_norm": _norm(own),
        "full_gradient_norm": _norm(full),
        "full_gradient_share": _cosine(own, full) ** 2,
    }
    if isinstance(step.optimizer, SAM):
        found["ascent_norm"] = step.optimizer.ascent_norm(params, own)
        means = [step.optimizer.average[p] for p in params if p in step.optimizer.average]
        if len(means) == len(params):
            found["ema_cosine"] = _cosine(means, full)
    return found


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(float(inner(tensors, tensors)))


def _cosine(a: list[Tensor], b: list[Tensor]) -> float:
    return float(inner(a, b)) / max(_norm(a) * _norm(b), 1e-30)
