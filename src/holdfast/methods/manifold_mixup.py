"""Manifold MixUp: MixUp of the input or of a hidden layer (Verma et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.augment.mixing import mix
from holdfast.errors import HoldfastError
from holdfast.methods.mixup import MixupMethod
from holdfast.models.heads import find_head
from holdfast.rng import Generators
from holdfast.settings.methods import ManifoldMixup
from holdfast.types import Batch, View, Views


class ManifoldMixupMethod(MixupMethod):
    """Every place is mixed at every step, with a share of 1 at all but the one drawn.

    So the draw stays on the device, and a step is the same sequence of operations whichever place it falls on.
    """

    settings: ManifoldMixup
    _places: int = 0
    _partner: Tensor | None = None
    _shares: Tensor | None = None

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        blocks = first_blocks(model, self.settings.depth)
        self._places = len(blocks)
        with ExitStack() as handles:
            for place, block in enumerate(blocks, start=1):
                hook = torch.compiler.disable(self._hook(place))  # type: ignore[no-untyped-call]
                handles.callback(block.register_forward_hook(hook).remove)
            yield

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        partner, lam = self.draw(batch, rng)
        drawn = torch.randint(self._places + 1, (), device=batch.x.device, generator=rng["mix"])
        places = torch.arange(self._places + 1, device=batch.x.device)[:, None]
        shares = torch.where(places == drawn, lam, 1.0)
        images = mix(batch.x, batch.x[partner], shares[0])
        memo = {"partner": partner, "shares": shares}
        return Views((View(images, self.labels(batch.y, partner, lam)),), memo=memo)

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        self._partner, self._shares = views.memo["partner"], views.memo["shares"]
        try:
            return super().loss(model, views)
        finally:
            self._partner = self._shares = None

    def _hook(self, place: int) -> Any:
        def mixed(block: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if self._partner is None or self._shares is None or not isinstance(output, Tensor):
                return output
            return mix(output, output[self._partner], self._shares[place])

        return mixed


def first_blocks(model: nn.Module, count: int) -> list[nn.Module]:
    """The first stages of a network before its head, as Verma et al. mix after residual stages and not after the stem.

    Stages have two layers of weights or more. Where a network is but a row of layers, these take their place.

    >>> stage = lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), stage(), stage(), nn.Flatten(), nn.Linear(4, 2))
    >>> first_blocks(net, 2) == [net[2], net[3]]
    True
    """
    head = find_head(model)[1]
    inside = model
    while len(whole := _weighted(inside)) == 1 and whole[0] is not head:
        inside = whole[0]
    while True:
        before = [child for child in _weighted(inside) if all(module is not head for module in child.modules())]
        blocks = [block for block in before if _layers(block) > 1] or before
        if len(blocks) != 1 or not _holds_blocks(blocks[0]):
            break
        inside = blocks[0]
    if not blocks:
        raise HoldfastError(f"manifold-mixup finds no hidden blocks in {type(model).__name__}; use mixup")
    return blocks[:count]


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it is no block itself but what holds them; a residual block is one, though it has layers."""
    row = isinstance(module, (nn.Sequential, nn.ModuleList))
    return bool(_weighted(module)) and (row or any(_layers(child) > 1 for child in module.children()))


def _weighted(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if _layers(child)]


def _layers(module: nn.Module) -> int:
    """How many layers have weights, normalisation left aside."""
    return sum(1 for p in module.parameters() if p.ndim > 1)
