"""Check ``accuracy``: its declaration. The numbers are made in clean_accuracy.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.parts import check
from holdfast.types import Finding, Measure, Unit

if TYPE_CHECKING:
    from holdfast.audits.subject import Subject


@check(
    "accuracy",
    title="Clean accuracy",
    about="Accuracy on the unmodified test set, overall and by class; likelihood and calibration.",
    measures=(
        Measure(
            "accuracy",
            "clean accuracy",
            gate=True,
            headline=True,
            about="The share of unmodified test images whose class the model predicts.",
        ),
        Measure(
            "top_5_accuracy",
            "top-5 accuracy",
            gate=True,
            about="The share of test images whose class is among the model's five most probable ones.",
        ),
        Measure(
            "balanced_accuracy",
            "balanced accuracy",
            gate=True,
            about="The mean over classes of the share that is recognised: rare classes count as much as others.",
        ),
        Measure(
            "class_accuracy",
            "accuracy by class",
            gate=True,
            part="class",
            data_part=True,
            of="accuracy",
            about="The share of one class's test images that is recognised.",
        ),
        Measure(
            "nll",
            "negative log-likelihood",
            Unit.NUMBER,
            "lower",
            gate=True,
            headline=True,
            digits=3,
            about="The mean of minus the logarithm of the probability that the model gave to the right class.",
        ),
        Measure(
            "brier",
            "Brier score",
            Unit.NUMBER,
            "lower",
            gate=True,
            digits=3,
            about="The squared distance between the predicted probabilities and the truth, from 0 to 2.",
        ),
        Measure(
            "ece",
            "expected calibration error",
            better="lower",
            gate=True,
            headline=True,
            about="How far confidence and accuracy are apart on average: 0 if 80 % sure means right in 80 % of cases.",
            remedies=("holdfast repair RUN --by none # calibrates the confidence; predictions stay",),
        ),
        Measure(
            "ece_adaptive",
            "calibration error, adaptive bins",
            better="lower",
            gate=True,
            about="The calibration error over bins of confidence that hold equally many images.",
        ),
    ),
    order=10,
)
@dataclass(frozen=True)
class Accuracy:
    """Accuracy over all, by class and by group; likelihood, calibration; pictures."""

    def data_parts(self, subject: Subject) -> tuple[str, ...]:
        return subject.data.classes

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.accuracy.clean_accuracy import clean_accuracy

        return clean_accuracy(subject)
