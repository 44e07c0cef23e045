"""What the user is told of an alignment: classes, preprocessing, and outputs that seem to stand in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.audits.alignment.aligned_data import set_aside
from holdfast.audits.alignment.classes import ClassMatch
from holdfast.audits.alignment.preprocessing_probe import LEAST_LEAD, LEVEL, STATED
from holdfast.data.splits import Split
from holdfast.metrics import Paired, paired_difference
from holdfast.models import Preprocessing
from holdfast.printable import printable
from holdfast.types import Note


def preprocessing_note(name: str, used: Preprocessing, *, stated: Preprocessing | None) -> Note:
    """What is done to images, and on whose word."""
    if name == STATED and stated is None:
        whose = "the model states nothing: images go in without preprocessing"
    else:
        whose = "by the model" if name == STATED else name
    return Note("preprocessing-used", f"preprocessing: {used} ({whose})")


def order_notes(outputs: Tensor, labels: Tensor, match: ClassMatch) -> list[Note]:
    """What to say where the outputs fit the classes far better in another order."""
    found = find_order(outputs.argmax(1), labels, len(match.data))
    if found is None:
        return []
    pair = found.paired
    wrong = [i for i, column in enumerate(found.columns) if column != i][:5]
    swaps = ", ".join(f"{printable(match.data[i])} = output {found.columns[i]}" for i in wrong)
    text = (
        f"the outputs seem to stand in another order ({swaps}{', ...' if len(wrong) == 5 else ''}): "
        f"{100 * pair.lead:+.1f} points, {100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.0%}, on "
        f"{pair.n} images that did not choose it"
    )
    return [Note("class-order", text, "state it with --class-map FILE", "warning")]


def class_notes(match: ClassMatch, split: Split) -> list[Note]:
    """How the classes were matched, and what that leaves out."""
    notes = [Note("classes", f"classes matched {match.how}")]
    if match.moved:
        notes.append(Note("class-mapping", f"class mapping: {match.describe()}"))
    if match.assumed:
        text = f"the model does not name its classes: output 0 is taken for {printable(match.data[0])!r}, and so on"
        notes.append(Note("classes-assumed", f"{text} in order", "state them with --class-map FILE", "warning"))
    if match.kind == "partial":
        text = (
            f"{len(match.known)} of the data's {len(match.data)} classes are among the model's {len(match.model)}; "
            "two readings: 'all' counts an answer outside the data's classes as wrong, 'restricted' leaves it no choice"
        )
        notes.append(Note("classes-partial", text, level="warning"))
    counts = torch.bincount(split.labels, minlength=len(match.data))
    unseen = [match.data[i] for i in (counts == 0).nonzero().flatten().tolist()]
    if unseen:
        notes.append(
            Note("classes-empty", f"classes without a test image, of which nothing is measured: {_some(unseen)}")
        )
    if match.missing:
        aside = f"{set_aside(split, match)} of {len(split)} test images are set aside"
        notes.append(
            Note("classes-missing", f"the model does not know {_some(match.missing)}: {aside}", level="warning")
        )
    return notes


def _some(names: Sequence[str]) -> str:
    return ", ".join(printable(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass(frozen=True)
class OutputOrder:
    """columns: the output of each class. paired: its lead over the order as it is, on samples that did not choose."""

    columns: tuple[int, ...]
    paired: Paired


def find_order(predicted: Tensor, labels: Tensor, classes: int) -> OutputOrder | None:
    """An order that is surely better by enough to matter, or None.

    predicted, labels: (N,). Every second sample chooses the assignment with the most hits; the others judge it.
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    choosing, judging = slice(0, None, 2), slice(1, None, 2)
    counts = torch.zeros(classes, classes).index_put_(
        (labels[choosing], predicted[choosing]), torch.tensor(1.0), accumulate=True
    )
    counts += 0.5 * torch.eye(classes)  # where samples say nothing, the order stays
    columns = torch.from_numpy(linear_sum_assignment(counts.numpy(), maximize=True)[1])
    now, then = predicted[judging] == labels[judging], predicted[judging] == columns[labels[judging]]
    paired = paired_difference(then, now, level=LEVEL)
    better = paired.low > 0 and paired.lead > LEAST_LEAD
    return OutputOrder(tuple(columns.tolist()), paired) if better else None
