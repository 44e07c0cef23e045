"""Convolutions whose higher derivatives are as fast as the first; attention that can be differentiated twice.

Torch's second derivative of a convolution swaps images and channels and uses whole feature maps as filters, which no
library is fast at. But a convolution and its two gradients are bilinear, and the gradients of each are the other
two: three functions, closed under differentiation, each of which every library is fast at. Attention has to be the
plain one: its fused kernels have a first derivative only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


@contextmanager
def many_derivatives() -> Iterator[None]:
    """What a model computes within it has derivatives of every order; taking them may come after."""
    with _Swap(), sdpa_kernel(SDPBackend.MATH):
        yield


class _Swap(TorchFunctionMode):
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DIMENSIONS:
            func = partial(_convolution, func)
        return func(*args, **(kwargs or {}))


def _convolution(
    plain: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    ones = (1,) * DIMENSIONS[plain]
    if isinstance(padding, str) or input.ndim != len(ones) + 2:
        return plain(input, weight, bias, stride, padding, dilation, groups)
    each = (tuple(v) if isinstance(v, Iterable) else (v,) * len(ones) for v in (stride, padding, dilation))
    settings = (*each, False, (0,) * len(ones), groups)  # not transposed, no output padding
    result: Tensor = _Trilinear.apply(input, weight, None, (input.shape, weight.shape), settings)
    return result if bias is None else result + bias.view(1, -1, *ones)


class _Trilinear(torch.autograd.Function):
    """The derivative of ⟨convolution of x and w, g⟩ by the one of x, w and g that is None: g's is the convolution."""

    @staticmethod
    def forward(
        x: Tensor | None, w: Tensor | None, g: Tensor | None, sizes: Sequence[torch.Size], settings: tuple[Any, ...]
    ) -> Tensor:
        if g is None:
            return torch.convolution(x, w, None, *settings)  # type: ignore[arg-type]
        # of the missing operand the shape counts, of the other one the numbers
        operands = [g.new_empty(1).expand(size) if t is None else t for t, size in zip((x, w), sizes, strict=True)]
        wanted = (x is None, w is None, False)
        found = torch.ops.aten.convolution_backward(g, *operands, None, *settings, wanted)
        result: Tensor = found[wanted.index(True)]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.rest = inputs[3:]

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Any, ...]:
        held = [c if operand is None else operand for operand in ctx.saved_tensors]
        apply, needed = _Trilinear.apply, ctx.needs_input_grad
        slopes = [apply(*held[:i], None, *held[i + 1 :], *ctx.rest) if needed[i] else None for i in range(3)]
        return *slopes, None, None
