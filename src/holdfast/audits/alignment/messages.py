"""What the user hears of an alignment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMatch
from holdfast.audits.alignment.order import find_order
from holdfast.audits.alignment.preprocessing_probe import STATED
from holdfast.audits.alignment.relabel import set_aside
from holdfast.data.splits import Split
from holdfast.models import Preprocessing
from holdfast.printable import printable


def preprocessing_words(name: str, used: Preprocessing, *, stated: Preprocessing | None) -> str:
    """What is done to images, and on whose word."""
    if name == STATED and stated is None:
        return f"{used} (the model states nothing: images go in as they are)"
    return f"{used} ({'by the model' if name == STATED else name})"


def order_warning(outputs: Tensor, labels: Tensor, match: ClassMatch) -> list[str]:
    """What to say where the outputs fit the classes far better in another order."""
    found = find_order(outputs.argmax(1), labels, len(match.data))
    if found is None:
        return []
    pair = found.paired
    wrong = [i for i, column in enumerate(found.columns) if column != i][:5]
    swaps = ", ".join(f"{printable(match.data[i])} = output {found.columns[i]}" for i in wrong)
    return [
        f"the outputs seem to stand in another order ({swaps}{', ...' if len(wrong) == 5 else ''}): "
        f"{100 * pair.lead:+.1f} points, {100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.0%}, on "
        f"{pair.n} images that did not choose it. Say it with --class-map FILE"
    ]


def class_words(match: ClassMatch, split: Split) -> tuple[list[str], list[str]]:
    """(notes, warnings) on the classes."""
    notes, warnings = [f"classes matched {match.how}"], []
    if match.moved:
        notes.append(f"class mapping: {match.describe()}")
    if match.kind == "order" and "assumed" in match.how:
        warnings.append(
            "the model does not name its classes: output 0 is taken for "
            f"{printable(match.data[0])!r}, and so on in order; --class-map FILE says it for sure"
        )
    if match.kind == "partial":
        warnings.append(
            f"{len(match.known)} of the data's {len(match.data)} classes are among the model's {len(match.model)}; "
            "two readings: 'all' counts an answer outside the data's classes as wrong, 'restricted' leaves it no choice"
        )
    counts = torch.bincount(split.labels, minlength=len(match.data))
    unseen = [match.data[i] for i in (counts == 0).nonzero().flatten().tolist()]
    if unseen:
        notes.append(f"classes without a test image, of which nothing is measured: {_some(unseen)}")
    if match.missing:
        warnings.append(
            f"the model does not know {_some(match.missing)}: {set_aside(split, match)} of {len(split)} test images "
            "are set aside"
        )
    return notes, warnings


def _some(names: Sequence[str]) -> str:
    return ", ".join(printable(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")
