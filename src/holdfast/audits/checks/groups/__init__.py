"""Check ``groups``: its declaration. The numbers are made in group_accuracy.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.parts import check
from holdfast.types import Finding, Measure, Unit

if TYPE_CHECKING:
    from holdfast.audits.subject import Subject


REMEDIES = (
    "holdfast shortcuts RUN # lists the training samples that contradict the shortcut",
    "holdfast repair RUN # fits a new last layer, in seconds",
    "holdfast train --data DATA --method logit-correction # trains against the shortcut, without group labels",
)


@check(
    "groups",
    title="Groups",
    about="Worst-group and group-balanced accuracy over every group of every class, bias-aligned and bias-conflicting.",
    measures=(
        Measure(
            "average_accuracy",
            "average accuracy",
            about="The share of all test images that is recognised, whatever their group.",
        ),
        Measure(
            "bias_aligned_accuracy",
            "bias-aligned accuracy",
            gate=True,
            about="Accuracy on test images that follow the spurious correlation of the training set.",
        ),
        Measure(
            "bias_conflicting_accuracy",
            "bias-conflicting accuracy",
            gate=True,
            headline=True,
            drop="bias_gap",
            drop_from="bias-aligned accuracy",
            about="Accuracy on test images that go against the spurious correlation of the training set.",
            remedies=REMEDIES,
        ),
        Measure(
            "harmonic_mean",
            "harmonic mean of bias-aligned and bias-conflicting",
            gate=True,
            about="One number for both: high only if bias-aligned and bias-conflicting accuracy are high.",
        ),
        Measure(
            "bias_gap",
            "gap between bias-aligned and bias-conflicting",
            Unit.POINTS,
            "lower",
            gate=True,
            about="How many points bias-conflicting accuracy is below bias-aligned accuracy.",
        ),
        Measure(
            "group_accuracy",
            "accuracy by group",
            gate=True,
            part="*",
            data_part=True,
            about="Accuracy on the test images of one group, or of one class in one group.",
        ),
        Measure(
            "group_gap",
            "gap between best and worst group, all classes together",
            Unit.POINTS,
            "lower",
            gate=True,
            about="Accuracy of the best group minus that of the worst.",
        ),
        Measure(
            "worst_group_accuracy",
            "worst-group accuracy",
            gate=True,
            headline=True,
            drop="worst_group_drop",
            about="Accuracy in the cell of class and group in which it is lowest.",
            remedies=REMEDIES,
        ),
        Measure(
            "worst_group_drop",
            "drop from clean accuracy to the worst cell",
            Unit.POINTS,
            "lower",
            gate=True,
            about="How many points the worst cell of class and group is below clean accuracy.",
        ),
        Measure(
            "cell_gap",
            "gap between best and worst cell of class and group",
            Unit.POINTS,
            "lower",
            gate=True,
            about="Accuracy of the best cell of class and group minus that of the worst.",
        ),
        Measure(
            "group_balanced_accuracy",
            "group-balanced accuracy",
            gate=True,
            headline=True,
            about="The mean of accuracy over all cells of class and group: what an unbiased test set would show.",
        ),
    ),
    order=20,
)
@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy in every group of every class, above all the worst."""

    def data_parts(self, subject: Subject) -> tuple[str, ...]:
        """Groups, and cells of class and group as CLASS/GROUP."""
        from holdfast.audits.checks.groups.group_accuracy import columns_of

        groups = tuple(dict.fromkeys(name for column in columns_of(subject) for name in column.names))
        return *groups, *(f"{label}/{group}" for label in subject.data.classes for group in groups)

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.groups.group_accuracy import group_accuracy

        return group_accuracy(subject)
