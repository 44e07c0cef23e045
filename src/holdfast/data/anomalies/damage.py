"""What befalls a picture that makes it an anomaly.

Noise and specks are the corruptions of :mod:`holdfast.corruptions`, only stronger; the others take away or
rearrange what the picture shows, which those are careful not to do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.corruptions import to_bytes
from holdfast.corruptions.imgaug import gaussian, salt_and_pepper
from holdfast.errors import unknown

Damage = Callable[[Tensor, float, torch.Generator], Tensor]


def damage(image: Tensor, name: str, *, severity: float, generator: torch.Generator) -> Tensor:
    """One uint8 image (C, H, W), damaged. severity: in (0, 1]."""
    if name not in DAMAGES:
        raise unknown("damage", name, DAMAGES)
    return to_bytes(DAMAGES[name](image[None].float() / 255, severity, generator))[0]


def damage_each(images: Tensor, *, severity: float, generator: torch.Generator) -> Tensor:
    """uint8 images (N, C, H, W), each damaged in a way drawn for it."""
    names = list(DAMAGES)
    which = torch.randint(len(names), (len(images),), generator=generator).tolist()
    done = [
        damage(image, names[i], severity=severity, generator=generator) for image, i in zip(images, which, strict=True)
    ]
    return torch.stack(done) if done else images


def _noise(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return gaussian(x, generator=generator, deviation=(0.5 * severity, 0.5 * severity))


def _specks(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return salt_and_pepper(x, generator=generator, share=0.25 * severity)


def _occlude(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """A square of one random grey, wholly inside the picture."""
    height, width = x.shape[2:]
    side = max(2, round(severity * 0.7 * min(height, width)))
    top, left = (int(torch.randint(n - side + 1, (), generator=generator)) for n in (height, width))
    x = x.clone()
    x[:, :, top : top + side, left : left + side] = torch.rand((), generator=generator)
    return x


def _shuffle(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Quarters of the picture swapped; of an odd side, the last row or column stays."""
    height, width = (n // 2 for n in x.shape[2:])
    places = [(slice(i, i + height), slice(j, j + width)) for i in (0, height) for j in (0, width)]
    turn = 1 + int(torch.randint(3, (), generator=generator))
    made = x.clone()
    for target, source in zip(places, places[turn:] + places[:turn], strict=True):
        made[:, :, *target] = x[:, :, *source]
    return made


def _invert(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return (1 - severity) * x + severity * (1 - x)


def _stripes(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Every few rows lost."""
    period = max(2, round(2 / severity))
    start = int(torch.randint(period, (), generator=generator))
    x = x.clone()
    x[:, :, start::period] = 0
    return x


DAMAGES: dict[str, Damage] = {
    "noise": _noise,
    "salt-and-pepper": _specks,
    "occlusion": _occlude,
    "shuffle": _shuffle,
    "inversion": _invert,
    "stripes": _stripes,
}
"""What can befall a picture: (images in [0, 1] (B, C, H, W), severity, generator) to images."""
