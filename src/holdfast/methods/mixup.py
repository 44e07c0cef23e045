"""MixUp (Zhang et al., 2018) and CutMix (Yun et al., 2019): train between two samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Generators, State


@method("mixup", about="MixUp: images and labels on the line between two samples.")
class Mixup(Method):
    alpha: Annotated[float, Within(0, ends="(]")] = 1.0
    """Shape of the symmetric Beta distribution that the place on the line is drawn from."""
    per_sample: bool = False
    """Draw a place for each sample instead of one for the batch."""

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.augment.mixing import mix

        partner, lam = self.draw(batch, rng)
        label = mixed_labels(batch.y, partner, lam, state.context.num_classes)
        return Views((View(mix(batch.x, batch.x[partner], lam), label),))

    def draw(self, batch: Batch, rng: Generators) -> tuple[Tensor, Tensor]:
        """(B,) a partner for each sample and (B,) its own share."""
        from holdfast.augment.mixing import draw_beta, shuffled

        n, device = len(batch), batch.x.device
        partner = shuffled(n, generator=rng["mix"], device=device)
        lam = draw_beta(self.alpha, self.alpha, n if self.per_sample else 1, generator=rng["mix"], device=device)
        return partner, lam.expand(n)


@method("cutmix", about="CutMix: a box of another image pasted in, labels mixed by area.")
class CutMix(Mixup):
    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.augment.mixing import cut

        partner, lam = self.draw(batch, rng)
        images, share = cut(batch.x, batch.x[partner], lam, generator=rng["mix"])
        return Views((View(images, mixed_labels(batch.y, partner, share, state.context.num_classes)),))


def mixed_labels(y: Tensor, partner: Tensor, lam: Tensor, num_classes: int) -> Tensor:
    """(B, K) each label with the share lam (B,), its partner's with the rest."""
    from holdfast.augment.mixing import mix, one_hot

    hot = one_hot(y, num_classes)
    return mix(hot, hot[partner], lam)
