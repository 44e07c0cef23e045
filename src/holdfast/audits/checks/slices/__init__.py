"""Check ``slices``: its declaration. The search is in weak_slices.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from holdfast.parts import check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs, Unit

if TYPE_CHECKING:
    from holdfast.audits.sample_passes import SamplePass
    from holdfast.audits.subject import Subject


@check(
    "slices",
    title="Slices",
    about="Parts of the data, by how images look or how the model sees them, on which it is weaker than on the rest.",
    needs=Needs.IMAGES,
    measures=(
        Measure(
            "confirmed_slices",
            "weak slices confirmed",
            Unit.COUNT,
            "lower",
            headline=True,
            about="How many parts of the data were found weak on one half of the test images and again on the other.",
        ),
        Measure(
            "slice_accuracy",
            "accuracy in a weak slice",
            drop="slice_gap",
            drop_from="accuracy in the rest",
            headline=True,
            about="Accuracy in a part of the data that was found weak on other test images.",
            remedies=("holdfast shortcuts RUN # lists the training samples that contradict a shortcut",),
        ),
        Measure(
            "slice_gap",
            "below the rest by",
            Unit.POINTS,
            "lower",
            about="How many points accuracy in the slice is below accuracy in the rest.",
        ),
    ),
    order=30,
)
@dataclass(frozen=True)
class WeakSlices(Bounded):
    """Weak parts by how images look, by any group column, and by clusters of the model's features within a class.

    level: the chance that a model without any weak part has one confirmed.
    """

    level: Annotated[float, Within(0, 1, "()")] = 0.05

    def sample_passes(self, subject: Subject) -> list[SamplePass]:
        from holdfast.audits.checks.slices.feature_clusters import features_pass
        from holdfast.audits.checks.slices.weak_slices import looks_pass

        return [features_pass(subject), looks_pass(subject)]

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.slices.weak_slices import weak_slices

        return weak_slices(subject, self.level)
