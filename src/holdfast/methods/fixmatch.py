"""FixMatch (Sohn et al., 2020): a confident guess on an unlabelled image is the label of a strongly changed copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within
from holdfast.types import Needs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State


@method(
    "fixmatch",
    about="FixMatch: confident pseudo-labels of unlabelled images must hold for strongly changed copies of them.",
    needs=Needs.UNLABELLED,
    passes=10.3,
)
class FixMatch(Method):
    ratio: Annotated[int, Within(1)] = 7
    """Unlabelled images (--labels, --unlabeled) for each labelled one; without any, the batch itself is used."""
    confidence: Annotated[float, Within(0, 1, "(]")] = 0.95
    """Lowest confidence of a pseudo-label that counts."""
    weight: Annotated[float, Within(0)] = 1.0
    """Weight of the loss on pseudo-labels."""
    flip: bool = False
    """Whether mirroring an image keeps its class."""

    def start(self, context: Context) -> State:
        state = super().start(context)
        state.register_buffer("unlabelled", context.unlabeled, persistent=False)
        return state

    def passes(self, state: State) -> tuple[float, float]:
        guessed = 1 if state.unlabelled is None else self.ratio
        return 1.0 + guessed, guessed / 3

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """Guesses are made once per step, at the weights the step begins with; an ascent does not change them."""
        import torch

        from holdfast.augment.basic import strong, to_float, weak
        from holdfast.module_state import frozen_statistics

        draw, plain, images = rng["method"], batch.x, state.unlabelled
        if images is not None:
            drawn = torch.randint(len(images), (self.ratio * len(batch),), device=images.device, generator=draw)
            plain = to_float(images[drawn])
        with torch.no_grad(), frozen_statistics(model):
            confidence, guess = model(weak(plain, draw, flip=self.flip)).float().softmax(1).max(1)
        weight = self.weight * (confidence >= self.confidence).float()
        return Views((View(batch.x, batch.y), View(strong(plain, draw, flip=self.flip), guess, weight)))

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        """One forward pass for both kinds of images, so that BatchNorm sees them together."""
        import torch

        known, guessed = views.items
        out = model(torch.cat([known.x, guessed.x]))
        return out[: len(known.x)], out[len(known.x) :]
