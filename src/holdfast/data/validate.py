"""What must hold of any labelled set before something is trained on it, or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from holdfast.errors import HoldfastError


def find_problems(
    classes: Sequence[str], labels: Mapping[str, Tensor], *, hint: str = "", least: int = 2, training: bool = True
) -> list[str]:
    """Everything wrong with the labels (N,) of each split, one sentence each; ``train`` must be among them.

    hint: what the source can add about finding or adding samples. least: how many classes there must be. training:
    whether every class must have training samples; a model that is there already can be measured without.
    """
    found = []
    more = f" ({hint})" if hint else ""
    if training and not len(labels["train"]):
        return [f"there is no training sample{more}"]
    if not any(map(len, labels.values())):
        return [f"there is no sample{more}"]
    if len(classes) < least:
        found.append(f"a classifier needs at least two classes, found {len(classes)}: {', '.join(classes)}{more}")
    for split, own in labels.items():
        outside = (own < 0) | (own >= len(classes))
        if outside.any():
            at = int(outside.nonzero()[0])
            found.append(
                f"label {int(own[at])} at position {at} of the {split} split is out of range: "
                f"there are {len(classes)} classes, so labels are 0..{len(classes) - 1}"
            )
    present = set(labels["train"].tolist())
    for label, name in enumerate(classes if training else ()):
        if label not in present:
            found.append(
                f"class {name!r} (label {label}) has no training sample; add some, or remove the class "
                f"from every split{more}"
            )
    return found


def refuse(problems: Sequence[str], name: str) -> None:
    """Raise the first problem, if there is one, and say how many more there are."""
    if problems:
        more = f" (and {len(problems) - 1} more; 'holdfast data check' lists all)" if len(problems) > 1 else ""
        raise HoldfastError(f"{name}: {problems[0]}{more}")
