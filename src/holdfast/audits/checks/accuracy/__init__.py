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
        Measure("accuracy", "clean accuracy", gate=True, headline=True),
        Measure("top_5_accuracy", "top-5 accuracy", gate=True),
        Measure("balanced_accuracy", "balanced accuracy", gate=True),
        Measure("class_accuracy", "accuracy by class", gate=True, part="class", data_part=True, of="accuracy"),
        Measure("nll", "negative log-likelihood", Unit.NUMBER, "lower", gate=True, headline=True, digits=3),
        Measure("brier", "Brier score", Unit.NUMBER, "lower", gate=True, digits=3),
        Measure("ece", "expected calibration error", better="lower", gate=True, headline=True),
        Measure("ece_adaptive", "calibration error, adaptive bins", better="lower", gate=True),
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
