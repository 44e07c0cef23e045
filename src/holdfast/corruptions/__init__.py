"""Corruptions of image batches: noise, blur, weather, compression and others, by name, on any device.

``corrupt`` applies one, ``corruption_names`` lists them. ``imagenet_c``, ``blur`` and ``weather`` hold the
nineteen of ImageNet-C, ``imgaug`` the eight of BiasAdv's robustness table; a corruption of your own is declared by
:func:`holdfast.parts.corruption`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from holdfast.corruptions.imagenet_c import SEVERITIES, SeverityTable
from holdfast.corruptions.jpeg import Codec
from holdfast.corruptions.pixels import to_bytes
from holdfast.errors import hinted, plain_name, require, unknown
from holdfast.parts import CORRUPTIONS, CorruptionPart

__all__ = [
    "SEVERITIES", "Codec", "ExampleGrid", "SeverityTable", "corrupt", "corruption_names", "example_grid",
    "find_corruption", "to_bytes",
]  # fmt: skip


def corruption_names(family: str | None = None, *, extra: bool = True) -> tuple[str, ...]:
    """Names of all registered corruptions, or of a family such as "imagenet-c" or "imgaug", in its published order.

    extra: with those that the family's published mean leaves out.

    >>> len(corruption_names("imagenet-c")), len(corruption_names("imagenet-c", extra=False))
    (19, 15)
    """
    parts = [part for part in CORRUPTIONS.values() if family is None or part.family == family]
    return tuple(part.name for part in parts if extra or not part.extra)


def find_corruption(name: str, *, scale: Literal["severity", "strength"] | None = None) -> CorruptionPart:
    """A registered corruption by its name or another spelling of it; case, "-", "_" and " " make no difference.

    scale: of several corruptions with this name, the one that takes a severity or a strength.

    >>> find_corruption("jpeg_compression", scale="severity").name
    'jpeg'
    """
    wanted = plain_name(name)
    parts = list(CORRUPTIONS.values())
    named = [part for part in parts if wanted in map(plain_name, (part.name, part.label, *part.aliases))]
    if scale == "strength":  # a severity fits every corruption, a strength only those that have one
        named, parts = ([part for part in some if part.scale == scale] for some in (named, parts))
    if not named:
        raise unknown("corruption", name.lower().replace("_", "-"), [part.label for part in parts])
    return min(named, key=lambda part: (scale is not None and part.scale != scale, plain_name(part.name) != wanted))


@hinted()
def corrupt(
    x: Tensor,
    name: str,
    *,
    severity: float | None = None,
    strength: float | None = None,
    generator: torch.Generator | None = None,
    table: SeverityTable = "auto",
    frost_folder: str | Path | None = None,
    codec: Codec = "auto",
) -> Tensor:
    """Images (B, 1 or 3, H, W), float in [0, 1], corrupted; every image gets its own random draws.

    severity: 1 to 5, as in CIFAR-10-C and ImageNet-C; or
    strength: >= 0, for corruptions in imgaug's definition; 1 is BiasAdv's setting. A severity is a strength for them.
    generator: on the CPU (the result is then the same on every device) or on the images' device; by default a new
    one, seeded from torch's default generator.
    table: ImageNet-C's settings or CIFAR-10-C's; "auto" takes ImageNet-C's from 64 pixels on.
    frost_folder: photographs of frost; by default textures are grown from noise. codec: what does JPEG.

    >>> x = torch.full((2, 3, 8, 8), 0.5)
    >>> bright = corrupt(x, "brightness", severity=3)
    >>> [round(value, 2) for value in (bright.min().item(), bright.max().item())]
    [0.65, 0.65]
    """
    find_corruption(name)  # a name that is not known is said before what its amount must be
    require((severity is None) != (strength is None), "give either severity (1..5) or strength (>= 0)")
    fits = x.ndim == 4 and x.shape[1] in (1, 3) and x.is_floating_point()
    require(fits, f"images must be float (B, 1 or 3, H, W), got {x.dtype} {tuple(x.shape)}")
    part = find_corruption(name, scale="severity" if strength is None else "strength")
    if generator is None:
        generator = _seeded()
    options = {"table": table, "frost_folder": frost_folder, "codec": codec}
    options = {key: value for key, value in options.items() if key in inspect.signature(part.made).parameters}
    amount = strength if severity is None else severity
    if part.scale == "strength":
        require(amount is not None and 0 <= amount < float("inf"), f"{part.scale} must be >= 0, got {amount}")
    else:
        require(amount in SEVERITIES, f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    device = x.device
    if part.cpu_only and device.type != "cpu":
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        x, generator = x.cpu(), torch.Generator().manual_seed(int(seed))
    made: Tensor = part.made(x, **{part.scale: amount}, generator=generator, **options)
    return made.to(device)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


@dataclass(frozen=True, eq=False)
class ExampleGrid:
    """images: (corruption, strength, C, H, W) in [0, 1]; strength 0 is the image itself."""

    images: Tensor
    names: tuple[str, ...]
    strengths: tuple[float, ...]


def example_grid(
    x: Tensor,
    *,
    generator: torch.Generator | None = None,
    strengths: Sequence[float] = (0.5, 1.0, 2.0),
    names: Sequence[str] = (),
) -> ExampleGrid:
    """One image (C, H, W) under imgaug's corruptions, or those named, at several strengths: figure 3 of BiasAdv.

    All strengths of a corruption share their random draws, so that along a row only the strength changes. generator: as
    of :func:`corrupt`.

    >>> example_grid(torch.full((3, 16, 16), 0.5), strengths=(0.0, 1.0), names=["gaussian"]).images.shape
    torch.Size([1, 2, 3, 16, 16])
    """
    generator = _seeded() if generator is None else generator
    shown = tuple(names) or tuple(CORRUPTIONS[name].label for name in corruption_names("imgaug"))
    images = []
    for name in shown:
        state = generator.get_state()
        for strength in strengths:
            generator.set_state(state)
            images.append(corrupt(x[None], name, strength=strength, generator=generator))
    return ExampleGrid(torch.cat(images).view(len(shown), -1, *x.shape), shown, tuple(strengths))
