"""How much each image bends the loss along a direction: what an eigenvalue's interval rests on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.curvature.derivatives import many_derivatives
from holdfast.losses import cross_entropy
from holdfast.module_state import evaluating


def bends(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], direction: Tensor) -> Tensor:
    """(N,) vᵀ Hᵢ v of every image's own cross-entropy, on the CPU in float64.

    direction: (P,) v over the parameters that require a gradient, or all if none does, in the model's order. Where v is
    an eigenvector of unit length, the mean is its eigenvalue, and to first order each image moves the eigenvalue by its
    own bend; so the spread of the bends is that of the eigenvalue. The weights of the samples enter the loss linearly:
    differentiating twice by the parameters along v, then by the weights, leaves one number an image.
    """
    model = getattr(model, "_orig_mod", model)  # a compiled graph cannot be differentiated twice
    named = dict(model.named_parameters())
    chosen = [name for name, p in named.items() if p.requires_grad] or list(named)
    leaves = {name: p.detach().contiguous().requires_grad_(name in chosen) for name, p in named.items()}
    wanted = [leaves[name] for name in chosen]
    sizes = [leaf.numel() for leaf in wanted]
    parts = [part.view_as(leaf) for part, leaf in zip(torch.split(direction, sizes), wanted, strict=True)]

    def slope(of: Tensor) -> Tensor:
        """The derivative along v, with its graph."""
        found = torch.autograd.grad(of, wanted, create_graph=True, allow_unused=True)
        return torch.stack([(g * v).sum() for g, v in zip(found, parts, strict=True) if g is not None]).sum()

    made = []
    for x, y in batches:
        with evaluating(model), torch.enable_grad(), many_derivatives():
            weights = torch.ones(len(y), device=x.device, dtype=direction.dtype, requires_grad=True)
            total = (weights * cross_entropy(functional_call(model, leaves, (x,)), y)).sum()
            (each,) = torch.autograd.grad(slope(slope(total)), weights)
        made.append(each.detach().double().cpu())
    return torch.cat(made)
