"""Manifold MixUp: MixUp of the input or of a hidden layer (Verma et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.errors import require
from holdfast.methods import Batch, View, Views, method
from holdfast.methods.mixup import Mixup, mixed_labels
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State


@method("manifold-mixup", about="Manifold MixUp: MixUp of the input or of a hidden layer, drawn at random each step.")
class ManifoldMixup(Mixup):
    alpha: float = 2.0
    depth: Annotated[int, Within(1)] = 2
    """How many of the network's first blocks may be mixed after, beside the input."""

    def start(self, context: Context) -> State:
        state = super().start(context)
        state.places, state.mixing = 0, None
        return state

    # Every place is mixed at every step, with a share of 1 at all but the one drawn. So the draw stays on the device,
    # and a step is the same sequence of operations whichever place it falls on.
    @contextmanager
    def attached(self, state: State, model: nn.Module) -> Iterator[None]:
        import torch

        blocks = first_blocks(model, self.depth)
        state.places = len(blocks)
        with ExitStack() as handles:
            for place, block in enumerate(blocks, start=1):
                hook = torch.compiler.disable(_mixes(state, place))  # type: ignore[no-untyped-call]
                handles.enter_context(block.register_forward_hook(hook))
            yield

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        import torch

        from holdfast.augment.mixing import mix

        partner, lam = self.draw(batch, rng)
        drawn = torch.randint(state.places + 1, (), device=batch.x.device, generator=rng["mix"])
        places = torch.arange(state.places + 1, device=batch.x.device)[:, None]
        shares = torch.where(places == drawn, lam, 1.0)
        labels = mixed_labels(batch.y, partner, lam, state.context.num_classes)
        view = View(mix(batch.x, batch.x[partner], shares[0]), labels)
        return Views((view,), extra={"partner": partner, "shares": shares})

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        state.mixing = views.extra  # for the hooks, in this forward pass only
        try:
            return super().forward(model, views, state=state)
        finally:
            state.mixing = None


def _mixes(state: State, place: int) -> Any:
    """A hook that mixes what leaves a block, while a batch of views passes through it."""

    def hook(block: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        from torch import Tensor

        from holdfast.augment.mixing import mix

        if state.mixing is None or not isinstance(output, Tensor):
            return output
        partner, shares = state.mixing["partner"], state.mixing["shares"][place]
        mixed: Tensor = state.jointly(lambda whole: mix(whole, whole[partner], shares), output)
        return mixed

    return hook


def first_blocks(model: nn.Module, count: int) -> list[nn.Module]:
    """The first stages of a network before its head, as Verma et al. mix after residual stages and not after the stem.

    Stages have two layers of weights or more. Where a network is but a row of layers, these take their place.

    >>> from torch import nn
    >>> stage = lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), stage(), stage(), nn.Flatten(), nn.Linear(4, 2))
    >>> first_blocks(net, 2) == [net[2], net[3]]
    True
    """
    from holdfast.models.heads import find_head

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
    require(bool(blocks), f"manifold-mixup finds no hidden blocks in {type(model).__name__}; use mixup")
    return blocks[:count]


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it only holds blocks and is not one itself; a residual block is one, though it has layers."""
    from torch import nn

    row = isinstance(module, (nn.Sequential, nn.ModuleList))
    return bool(_weighted(module)) and (row or any(_layers(child) > 1 for child in module.children()))


def _weighted(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if _layers(child)]


def _layers(module: nn.Module) -> int:
    """How many layers have weights, normalisation left aside."""
    return sum(1 for p in module.parameters() if p.ndim > 1)
