"""Grad-CAM: which parts of a picture speak for a class (Selvaraju et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.errors import HoldfastError, require, require_known
from holdfast.module_state import evaluating, frozen_parameters, frozen_statistics

BEFORE_ATTENTION = ("norm1", "ln_1", "layernorm_before", "layer_norm1")
"""What transformers call the norm before a block's attention. After the last attention, only the class token counts."""


def grad_cam(
    model: nn.Module, x: Tensor, target: Tensor | None = None, *, layer: str | nn.Module | None = None
) -> Tensor:
    """(B, H, W) maps in [0, 1]: the largest value of each is 1, and a map without support for its class is 0.

    ReLU(Σ_c w_c A_c) with A the layer's output and w_c the mean over space of ∂logit/∂A_c, brought to the size of the
    pictures. Transformers' tokens go back to their places; class and register tokens are left out.

    model: from images to logits; it is given back as it was. x: images (B, C, H, W). target: (B,) classes; those that
    the model predicts by default. layer: a module of the model or its dotted name; :func:`default_layer` by default.
    """
    module = _find(model, layer) if layer is not None else default_layer(model, x)
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())  # the graph begins here
        return kept[-1].clone()  # the next layer may write into what it is given

    patches = (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == m.stride != (1, 1))
    grid: list[tuple[int, int]] = []
    with _borrowed(model, x):
        with ExitStack() as hooks:
            for cut in list(patches)[:1]:  # (rows, columns) of the first patch embedding, if there is one
                hooks.callback(cut.register_forward_hook(lambda _m, _x, out: grid.append(out.shape[2:4])).remove)
            hooks.callback(module.register_forward_hook(keep).remove)
            logits = model(x)
        require(
            len(kept) > 0, "the forward pass did not reach the layer (a compiled model skips hooks: give the original)"
        )
        chosen = logits.detach().argmax(1) if target is None else _checked(target, logits)
        activation = kept[-1]
        (slope,) = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), activation)
    a, slope = (_as_planes(t.detach().float(), x, grid) for t in (activation, slope))
    raw = (slope.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
    maps = F.interpolate(raw, size=x.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    return maps / maps.amax((1, 2), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def default_layer(model: nn.Module, x: Tensor) -> nn.Module:
    """Where Grad-CAM looks: the last layer that still has a plane of more than one place.

    For a transformer on tokens it is the norm before the last attention.
    """
    planes: list[nn.Module] = []
    tokens: list[nn.Module] = []

    def see(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, _inputs: object, output: object) -> None:
            if not isinstance(output, Tensor) or len(output) != 1 or isinstance(module, nn.AdaptiveAvgPool2d):
                return
            if output.ndim == 4 and min(output.shape[2:] if _channels_first(output, x) else output.shape[1:3]) > 1:
                planes.append(module)
            elif output.ndim == 3 and name.rsplit(".", 1)[-1] in BEFORE_ATTENTION:
                tokens.append(module)

        return hook

    with ExitStack() as stack:
        stack.enter_context(_borrowed(model, x))
        stack.enter_context(torch.no_grad())
        for name, module in model.named_modules():
            if module is not model and not isinstance(module, torch.jit.ScriptModule):  # these take no hooks
                stack.callback(module.register_forward_hook(see(name)).remove)
        model(x[:1])
    found = tokens or planes
    if not found and any(isinstance(m, torch.jit.ScriptModule | torch.fx.GraphModule) for m in model.modules()):
        raise HoldfastError("a TorchScript or exported program hides its layers; give the model it was made from")
    if not found:
        raise HoldfastError(
            f"no layer of {type(model).__name__} keeps the plane of a {x.shape[2]}×{x.shape[3]} picture; name one with "
            "layer, or give larger pictures"
        )
    return found[-1]


@contextmanager
def _borrowed(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Evaluation mode, exact numbers, gradients for what asks for them here alone."""
    require(x.ndim == 4 and len(x) > 0, f"images are (B, C, H, W) with B >= 1, got {tuple(x.shape)}")
    require(not torch.is_inference_mode_enabled(), "Grad-CAM needs gradients; call it outside torch.inference_mode()")
    with (
        evaluating(model),
        frozen_parameters(model),
        frozen_statistics(model),
        torch.autocast(x.device.type, enabled=False),
        torch.enable_grad(),
    ):
        yield


def _as_planes(a: Tensor, x: Tensor, grid: list[tuple[int, int]]) -> Tensor:
    """A layer's output as (B, C, rows, columns)."""
    if a.ndim == 4:
        return a if _channels_first(a, x) else a.permute(0, 3, 1, 2)
    require(a.ndim == 3, f"the layer gives {tuple(a.shape)}; Grad-CAM needs planes (4 axes) or tokens (3 axes)")
    if not grid:  # patches made without a convolution: as square as the picture
        rows = math.isqrt(a.shape[1] * x.shape[2] // x.shape[3])
        grid = [(rows, a.shape[1] // max(rows, 1))]
    rows, columns = grid[0]
    extra = a.shape[1] - rows * columns
    require(extra >= 0 and rows > 0, f"{a.shape[1]} tokens do not fill {rows}×{columns} patches; choose another layer")
    return a[:, extra:].transpose(1, 2).reshape(len(a), -1, rows, columns)  # class and register tokens come first


def _channels_first(a: Tensor, x: Tensor) -> bool:
    """Whether (B, C, H, W) is nearer to the picture's proportions than (B, H, W, C)."""
    wanted = math.log(x.shape[2] / x.shape[3])
    first, last = (abs(math.log(h / w) - wanted) for h, w in (a.shape[2:4], a.shape[1:3]))
    return first <= last


def _find(model: nn.Module, layer: str | nn.Module) -> nn.Module:
    if isinstance(layer, nn.Module):
        require(any(m is layer for m in model.modules()), f"layer {type(layer).__name__} is not part of the model")
        return layer
    named: dict[str, nn.Module] = dict(model.named_modules())
    require_known("layer", layer, [name for name in named if name])
    return named[layer]


def _checked(target: Tensor, logits: Tensor) -> Tensor:
    n, classes = logits.shape
    require(target.shape == (n,), f"target must have one class an image, ({n},), got {tuple(target.shape)}")
    low, high = int(target.min()), int(target.max())
    require(low >= 0 and high < classes, f"target classes must be in 0..{classes - 1}, got {low}..{high}")
    return target.to(logits.device)
