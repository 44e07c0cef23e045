"""Accuracy in every group of every class, above all the worst: what the check ``groups`` measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from holdfast import metrics
from holdfast.audits.checks.accuracy.clean_accuracy import accuracy, estimate
from holdfast.audits.sample_passes import encode
from holdfast.audits.subject import GroupColumn, Subject
from holdfast.data.splits import aligned_groups, bias_alignment
from holdfast.errors import require
from holdfast.metrics import Estimate, proportion, proportion_interval, widest_gap
from holdfast.types import Finding

OWN = "group"
TAKEN = ("against", "bias", "class", "column", "measure")
"""Words by which findings on groups name other parts, also in a comparison of models: a column that is called so would
be taken for that part."""
MOST_CELLS = 500
"""Beyond so many cells they are evidence of the worst one, and no findings of their own."""
NO_GROUPS = "the test samples have no groups; give the data a group column"
BY_BIAS = ("bias_aligned_accuracy", "bias_conflicting_accuracy", "harmonic_mean", "bias_gap")
NO_USUAL_GROUP = (
    "no class has a usual group in training, one that is clearly its most frequent and more frequent than in the other "
    "classes, so no sample goes with or against a shortcut; groups named aligned and conflicting are taken as given"
)


@dataclass(frozen=True, eq=False)
class Groups:
    """One way to part the test samples.

    ids: (N,) int64 group of every test sample, -1 where it is not known. names: by id. usual: (K,) the usual group
    of each class in training, -1 where it has none; None where the training groups are not known.
    """

    name: str
    ids: Tensor
    names: tuple[str, ...]
    usual: Tensor | None = None

    def words(self) -> list[str]:
        """(N,) names instead of ids; "" where unknown."""
        return [self.names[i] if i >= 0 else "" for i in self.ids.tolist()]

    def sides(self, labels: Tensor) -> dict[str, Tensor]:
        """(N,) which samples follow the shortcut of the training set and which do not; empty where unknown."""
        return {} if self.usual is None else bias_alignment(labels, self.ids, self.usual)


def check_columns(names: Iterable[str]) -> None:
    """Refuse a column whose name the findings use themselves."""
    for name in names:
        require(
            name not in TAKEN,
            f"a group column cannot be called {name!r}, as findings use that word for parts of their own; rename it",
        )


def parts(subject: Subject) -> Iterator[tuple[str, dict[str, str], Tensor]]:
    """Every part that :func:`group_accuracy` has an accuracy of: measure, ``where``, and (N,) who belongs."""
    for column in columns_of(subject):
        named = {"column": column.name} if subject.columns else {}
        for side, inside in column.sides(subject.predictions.labels).items():
            yield f"bias_{side}_accuracy", named, inside
        for group, name in enumerate(column.names):
            yield "group_accuracy", {**named, column.name: name}, column.ids == group


def group_accuracy(subject: Subject) -> tuple[Finding, ...]:
    """Average, bias-aligned, bias-conflicting, worst-group and every cell's accuracy, gaps and the harmonic mean.

    By the data set's own groups and by the subject's further columns. What is usual in training decides which
    test samples are aligned; where the training groups are not known these are not told apart. Findings of a column
    that was asked for carry its name as ``where["column"]``.
    """
    found: list[Finding] = []
    for column in columns_of(subject):
        own = by_column(subject, column)
        found += [replace(f, where={"column": column.name, **f.where}) for f in own] if subject.columns else own
    if not found:
        return (Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": NO_GROUPS}),)
    return (accuracy(subject.predictions.correct, {}, check="groups", name="average_accuracy"), *found)


def by_column(subject: Subject, column: Groups) -> list[Finding]:
    seen, classes = subject.predictions, subject.data.classes
    correct, key = seen.correct, column.name
    hits, counts = tabulate(correct, seen.labels, column.ids, len(classes), len(column.names))
    found = sides(correct, seen.labels, column, classes)
    for group, name in enumerate(column.names):
        found.append(accuracy(correct[column.ids == group], {key: name}, check="groups", name="group_accuracy"))
    marginal = hits.sum(0).tolist(), counts.sum(0).tolist()
    if sum(n > 0 for n in marginal[1]) > 1:
        found.append(_finding("group_gap", widest_gap(*marginal)))
    table, worst = cells(hits, counts, classes, column)
    inside = (seen.labels == worst[0]) & (column.ids == worst[1])
    said = "worst" if key == OWN else f"worst by {key}"
    positions = inside.nonzero().flatten()
    evidence = {**table[0].evidence, "verdicts": encode(positions, [said] * len(positions))}
    return [*found, replace(table[0], evidence=evidence), drop(correct, table[0]), *table[1:]]


def drop(correct: Tensor, worst: Finding) -> Finding:
    """How far the worst cell is below all samples, (N,) flags.

    The cell is one of many and picked for being low, so errors of the two do not add up in squares as independent ones
    do: the ends of their intervals are set against each other.
    """
    every, low = proportion(correct), estimate(worst)
    below = Estimate(every.value - low.value, every.low - low.high, every.high - low.low, every.n)
    return _finding("worst_group_drop", below)


def sides(correct: Tensor, labels: Tensor, column: Groups, classes: Sequence[str]) -> list[Finding]:
    """Bias-aligned and bias-conflicting accuracy, their gap and harmonic mean."""
    if column.usual is None:
        return []
    halves = column.sides(labels)
    if not halves:
        return [Finding("groups", name, None, 0, evidence={"reason": NO_USUAL_GROUP}) for name in BY_BIAS]
    which = taking_part(labels, column, classes)
    made = [
        accuracy(correct[half], {}, check="groups", name=f"bias_{name}_accuracy", evidence=which)
        for name, half in halves.items()
    ]
    if any(f.n == 0 for f in made):
        return [*made, *(Finding("groups", name, None, 0) for name in ("harmonic_mean", "bias_gap"))]
    mean = metrics.combined(metrics.harmonic_mean, [estimate(f) for f in made])  # high only where both are
    gap = metrics.combined(lambda p: p[0] - p[1], [proportion(correct[half]) for half in halves.values()])
    low, high = max(0.0, mean.low), min(1.0, mean.high)
    both = Finding("groups", "harmonic_mean", mean.value, mean.n, low, high, evidence=which)
    return [*made, both, _finding("bias_gap", gap, which)]


def taking_part(labels: Tensor, column: Groups, classes: Sequence[str]) -> dict[str, Any]:
    """Which classes bias-aligned and bias-conflicting samples are of, where some have no usual group; else nothing."""
    assert column.usual is not None
    known = column.ids >= 0
    there = torch.bincount(labels[known], minlength=len(classes)) > 0
    without = (there & (column.usual < 0)).nonzero().flatten().tolist()
    if not without:
        return {}
    n = int((known & (column.usual[labels] >= 0)).sum())
    note = (
        f"Bias-aligned and bias-conflicting samples: {n:,} of {int(known.sum()):,}, of the "
        f"{int(there.sum()) - len(without):,} of {int(there.sum()):,} classes that have a usual group in training"
    )
    return {"note": note, "without_usual_group": [classes[k] for k in without]}


def cells(
    hits: Tensor, counts: Tensor, classes: Sequence[str], column: Groups
) -> tuple[list[Finding], tuple[int, int]]:
    """The worst cell of class and group, the mean that counts every cell the same, and every cell; which is worst."""
    table: dict[str, Any] = {"column": column.name, "classes": list(classes), "groups": list(column.names)}
    table |= {"hits": hits.tolist(), "n": counts.tolist()}
    filled = counts > 0
    right, sizes = hits[filled].tolist(), counts[filled].tolist()

    lowest_cell = min(range(len(sizes)), key=lambda i: (right[i] / sizes[i], -sizes[i]))
    at = int(filled.nonzero()[lowest_cell, 0]), int(filled.nonzero()[lowest_cell, 1])
    counted = {"cells": len(sizes), "empty": int((~filled).sum())}
    cell = {"class": classes[at[0]], column.name: column.names[at[1]]}
    made = [
        _finding("worst_group_accuracy", metrics.lowest(right, sizes), {"cell": cell, **counted, "table": table}),
        _finding("cell_gap", widest_gap(right, sizes)),
        _finding("group_balanced_accuracy", metrics.mean_of_shares(right, sizes), counted),
    ]
    named = product(classes, column.names) if counts.numel() <= MOST_CELLS else ()
    for (name, group), hit, n in zip(named, hits.flatten().tolist(), counts.flatten().tolist(), strict=False):
        low, high = proportion_interval(hit, n) if n else (None, None)
        where = {"class": name, column.name: group}
        made.append(Finding("groups", "group_accuracy", hit / n if n else None, n, low, high, where))
    return made, at


def tabulate(correct: Tensor, labels: Tensor, ids: Tensor, classes: int, count: int) -> tuple[Tensor, Tensor]:
    """(K, G) correct samples and samples of every class and group; unknown groups are left out."""
    known = ids >= 0
    place = labels[known] * count + ids[known]
    hits, n = (torch.bincount(own, minlength=classes * count) for own in (place[correct[known]], place))
    return hits.view(classes, count), n.view(classes, count)


def columns_of(subject: Subject) -> list[Groups]:
    """The columns that were asked for and the data set's own, unless one of them is the same.

    Those that say nothing of any test sample are left out. Groups beyond the given names are named by their number.
    """
    check_columns(subject.columns)
    data, made = subject.data, []
    own = GroupColumn(subject.split.groups, data.group_names, data.train.groups)
    for name, column in {**subject.columns, OWN: subject.columns.get(OWN, own)}.items():
        ids, train, usual = column.ids.cpu().long(), column.train, None
        require(
            ids.shape == (len(subject.split),),
            f"group column {name!r} has shape {tuple(ids.shape)}, and there are {len(subject.split)} test samples",
        )
        if not bool((ids >= 0).any()):
            continue
        names = (*column.names, *(str(i) for i in range(len(column.names), int(ids.max()) + 1)))
        if train is not None and bool((train >= 0).any()):
            usual = aligned_groups(data.train.labels, train.cpu(), data.num_classes, column.names)
        made.append(Groups(name, ids, names, usual))
    has_own = OWN not in subject.columns and bool(made) and made[-1].name == OWN
    same = has_own and any(column.words() == made[-1].words() for column in made[:-1])
    return made[:-1] if same else made


def _finding(name: str, found: Estimate, evidence: Mapping[str, Any] | None = None) -> Finding:
    low, high = max(-1.0, found.low), min(1.0, found.high)
    return Finding("groups", name, found.value, found.n, low, high, evidence=evidence or {})
