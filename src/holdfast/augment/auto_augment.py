"""RandAugment and TrivialAugment in batch, on the device: one operation out of fourteen for each image; and the
colour operations that they share with colour jitter.

Every kind of operation is computed for all images and each image takes its own, because what to do may not depend on
values that the host would have to read: so a step with these in it can be a CUDA graph. Operations, their ranges and
their 31 strengths are those of torchvision's RandAugment and TrivialAugmentWide, with bilinear interpolation.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

HUE: Final = 3
"""The number of the hue among the four changes; the others are blends with another image."""


def color_jitter(
    x: Tensor,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
    generator: torch.Generator,
) -> Tensor:
    """Float images (n, C, H, W) in [0, 1], each changed by amounts and in an order of its own.

    The first three are factors from max(0, 1 - strength) to 1 + strength; hue is a shift of up to that part of the
    colour circle, at most 0.5. Grey images have neither saturation nor hue.
    """
    n = len(x)
    draws = torch.rand(8, n, device=x.device, generator=generator)
    factors = []
    for strength, draw in zip((brightness, contrast, saturation), draws[:3], strict=True):
        low = max(0.0, 1 - strength)
        factors.append((low + (1 + strength - low) * draw).view(n, 1, 1, 1))
    shift = (hue * (2 * draws[3] - 1)).view(n, 1, 1, 1)
    for kind in draws[4:].argsort(0):
        kind = kind.view(n, 1, 1, 1)
        ratio = torch.where(kind == 0, factors[0], torch.where(kind == 1, factors[1], factors[2]))
        ratio = torch.where(kind == HUE, 1.0, ratio)
        grey = luminance(x)
        other = torch.where(kind == 0, 0.0, torch.where(kind == 1, grey.mean((2, 3), keepdim=True), grey))
        blended = blend(x, other, ratio)
        x = torch.where(kind == HUE, shift_hue(x, shift), blended) if hue and x.shape[1] == 3 else blended
    return x


def blend(x: Tensor, other: Tensor, ratio: Tensor) -> Tensor:
    """ratio · x + (1 - ratio) · other, in [0, 1]."""
    return (x + (other - x) * (1 - ratio)).clamp(0, 1)  # exact where the ratio is 1 or both are the same


def luminance(x: Tensor) -> Tensor:
    """(n, 1, H, W) by the weights of ITU-R 601, which Pillow and torchvision use; a grey image is its own."""
    if x.shape[1] != 3:
        return x
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Colours turned by a part of the colour circle, with their largest and smallest channel kept.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor(1 / 3)).flatten().round().abs()
    tensor([0., 1., 0.])
    """
    red, green, blue = x.unbind(1)
    value, spread = x.amax(1), x.amax(1) - x.amin(1)
    divisor = torch.where(spread == 0, 1.0, spread)
    sixths = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths = sixths + 6 * shift.reshape(-1, 1, 1)
    places = [(start + sixths) % 6 for start in (5, 3, 1)]
    return torch.stack([value - spread * torch.minimum(place, 4 - place).clamp(0, 1) for place in places], 1)


OPERATIONS: Final = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
BINS: Final = 31
"""How many strengths an operation has, from none to its strongest."""
SIGNED: Final = OPERATIONS[1:10]
"""Operations that go either way with probability 1/2."""


class AutoAugment:
    """Draws an operation and a strength for each image and applies them.

    policy: "trivialaugment" draws one operation, at any strength (Müller and Hutter, 2021); "randaugment" draws ``ops``
    of them, one after the other, at strength ``magnitude`` of 0 to 30 (Cubuk et al., 2020).
    """

    def __init__(
        self, policy: str, shape: tuple[int, int, int], *, ops: int = 2, magnitude: int = 9, device: torch.device
    ) -> None:
        wide = policy == "trivialaugment"
        self.ops = 1 if wide else ops
        self.magnitude = None if wide else magnitude
        # made here: a CUDA graph cannot fetch them from the host
        self.strengths = strengths(shape[1:], wide=wide).to(device)
        self.signed = torch.tensor([name in SIGNED for name in OPERATIONS], device=device)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        n, device = len(x), x.device
        for _ in range(self.ops):
            operation = torch.randint(len(OPERATIONS), (n,), device=device, generator=generator)
            level = torch.randint(BINS, (n,), device=device, generator=generator)
            if self.magnitude is not None:
                level = torch.full_like(level, self.magnitude)
            negative = torch.rand(n, device=device, generator=generator) < 0.5
            strength = self.strengths[operation, level]
            strength = torch.where(negative & self.signed[operation], -strength, strength)
            x = apply_operations(x, operation, strength)
        return x


