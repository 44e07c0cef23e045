"""Check ``curvature``: its declaration. The eigenvalues are found in eigenvalues.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from holdfast.parts import check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs, Unit

if TYPE_CHECKING:
    from holdfast.audits.subject import Subject


@check(
    "curvature",
    title="Curvature",
    about="How sharp the training loss is around the weights: the largest eigenvalues of its Hessian.",
    needs=Needs.IMAGES | Needs.MODEL | Needs.GRADIENTS,
    measures=(
        Measure(
            "top_eigenvalue",
            "largest Hessian eigenvalue λ1",
            Unit.NUMBER,
            "lower",
            headline=True,
            about="How fast the loss rises along the steepest direction in weight space; smaller is flatter.",
        ),
        Measure(
            "fifth_eigenvalue",
            "λ5",
            Unit.NUMBER,
            "neither",
            about="How fast the loss rises along the fifth steepest direction in weight space.",
        ),
        Measure(
            "eigenvalue_ratio",
            "λ1/λ5",
            Unit.NUMBER,
            "neither",
            headline=True,
            about="How much one direction stands out in steepness.",
        ),
    ),
    share=0.15,
    images_of="train",
    order=70,
)
@dataclass(frozen=True)
class Curvature(Bounded):
    """The largest eigenvalues of the Hessian of the mean cross-entropy: λ1, λ5 and their ratio.

    images: how many training images to take at random, without augmentation; None is 1,000 on a GPU, 250 on a CPU.
    ggn: take the generalised Gauss-Newton matrix instead of the Hessian.
    """

    images: Annotated[int | None, Within(1)] = None
    ggn: bool = False

    def passes(self, device: str) -> float:
        return 3.0 * 3 * 40  # 40 products of three gradients each

    def usual_images(self, device: str) -> int:
        return 1000 if device == "cuda" else 250  # on a CPU a thousand would take longer than many a training

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.curvature.eigenvalues import top_eigenvalues

        return top_eigenvalues(subject, self)
