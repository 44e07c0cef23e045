"""An encoder without labels, taught to tell by how many quarter turns an image is rotated (Gidaris et al., 2018).

It may also learn to recognise changes of images, so that damage as such becomes visible to it. None of these is among
the damages that sets with anomalies are made with: a detector must not train on what it is evaluated on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.augment.basic import crop_and_flip
from holdfast.augment.mixing import covered
from holdfast.data.loaders import Images
from holdfast.data.splits import channel_statistics
from holdfast.errors import require
from holdfast.losses import cross_entropy
from holdfast.methods import Method, State
from holdfast.models import BuiltModel, ModelCard, build_model
from holdfast.models.heads import find_head, width
from holdfast.rng import Generators, derive
from holdfast.train.progress import Progress
from holdfast.train.unlabelled import MinimiseSettings, OnEpoch, in_memory, minimise
from holdfast.types import Batch, View, Views

TURNS: Final = 4
"""Quarter turns that an encoder learns to tell apart."""


@dataclass(frozen=True)
class RotationObjective(Method):
    """Every image of a batch is shown in all four turns, shifted a little; with ``changes``, also changed."""

    name: ClassVar[str] = "rotation"
    shift: int = 2
    changes: bool = False

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        draw = rng["method"]
        x = crop_and_flip(batch.x, pad=min(self.shift, batch.x.shape[2] // 4), flip=False, generator=draw)
        turned = torch.cat([x.rot90(turns, (2, 3)) for turns in range(TURNS)])
        truth = torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
        if self.changes:
            with torch.autocast(x.device.type, enabled=False):  # a grid of pixels needs all digits
                changed, which = change_each(x, draw)
            turned, truth = torch.cat([turned, changed]), torch.cat([truth, TURNS + which])
        return Views((View(turned, truth),))

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        """(which images are recognised, logits)."""
        (view,) = views.items
        logits = model(view.x)
        return logits.argmax(1) == view.label, logits

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        return cross_entropy(logits[1], views.items[0].label).mean()

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (outputs.float().mean() * len(y),)


def train_rotation(
    images: Images,
    loop: MinimiseSettings | None = None,
    *,
    model: str = "convnet",
    changes: bool = False,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    note: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> BuiltModel:
    """Train a network to predict by how many quarter turns an image is rotated.

    changes: images are also shown changed, and the head must tell how. A turned image that looks changed is then no
    longer recognised, so that damage shows in the score ``rotation`` too. progress: where steps are shown.

    >>> images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> built = train_rotation(images, MinimiseSettings(epochs=1, batch_size=32))
    >>> built.model(images[:2]).shape
    torch.Size([2, 4])
    """
    loop = loop or MinimiseSettings(schedule="cosine")
    device = torch.device(device)
    split = in_memory(images)
    channels, *size = split.shape
    require(size[0] == size[1], f"quarter turns need square images, got {size[0]}x{size[1]}; crop or pad them")
    mean, std = channel_statistics(split)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "rotation/weights"))
        outputs = TURNS + (len(CHANGES) if changes else 0)
        look: dict[str, Any] = {"in_channels": channels, "image_size": size[0], "mean": mean, "std": std}
        built = build_model(model, num_classes=outputs, **look)
    rng = Generators(loop.seed, device, purposes={"method": "rotation/augment"})
    objective = RotationObjective(changes=changes)
    minimise(
        objective, built.model, split, loop, rng=rng, device=device, on_epoch=on_epoch, note=note, progress=progress
    )
    return built


def rotation_card(built: BuiltModel, shape: tuple[int, int, int]) -> ModelCard:
    """What a saved encoder is: its classes are the turns and, where it learned them, the changes."""
    names = ("0°", "90°", "180°", "270°", *CHANGES)
    return ModelCard.of(built, names[: width(find_head(built.model)[1])], shape)


def blurred(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each pixel partly the mean of its 5×5 neighbours."""
    smooth = F.avg_pool2d(x, 5, 1, 2, count_include_pad=False)
    return x.lerp(smooth, _uniform(x, 0.6, 1.0, generator))


def flattened(x: Tensor, generator: torch.Generator) -> Tensor:
    """Contrast lost, or brightness gained: no pixel keeps its value."""
    factor, level = _uniform(x, 0.3, 0.7, generator), _uniform(x, 0.0, 0.5, generator)
    return (factor * x + (1 - factor) * level).clamp(0, 1)


def pasted(x: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle of another image, upside down, over a quarter to a half of each side (CutPaste, Li et al., 2021)."""
    inside = []
    for length in x.shape[2:]:
        side = _uniform(x, 0.25, 0.5, generator).view(-1, 1) * length
        start = torch.rand(len(x), 1, device=x.device, generator=generator) * (length - side)
        inside.append(covered(start, side, length))
    rows, columns = inside
    return torch.where((rows[:, :, None] & columns[:, None])[:, None], _others(x, generator).flip(2), x)


def mixed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Two images over each other."""
    return x.lerp(_others(x, generator), _uniform(x, 0.3, 0.5, generator))


def warped(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rows and columns moved along a wave."""
    n, _, height, width = x.shape
    size = [n, 1, height, width]
    still = F.affine_grid(torch.eye(2, 3, device=x.device).expand(n, 2, 3), size, align_corners=False)
    amplitude, phase = (_uniform(x, *ends, generator) for ends in ((0.12, 0.25), (0.0, 2 * math.pi)))
    waves = torch.sin(2.5 * math.pi * still.flip(3) + phase)
    return F.grid_sample(x, still.to(x.dtype) + amplitude * waves, align_corners=False)


CHANGES: Final = {change.__name__: change for change in (blurred, flattened, pasted, mixed, warped)}


def change_each(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(images, (B,) which change): image i is changed by change number i modulo their count."""
    which = torch.arange(len(x), device=x.device) % len(CHANGES)
    made = torch.empty_like(x)
    for number, change in enumerate(CHANGES.values()):
        if number < len(x):
            made[number :: len(CHANGES)] = change(x[number :: len(CHANGES)], generator)
    return made, which


def _others(x: Tensor, generator: torch.Generator) -> Tensor:
    """For each image another one of the batch: a neighbour at a random distance."""
    n = len(x)
    step = 1 + torch.randint(max(n - 1, 1), (n,), device=x.device, generator=generator)
    return x[(torch.arange(n, device=x.device) + step) % n]


def _uniform(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(len(x), 1, 1, 1, device=x.device, dtype=x.dtype, generator=generator)
