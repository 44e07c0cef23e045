"""Check ``saliency``: its declaration. The maps are measured and drawn in saliency_maps.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.parts import PYTHON_ONLY, check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs, Unit

if TYPE_CHECKING:
    from holdfast.audits.subject import Subject


@check(
    "saliency",
    title="Saliency",
    about="Which parts of an image speak for the prediction (Grad-CAM), as pictures and numbers.",
    needs=Needs.IMAGES | Needs.MODEL | Needs.GRADIENTS,
    measures=(
        Measure(
            "saliency_half_area",
            "area that holds half of the map",
            better="neither",
            headline=True,
            about="The share of the picture that holds half of the map; 50 % means that it is the same everywhere.",
        ),
        Measure(
            "saliency_entropy",
            "entropy of the map",
            Unit.NUMBER,
            "neither",
            digits=3,
            about="How spread the map is: 0 is a single spot, 1 is everywhere alike.",
        ),
        Measure(
            "saliency_agreement",
            "agreement of maps",
            Unit.NUMBER,
            "neither",
            digits=3,
            about="How alike two models' maps of the same image are, from -1 to 1.",
        ),
    ),
    share=0.1,
    order=80,
)
@dataclass(frozen=True)
class Saliency(Bounded):
    """Grad-CAM of the predicted class: pictures, how concentrated the maps are, and how far models agree.

    images: how many test images, drawn by seed, the numbers rest on. others: further models by name; each is shown the
    same pictures, and the rank correlation between its maps of the true class and the subject's is found.
    """

    images: Annotated[int, Within(1)] = 256
    others: Mapping[str, Any] | None = field(default=None, metadata=PYTHON_ONLY)

    def passes(self, device: str) -> float:
        return 4.0 * 3

    def usual_images(self, device: str) -> int | None:
        return self.images

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.saliency.saliency_maps import saliency_maps

        return saliency_maps(subject, self)
