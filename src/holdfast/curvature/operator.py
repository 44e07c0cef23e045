"""The Hessian of a loss, or its Gauss-Newton part, as a function of vectors, batch by batch; and layers whose second
derivatives are fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from holdfast.curvature.krylov import NoSpectrum, free_bytes
from holdfast.errors import first_line, require
from holdfast.module_state import evaluating

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs (B, K) and labels (B,) to one value per sample (B,)."""
Product = Callable[[Sequence[Tensor]], Tensor]
"""A vector, cut into the shapes of the parameters, to a flat vector."""
Piece = tuple[Product, Sequence[Tensor]]
"""What one batch adds to a matrix, and the first derivatives behind it."""


@dataclass(frozen=True, eq=False)
class Operator:
    """A symmetric matrix as a function of flat vectors (size,), made of one piece per batch.

    kept: how many of the pieces keep their graph, so that a product costs no forward pass.
    """

    shapes: tuple[torch.Size, ...]
    pieces: tuple[Product, ...]
    kept: int
    device: torch.device
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def __call__(self, v: Tensor) -> Tensor:
        require(v.shape == (self.size,), f"the vector must have {self.size} numbers, got shape {tuple(v.shape)}")
        flat = torch.split(v, [shape.numel() for shape in self.shapes])
        parts = [part.view(shape) for part, shape in zip(flat, self.shapes, strict=True)]
        with _explained():
            total = self.pieces[0](parts)
            for piece in self.pieces[1:]:
                total += piece(parts)
        return total


def hessian_operator(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    parameters: Iterable[Tensor] | None = None,
    ggn: bool = False,
    memory: float | None = None,
) -> Operator:
    """The Hessian of the mean loss over all samples of the batches, as a function v → H v; exact, by autograd.

    Every sample counts the same, however the data are cut. The model runs in evaluation mode; its modes,
    gradients and buffers are restored. Numbers are those of the model's type; on CUDA, allow TF32 only where three
    digits are enough.

    batches: (x, y) on the model's device.
    parameters: those to differentiate by; None is all that require a gradient, or all if none does.
    ggn: the generalised Gauss-Newton matrix mean(Jᵀ (∂²loss/∂outputs²) J) instead: what is left of the Hessian when the
        outputs are taken as linear in the parameters; positive semi-definite for a convex loss.
    memory: bytes that the graphs of the batches may take. A graph that is kept saves a third of each product; those
        beyond the limit are made anew each time. None is half of what is free.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> batches = [(torch.tensor([[3.0]]), torch.tensor([[0.0]]))]
    >>> product = hessian_operator(network, batches, lambda out, y: (out - y).square().flatten())
    >>> product(torch.tensor([1.0]))  # 2 · 3²
    tensor([18.])
    """
    model = getattr(model, "_orig_mod", model)  # a compiled graph cannot be differentiated twice
    data = list(batches)
    total = sum(len(y) for _, y in data)
    require(total > 0, "a Hessian needs at least one sample, got none")
    leaves = _leaves(model, parameters)
    chosen = [leaf for leaf in leaves.values() if leaf.requires_grad]
    make = _gauss_newton_piece if ggn else _hessian_piece

    def build(x: Tensor, y: Tensor, keep: bool = True) -> Piece:
        with _explained(), evaluating(model), torch.enable_grad(), many_derivatives():
            outputs = functional_call(model, leaves, (x,))
            if not isinstance(outputs, Tensor):
                raise NoSpectrum(f"the model gives a {type(outputs).__name__}, not a tensor of outputs")
            if not outputs.requires_grad:
                raise NoSpectrum(f"no gradient flows from the outputs ({outputs.dtype}) back to the parameters")
            return make(outputs, lambda z: loss(z, y).sum() / total, chosen, keep)

    def made_anew(x: Tensor, y: Tensor, parts: Sequence[Tensor]) -> Tensor:
        return build(x, y, keep=False)[0](parts)

    device, dtype = chosen[0].device, chosen[0].dtype
    room = free_bytes(device) / 2 if memory is None else memory
    each = _graph_bytes(lambda: build(data[0][0][:1], data[0][1][:1]), leaves.values())
    kept = sum(each * so_far < room for so_far in accumulate(len(y) for _, y in data))
    pieces = [build(x, y)[0] for x, y in data[:kept]]
    pieces += [partial(made_anew, x, y) for x, y in data[kept:]]
    return Operator(tuple(leaf.shape for leaf in chosen), tuple(pieces), kept, device, dtype)


def _leaves(model: nn.Module, parameters: Iterable[Tensor] | None) -> dict[str, Tensor]:
    """Every parameter of a model as a leaf of its own; the chosen ones ask for a gradient.

    They share memory where it is contiguous: in channels-last order convolutions that are differentiated
    twice take many times as long.
    """
    named = dict(model.named_parameters())
    chosen = {id(p) for p in named.values() if p.requires_grad} or {id(p) for p in named.values()}
    if parameters is not None:
        chosen = {id(p) for p in parameters}
        require(chosen <= {id(p) for p in named.values()}, "parameters must be among model.parameters()")
    if not chosen:
        raise NoSpectrum("there are no parameters to differentiate by")
    kinds = {(p.dtype, p.device) for p in named.values() if id(p) in chosen}
    if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise NoSpectrum(f"parameters must all be float32 or all float64, on one device, got {found}")
    return {name: p.detach().contiguous().requires_grad_(id(p) in chosen) for name, p in named.items()}


def _hessian_piece(outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool) -> Piece:
    """v → H v of one batch: the derivative of the gradient along v, by a second backward pass."""
    gradient = torch.autograd.grad(loss(outputs), leaves, create_graph=True, materialize_grads=True)

    def product(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(-1) for part in _pulled_back(gradient, leaves, parts, keep)])

    return product, gradient


def _gauss_newton_piece(
    outputs: Tensor, loss: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], keep: bool
) -> Piece:
    """v → Jᵀ L J v of one batch, with L the second derivative of the loss by the outputs.

    J v takes two backward passes: Jᵀu is linear in u, and the derivative of vᵀ(Jᵀu) by u is J v.
    """
    point = outputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(point), point, create_graph=True)
    zero = torch.zeros_like(outputs, requires_grad=True)
    back = torch.autograd.grad(outputs, leaves, zero, create_graph=True, materialize_grads=True)

    def product(parts: Sequence[Tensor]) -> Tensor:
        pushed = _pulled_back(back, [zero], parts, True)
        curved = _pulled_back([slope], [point], pushed, True)
        return torch.cat([part.reshape(-1) for part in _pulled_back([outputs], leaves, curved, keep)])

    return product, back


def _pulled_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], along: Sequence[Tensor], keep: bool
) -> Sequence[Tensor]:
    """A vector-Jacobian product; outputs that are constant add nothing."""
    live = [(o, a) for o, a in zip(outputs, along, strict=True) if o.requires_grad]
    if not live:
        return [torch.zeros_like(i) for i in inputs]
    outputs, along = zip(*live, strict=True)
    return torch.autograd.grad(outputs, inputs, along, retain_graph=keep, materialize_grads=True)


def _graph_bytes(build: Callable[[], Piece], leaves: Iterable[Tensor]) -> int:
    """Bytes that the graph of a piece holds on to, beside the leaves; a graph with a dead end is refused."""
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    held: dict[int, Tensor] = {}

    def see(saved: Tensor) -> Tensor:
        saved = saved.detach()
        held[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(see, lambda saved: saved):
        _refuse_dead_ends(build()[1])
    return sum(t.untyped_storage().nbytes() for pointer, t in held.items() if pointer not in known)


def _refuse_dead_ends(slopes: Iterable[Tensor]) -> None:
    """A function marked as once differentiable ends the graph silently, and would count as constant."""
    seen: set[Any] = set()
    open_ = [slope.grad_fn for slope in slopes]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("::Error"):
            raise NoSpectrum("the model cannot be differentiated twice: a function in it is marked once_differentiable")
        seen.add(node)
        open_ += [following for following, _ in node.next_functions]


@contextmanager
def _explained() -> Iterator[None]:
    """Translate torch's errors about second derivatives."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in ("not implemented", "double backward", "differentiate twice")):
            raise NoSpectrum(f"the model cannot be differentiated twice: {first_line(error)}") from error
        raise


DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


@contextmanager
def many_derivatives() -> Iterator[None]:
    """What a model computes within it has derivatives of every order; taking them may come after.

    Torch's second derivative of a convolution swaps images and channels and uses whole feature maps as filters, which
    no library is fast at. But a convolution and its two gradients are bilinear, and the gradients of each are the other
    two: three functions, closed under differentiation, each of which every library is fast at. Attention has to be the
    plain one: its fused kernels have a first derivative only.
    """
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
