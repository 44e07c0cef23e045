"""Check ``ood``: its declaration. Scores are computed in ood_scores.py, on the images of ood_images.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.errors import require_known
from holdfast.parts import DETECTORS, PYTHON_ONLY, check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs

if TYPE_CHECKING:
    from holdfast.audits.sample_passes import SamplePass
    from holdfast.audits.subject import Subject


def usual_scores() -> tuple[str, ...]:
    """The detectors that a classifier alone can be asked for."""
    return tuple(name for name, part in DETECTORS.items() if set(part.reads) <= {"features", "logits"})


@check(
    "ood",
    title="Out-of-distribution inputs",
    about="Whether the model's own scores tell out-of-distribution inputs from test images.",
    needs=Needs.IMAGES | Needs.MODEL,
    measures=(
        Measure(
            "ood_auroc",
            "AUROC on OOD images",
            gate=True,
            headline=True,
            headline_where={"score": "msp"},
            part="score",
            about="The chance that the score tells an OOD image from a test image: 50 % is guessing.",
            poor=0.8,
            remedies=("holdfast detect fit --data DATA --run RUN # fits a detector for such images",),
        ),
        Measure(
            "ood_ap",
            "average precision",
            about="Average precision in finding out-of-distribution images among both kinds.",
        ),
        Measure(
            "ood_fpr95",
            "FPR95",
            better="lower",
            about="The share of test images that is flagged when 95 % of the out-of-distribution images are.",
        ),
        Measure(
            "ood_precision",
            "precision",
            about="The share of flagged images that is out of distribution.",
        ),
        Measure(
            "ood_recall",
            "recall",
            about="The share of out-of-distribution images that is flagged.",
        ),
        Measure(
            "ood_f1",
            "F1",
            about="The harmonic mean of precision and recall.",
        ),
        Measure(
            "ood_false_alarm_rate",
            "false alarms",
            better="lower",
            about="The share of test images that is flagged.",
        ),
    ),
    share=0.1,
    order=60,
)
@dataclass(frozen=True)
class OutOfDistribution(Bounded):
    """AUROC, average precision and FPR95 of each score on each set of OOD images, against the test images.

    images: how many test images, drawn with the seed; None is all. Training and OOD images are cut in the same
    proportion, so that time is too. data: sets of OOD images, by name; by default noise and, unless they are what the
    model knows, the embedded digits. sets: the same, as data sets or images. scores: detectors by name;
    by default all that read nothing but features and logits. A program that hides its layers has logits alone, and the
    scores of those. Distances are to training images; thresholds come from the other half of the test images, so that
    nothing is set on what it is judged on.
    """

    images: Annotated[int | None, Within(1)] = None
    data: dict[str, str] | None = None
    scores: tuple[str, ...] | None = None
    sets: Mapping[str, Any] | None = field(default=None, metadata=PYTHON_ONLY)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.scores or ():
            require_known("ood.scores", name, usual_scores())

    def gate_parts(self) -> tuple[str, ...]:
        return usual_scores() if self.scores is None else self.scores

    def passes(self, device: str) -> float:
        return 2.0

    def usual_images(self, device: str) -> int | None:
        return None

    def sample_passes(self, subject: Subject) -> list[SamplePass]:
        from holdfast.audits.checks.ood.ood_scores import test_pass

        return [test_pass(subject, self.images)]

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.ood.ood_scores import ood_scores

        return ood_scores(subject, self)