def strengths(sides: tuple[int, int], *, wide: bool) -> Tensor:
    """(operations, BINS) what each strength means: a slope, pixels, degrees, a share, bits, or a threshold."""
    height, width = sides
    most = {"rotate": 30.0, "translate-x": 150 / 331 * width, "translate-y": 150 / 331 * height}
    most |= dict.fromkeys(("shear-x", "shear-y"), 0.3) | dict.fromkeys(OPERATIONS[6:10], 0.9)
    if wide:
        most = {"rotate": 135.0} | dict.fromkeys(("translate-x", "translate-y"), 32.0)
        most |= dict.fromkeys((*OPERATIONS[1:3], *OPERATIONS[6:10]), 0.99)
    rows = {name: torch.linspace(0, value, BINS) for name, value in most.items()}
    rows |= {name: rows[name].trunc() for name in ("translate-x", "translate-y")}  # whole pixels
    rows["posterize"] = (8 - torch.arange(BINS) / ((BINS - 1) / (6 if wide else 4))).round()
    rows["solarize"] = torch.linspace(1, 0, BINS)
    return torch.stack([rows.get(name, torch.zeros(BINS)) for name in OPERATIONS])


def apply_operations(x: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Float images (n, C, H, W) in [0, 1], each changed by its own operation.

    operation: (n,) numbers in ``OPERATIONS``. strength: (n,) with a sign, as in ``strengths``.
    """
    operation, strength = (part.view(-1, 1, 1, 1) for part in (operation, strength))

    def chosen(name: str) -> Tensor:
        return operation == OPERATIONS.index(name)

    moved = _moved(x, {name: torch.where(chosen(name), strength, 0.0) for name in OPERATIONS[1:6]})
    grey = luminance(x)
    other = torch.where(chosen("color"), grey, 0.0)
    other = torch.where(chosen("contrast"), grey.mean((2, 3), keepdim=True), other)
    other = torch.where(chosen("sharpness"), _blurred(x), other)
    kinds = {
        OPERATIONS[1:6]: moved,
        OPERATIONS[6:10]: blend(x, other, 1 + strength),
        ("posterize",): posterized(x, torch.where(chosen("posterize"), strength, 8.0)),
        ("solarize",): torch.where(x >= strength, 1 - x, x),
        ("autocontrast",): _stretched(x),
        ("equalize",): _equalized(x),
    }
    made = x
    for names, result in kinds.items():
        mine = (operation >= OPERATIONS.index(names[0])) & (operation <= OPERATIONS.index(names[-1]))
        made = torch.where(mine, result, made)
    return made


def posterized(x: Tensor, bits: Tensor) -> Tensor:
    """Only so many of the highest bits of 8-bit pixels kept."""
    step = 2 ** (8 - bits)
    return ((x * 255 + 1e-3) / step).floor() * step / 255


def _moved(x: Tensor, by: dict[str, Tensor]) -> Tensor:
    """Sheared about the upper left corner, shifted, turned about the centre; black comes in.

    The grid is made by products of float32 and not by a matrix product, which a GPU may round to ten bits (TF32).
    """
    by = {name: value[:, 0] for name, value in by.items()}  # (n, 1, 1)
    height, width = x.shape[2:]
    right = torch.arange(width, device=x.device) - (width - 1) / 2
    down = (torch.arange(height, device=x.device) - (height - 1) / 2)[:, None]
    angle = torch.deg2rad(by["rotate"])
    cos, sin = angle.cos(), angle.sin()
    columns = cos * right - sin * down + by["shear-x"] * (down + height / 2) - by["translate-x"]
    rows = sin * right + cos * down + by["shear-y"] * (right + width / 2) - by["translate-y"]
    grid = torch.stack([columns / (width / 2), rows / (height / 2)], -1)
    return F.grid_sample(x, grid.to(x.dtype), align_corners=False)


def _blurred(x: Tensor) -> Tensor:
    """Each pixel inside with its eight neighbours, itself five times; the border as it was."""
    if min(x.shape[2:]) < 3:
        return x
    inside = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    blurred = x.clone()
    blurred[:, :, 1:-1, 1:-1] = inside
    return blurred


def _stretched(x: Tensor) -> Tensor:
    """Each channel spread over all of [0, 1]; one of a single value as it was."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = low == high
    return ((x - torch.where(flat, 0.0, low)) / torch.where(flat, 1.0, high - low)).clamp(0, 1)


def _equalized(x: Tensor) -> Tensor:
    """Each channel with an even histogram of 8-bit values, by Pillow's rule."""
    values = (x * 255.999).flatten(2).long()
    counts = torch.zeros(*x.shape[:2], 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    below = counts.cumsum(2)
    of_largest = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - of_largest) // 255
    table = ((below - counts + step // 2) // step.clamp_min(1)).clamp(0, 255)
    return torch.where((step > 0)[..., None], table.gather(2, values).view(x.shape) / 255, x)
