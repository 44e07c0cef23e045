"""ALPS: adversarial labels of perturbed samples (theorem 1 and eq. 14 of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.errors import require
from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Unset, Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Generators, State


@method("alps", about="ALPS: images mixed towards another, with the worst label within an L1 ball.")
class Alps(Method):
    epsilon: Annotated[float, Within(0, 2)] = 0.1
    """Radius of the label ball; half of it moves to the least likely class."""
    mode: Annotated[float, Within(0, 1)] = 0.9
    """Most probable share of the sample's own image."""
    concentration: Annotated[float, Within(2, ends="(]")] = 10.0
    """How closely the shares gather around the mode: alpha + beta of their Beta distribution."""
    alpha: Unset[float] = None
    """With beta: the Beta distribution itself, instead of mode and concentration."""
    beta: Unset[float] = None
    """Its second parameter."""
    partners: Literal["batch", "set"] = "batch"
    """Where the other image is from: the same batch, shuffled; or the whole training set (reads images twice)."""

    @property
    def mixes_others(self) -> bool:
        return self.partners == "set"

    def __post_init__(self) -> None:
        super().__post_init__()
        both = f"alpha ({self.alpha}) and beta ({self.beta}) go together"
        require((self.alpha is None) == (self.beta is None), f"{both}; give both, or mode and concentration")
        positive = self.alpha is None or (self.alpha > 0 and (self.beta or 0) > 0)
        require(positive, f"alpha and beta must be > 0, got {self.alpha} and {self.beta}")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.augment.mixing import beta_of, draw_beta, mix, shuffled

        n, device = len(batch), batch.x.device
        shape = beta_of(self.mode, self.concentration)
        if self.alpha is not None and self.beta is not None:
            shape = self.alpha, self.beta
        partner = shuffled(n, generator=rng["mix"], device=device)
        lam = draw_beta(*shape, n, generator=rng["mix"], device=device)
        others = batch.x[partner] if batch.others is None else batch.others  # an ascent's other batches have none
        return Views((View(mix(batch.x, others, lam), batch.y),))

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        """The worst label follows from the logits, so a step costs what a plain one does; at moved weights it is the
        worst label there.
        """
        from holdfast.augment.mixing import adversarial_labels
        from holdfast.losses import cross_entropy

        (out,), (view,) = logits, views.items
        losses = cross_entropy(out, adversarial_labels(out, view.label, epsilon=self.epsilon))
        return (losses if view.weight is None else losses * view.weight).mean()
