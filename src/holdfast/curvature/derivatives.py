"""Convolutions whose higher derivatives are as fast as the first; attention that can be differentiated twice.

Torch's second derivative of a convolution swaps images and channels and uses whole feature maps as filters, which no
library is fast at. But a convolution and its two gradients are bilinear, and the gradients of each are the other
two: three functions, closed under differentiation, each of which every library is fast at. Attention has to be the
plain one: its fused kernels have a first derivative only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DIMENSIONS:
            return _convolution(DIMENSIONS[func], func, *args, **kwargs)
        return func(*args, **kwargs)


def _convolution(
    dimensions: int,
    plain: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or input.ndim != dimensions + 2:
        return plain(input, weight, bias, stride, padding, dilation, groups)
    each = [_times(value, dimensions) for value in (stride, padding, dilation)]
    result: Tensor = _Forward.apply(input, weight, _Shape(each[0], each[1], each[2], groups))
    return result if bias is None else result + bias.view(1, -1, *[1] * dimensions)


def _times(value: Any, dimensions: int) -> tuple[int, ...]:
    whole = tuple(value) if isinstance(value, Iterable) else (value,)
    return whole * dimensions if len(whole) == 1 else whole


@dataclass(frozen=True)
class _Shape:
    """What a convolution is but for its two operands."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.convolution(
            x, w, None, self.stride, self.padding, self.dilation, False, [0] * len(self.stride), self.groups
        )

    def gradient(self, g: Tensor, x: Tensor, w: Tensor, *, of_input: bool) -> Tensor:
        """By one operand; of the other the numbers count, of this one the shape."""
        found = torch.ops.aten.convolution_backward(
            g, x, w, None, self.stride, self.padding, self.dilation, False, [0] * len(self.stride), self.groups,
            (of_input, not of_input, False),
        )  # fmt: skip
        result: Tensor = found[0 if of_input else 1]
        return result


class _Bilinear(torch.autograd.Function):
    """A function of two tensors, linear in each, and of what it keeps besides."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.rest = inputs[2:]


class _Forward(_Bilinear):
    """(x, w) to their convolution."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, shape: _Shape) -> Tensor:
        return shape.forward(x, w)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Any, ...]:
        (x, w), (shape,) = ctx.saved_tensors, ctx.rest
        return (
            _ByInput.apply(c, w, x.shape, shape) if ctx.needs_input_grad[0] else None,
            _ByWeight.apply(x, c, w.shape, shape) if ctx.needs_input_grad[1] else None,
            None,
        )


class _ByInput(_Bilinear):
    """(g, w) to the gradient by the input."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, size: torch.Size, shape: _Shape) -> Tensor:
        return shape.gradient(g, g.new_empty(1).expand(size), w, of_input=True)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Any, ...]:
        (g, w), (_, shape) = ctx.saved_tensors, ctx.rest
        return (
            _Forward.apply(c, w, shape) if ctx.needs_input_grad[0] else None,
            _ByWeight.apply(c, g, w.shape, shape) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class _ByWeight(_Bilinear):
    """(x, g) to the gradient by the weight."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, size: torch.Size, shape: _Shape) -> Tensor:
        return shape.gradient(g, x, g.new_empty(1).expand(size), of_input=False)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Any, ...]:
        (x, g), (_, shape) = ctx.saved_tensors, ctx.rest
        return (
            _ByInput.apply(g, c, x.shape, shape) if ctx.needs_input_grad[0] else None,
            _Forward.apply(x, c, shape) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )
