"""Balls around images, L∞ or L2, in pixels or in units of a normalised input, clipped to the range of pixels.

A point of a ball is inside it exactly, not up to a tolerance: rounding is always towards the centre. So another
library, or the same computation in float64, never finds a perturbation that exceeds the radius.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require, require_known

Norm = Literal["linf", "l2"]
Space = Literal["pixel", "normalised"]
NORMS: tuple[Norm, ...] = ("linf", "l2")
SPACES: tuple[Space, ...] = ("pixel", "normalised")
MARGIN = 1 - 2.0**-22
"""An L2 step ends this close to the radius; rounding in float32 adds less than that to a norm."""
TINY = 1e-300
TOLERANCE = 1e-4
"""How far rounding may leave a pixel outside of [0, 1] before images count as normalised."""


class BallSettings(TypedDict, total=False):
    """What a ball is beside its radius; every attack takes these. Left out: an L∞ ball in pixels of [0, 1].

    space: "normalised" counts radius and steps in units of ``scale``, the deviation of each channel that a model
    divides by. bounds: the range of pixels. A pixel that is outside already may stay there.
    """

    norm: Norm
    space: Space
    scale: Tensor | Sequence[float] | None
    bounds: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Ball:
    """All images within ``radius`` of the centre that stay in the range of pixels.

    centre: images (B, C, H, W). low, high: what each pixel may become. scale: pixels per unit of the radius, 1.0 or
    (C, 1, 1). Positions are float32 at least, also around images of half precision, so that short steps add up;
    :meth:`point` gives the image at a position.
    """

    centre: Tensor
    low: Tensor
    high: Tensor
    radius: float
    norm: Norm
    scale: float | Tensor = 1.0

    @property
    def start(self) -> Tensor:
        return self.centre.to(self.low.dtype)

    def random(self, generator: torch.Generator | None) -> Tensor:
        """Positions drawn uniformly from the ball, then clipped to the range of pixels."""
        start = self.start
        if math.isinf(self.radius):
            return self.low + (self.high - self.low) * _uniform(start, generator)
        if self.norm == "linf":
            return self.project(start + (2 * _uniform(start, generator) - 1) * self.radius * self.scale)
        direction = torch.randn(start.shape, generator=generator, device=start.device, dtype=start.dtype)
        length = _uniform(start[:, :1, :1, :1], generator) ** (1 / start.shape[1:].numel())
        return self.project(start + unit(direction, "l2") * length * self.radius * self.scale)

    def ascent(self, gradient: Tensor) -> Tensor:
        """The step of length 1, in units of the radius, along which a linear function rises most."""
        gradient = gradient.to(self.low.dtype)
        if not isinstance(self.scale, Tensor):
            return unit(gradient, self.norm)
        return unit(gradient * self.scale, self.norm) * self.scale

    def project(self, position: Tensor) -> Tensor:
        """The nearest position in the ball (L2: along the ray to the centre), clipped to the range of pixels."""
        if self.norm == "linf":
            return position.clamp(self.low, self.high)
        start = self.start
        moved = (position - start).double()
        length = per_image(torch.linalg.vector_norm((moved / self.scale).flatten(1), dim=1))
        moved = moved * (self.radius * MARGIN / length.clamp(min=TINY)).clamp(max=1)
        return inward(start, moved, start.dtype).clamp(self.low, self.high)

    def point(self, position: Tensor) -> Tensor:
        """The image at a position, in the type of the centre."""
        if position.dtype == self.centre.dtype:
            return position
        if self.norm == "linf":
            return position.to(self.centre.dtype)  # bounds have that type, and rounding preserves order
        return inward(self.centre, position.double() - self.centre.double(), self.centre.dtype)

    def take(self, index: Tensor) -> Ball:
        return replace(self, centre=self.centre[index], low=self.low[index], high=self.high[index])


def check_names(settings: BallSettings) -> None:
    """Refuse a misspelt setting of an attack, which would otherwise leave the default in place."""
    for name in settings:
        require_known("setting of the attack", name, BallSettings.__annotations__)


def make_ball(x: Tensor, *, radius: float, **settings: Unpack[BallSettings]) -> Ball:
    """The ball around images. radius: may be infinite."""
    check_names(settings)
    norm, bounds = settings.get("norm", "linf"), settings.get("bounds", (0.0, 1.0))
    require(x.ndim == 4 and x.is_floating_point(), f"x must be float images (B, C, H, W), got {x.dtype} {(*x.shape,)}")
    if "bounds" not in settings:
        require_unit_range(x)
    require(radius >= 0, f"radius must be >= 0, got {radius}")
    require(bounds[0] < bounds[1], f"bounds must be a range, got {bounds}")
    require_known("norm", norm, NORMS)
    unit_scale = _scale(x, settings.get("space", "pixel"), settings.get("scale"))
    lowest, highest = x.clamp(max=bounds[0]), x.clamp(min=bounds[1])
    if norm == "linf":
        limit = _rounded_down(radius, unit_scale, x.dtype)
        lowest = torch.maximum(inward(x, -limit, x.dtype), lowest)
        highest = torch.minimum(inward(x, limit, x.dtype), highest)
    wide = torch.promote_types(x.dtype, torch.float32)
    return Ball(x.detach(), lowest.detach().to(wide), highest.detach().to(wide), float(radius), norm, unit_scale)


def require_unit_range(x: Tensor) -> None:
    """Refuse images outside of [0, 1], which were normalised or are of bytes: a radius in pixels means nothing there.

    Looking at the pixels waits for the device: a training that knows its images says ``bounds`` instead.
    """
    if x.numel() == 0 or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    low, high = (float(end) for end in x.detach().aminmax())
    inside = not (low < -TOLERANCE or high > 1 + TOLERANCE)  # NaN passes: the attack says in which image it is
    remedy = (
        "attack images before normalisation, with the normalisation inside the model; or say their range with bounds"
    )
    require(
        inside, f"x must be images in [0, 1], got values from {low:.4g} to {high:.4g}; {remedy}=({low:.4g}, {high:.4g})"
    )


def unit(direction: Tensor, norm: Norm) -> Tensor:
    """The sign (L∞), or the direction at length 1 (L2); a direction of zero stays zero.

    Divided by its largest entry first, because squares of very small or very large numbers overflow.

    >>> unit(torch.tensor([[[[3e-30, -4e-30]]]]), "l2")
    tensor([[[[ 0.6000, -0.8000]]]])
    """
    if norm == "linf":
        return direction.sign()
    largest = direction.abs().amax((1, 2, 3), keepdim=True)
    direction = direction / torch.where(largest > 0, largest, 1)
    length = per_image(torch.linalg.vector_norm(direction.flatten(1), dim=1))
    return direction / torch.where(length > 0, length, 1)


def inward(x: Tensor, step: Tensor | float, dtype: torch.dtype) -> Tensor:
    """``x + step`` in a type, rounded so that it is never farther from x than the step is long.

    >>> inward(torch.tensor([1.0]), 2**-25, torch.float32)
    tensor([1.])
    """
    start = x.double()
    step = step.double() if isinstance(step, Tensor) else step
    moved = (start + step).to(dtype)
    size = step.abs() if isinstance(step, Tensor) else abs(step)
    back = moved.double() - start
    # one to two units in the last place, for any type; nextafter does not support float16
    info = torch.finfo(dtype)
    ulp = (moved.double().abs() * info.eps + info.smallest_normal * info.eps).copysign(back)
    stepped_back = (moved.double() - ulp).to(dtype)
    stepped_back = torch.where((stepped_back.double() - start) * back > 0, stepped_back, x.to(dtype))
    return torch.where(back.abs() > size, stepped_back, moved)


def _rounded_down(radius: float, scale: float | Tensor, dtype: torch.dtype) -> Tensor:
    """The largest limit of a type that is no more than the radius: one number, or one per channel."""
    if isinstance(scale, Tensor):
        wanted = radius * scale.double() * (1 - 2**-50)  # so that dividing by the scale gives no more than the radius
        return inward(torch.zeros_like(wanted, dtype=dtype), wanted, dtype).double()
    return inward(torch.zeros((), dtype=dtype), radius, dtype).double()  # stays on the host, as a number would


def _scale(x: Tensor, space: Space, scale: Tensor | Sequence[float] | None) -> float | Tensor:
    require_known("space", space, SPACES)
    if space == "pixel":
        require(scale is None, 'scale is the unit of space="normalised"; leave it out in pixels')
        return 1.0
    if scale is None:
        raise HoldfastError('space="normalised" needs scale, the deviation of each channel that the model divides by')
    made = torch.as_tensor(scale, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    require(
        made.numel() in (1, x.shape[1]),
        f"scale must hold one deviation per channel ({x.shape[1]}), got {made.numel()} values",
    )
    return made.reshape(-1, 1, 1)


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def per_image(values: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1), to combine with images (B, C, H, W)."""
    return values.view(-1, 1, 1, 1)
