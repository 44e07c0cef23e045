"""Predictions that were made elsewhere, from a file: enough for the checks that need no model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMap
from holdfast.audits.alignment.outputs import KINDS
from holdfast.audits.alignment.prediction_scores import class_indices, classes_of_file, read_cells, read_scores
from holdfast.data.splits import Dataset, Split
from holdfast.data.tables import TableCells, name_order
from holdfast.errors import HoldfastError, require, unknown
from holdfast.printable import printable
from holdfast.train.evaluate import Predictions
from holdfast.types import Note


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """predictions: logits, labels and groups of each row; logits are one-hot where the file has no scores.
    scores: whether it has, so that loss and calibration mean something. output: what kind they were. classes,
    group_names: of labels and groups. positions: (N,) of each row in the test split; rows' own order without data.
    ids: what the file calls each row. columns: further columns asked for, as words."""

    predictions: Predictions
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    scores: bool
    output: str | None
    positions: Tensor
    ids: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    notes: tuple[Note, ...]

    @property
    def warnings(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.level == "warning")


def read_predictions(
    path: str | Path,
    *,
    data: Dataset | None = None,
    output: str | None = None,
    class_map: ClassMap | str | None = None,
    groups: Sequence[str] = (),
) -> PredictionTable:
    """Read a CSV or Parquet file with one row per image.

    Columns: ``id`` (or ``path``) or ``position``, which say the image in the data's test split (else rows stand in
    its order); ``label``, needed without data; ``prediction``, or one column a class with logits or probabilities
    (``cat``, ``logit_cat``, ``prob_cat``); ``group``; or those of a file of ``holdfast predict``. output: kind of the
    scores, None for what stands before their names, or to decide on all rows. class_map: see :func:`match_classes`.
    groups: further columns to keep as words.
    """
    if output is not None and output not in KINDS:
        raise unknown("kind of outputs", output, KINDS)
    cells = read_cells(path, extra=groups)
    name, n = printable(path), len(cells.lines)
    require(n > 0, f"{name} has no rows; write one per image")
    unread = [printable(column) for column in cells.left_out if column]
    notes = [Note("columns-left-out", f"columns left out: {', '.join(unread)}")] if unread else []
    split = None if data is None else data.test
    require(data is None or split is not None, f"{data.name if data else ''} has no test split to compare {name} with")
    classes = _classes(cells, name, output, class_map) if data is None else tuple(data.classes)
    logits, kind = read_scores(cells, classes, name, output=output, class_map=class_map, notes=notes)
    if split is None:
        positions = torch.arange(n)
        said = [cells.text[column] for column in ("id", "path", "position") if column in cells.text]
        _require_once([row for row in zip(*said, strict=True) if any(row)], name)
        labels = class_indices(cells, "label", classes, name)
        names = tuple(name_order(set(cells.text.get("group", ())) - {""}))
        number = {group: i for i, group in enumerate(names)} | {"": -1}
        own = torch.tensor([number[cell] for cell in cells.text["group"]]) if names else torch.full((n,), -1)
    else:
        assert data is not None
        positions = _positions(cells, split, name)
        labels, own, names = split.labels[positions], split.groups[positions], data.group_names
        _same_labels(cells, labels, classes, name)
        if n < len(split):
            text = f"{name} covers {n} of {len(split)} test images; the others are left out"
            notes.append(Note("covers-part", text, level="warning"))
    return PredictionTable(
        Predictions(logits, labels, own),
        classes,
        names,
        kind is not None,
        kind,
        positions,
        tuple(cells.text.get("id") or cells.text.get("path") or map(str, positions.tolist())),
        {column: tuple(cells.text[column]) for column in groups},
        tuple(notes),
    )


def _classes(cells: TableCells, name: str, output: str | None, class_map: ClassMap | str | None) -> tuple[str, ...]:
    """A class map names the classes too; in order, columns are the labels' whatever they are called."""
    require(
        "label" in cells.text,
        f"{name} has no column 'label' with the truth (that of a file of 'holdfast predict' is its answer); add one, "
        "or give the data it belongs to with --data",
    )
    if isinstance(class_map, Mapping):
        return tuple(class_map)
    if class_map is not None:
        return tuple(name_order(set(cells.text["label"]) - {""}))
    return classes_of_file(cells, name, output)


def _positions(cells: TableCells, split: Split, name: str) -> Tensor:
    """(N,) which image of the split each row speaks of; each at most once."""
    if "position" in cells.text:
        words = cells.text["position"]
        bad = next((w for w in words if not (w.isdecimal() and int(w) < len(split))), None)
        require(bad is None, f"{name}: position {bad!r} is none of 0 to {len(split) - 1}")
        found = [int(word) for word in words]
    elif ids := cells.text.get("path") or cells.text.get("id"):  # a table of ours numbers its rows by id
        exact, ends = _places(split)
        found = [_place(word, exact, ends, name) for word in ids]
    else:
        require(
            len(cells.lines) == len(split),
            f"{name} has {len(cells.lines)} rows for {len(split)} test images and no column 'id' or 'position'; "
            "add one of them",
        )
        found = list(range(len(split)))
    _require_once(found, name)
    return torch.tensor(found)


def _require_once(images: Sequence[object], name: str) -> None:
    twice = len(images) - len(set(images))
    require(twice == 0, f"{name} speaks of {twice} images more than once; keep one row per image")


def _places(split: Split) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Positions by where an image lies, and by every end of that: from the data's folder on, or the file name alone."""
    exact: dict[str, int] = {}
    ends: dict[str, list[int]] = {}
    for i in range(len(split)):
        full = split.describe(i)
        parts = os.path.abspath(full).split("/")
        exact[full] = exact["/".join(parts)] = i
        for start in range(1, len(parts)):
            ends.setdefault("/".join(parts[start:]), []).append(i)
    return exact, ends


def _place(word: str, exact: Mapping[str, int], ends: Mapping[str, Sequence[int]], name: str) -> int:
    plain = os.path.normpath(word)
    for spelling in (word, plain, os.path.abspath(word)):
        if spelling in exact:
            return exact[spelling]
    found = ends.get(plain, ())
    if len(found) == 1:
        return found[0]
    if found:
        raise HoldfastError(
            f"{name}: {printable(word)!r} is the name of {len(found)} test images; give their full paths"
        )
    near = get_close_matches(word, list(exact)[:5000], n=1) or list(exact)[:1]
    raise HoldfastError(
        f"{name}: {printable(word)!r} is not a test image; they have names such as {printable(near[0])!r}. Fix the "
        "column, or give 'position', from 0 on"
    )


def _same_labels(cells: TableCells, labels: Tensor, classes: tuple[str, ...], name: str) -> None:
    """Labels of the file must be the data's: where they are not, rows belong to other images."""
    if "label" not in cells.text:
        return
    given = class_indices(cells, "label", classes, name)
    differ = (given != labels).nonzero().flatten()
    if len(differ):
        first = int(differ[0])
        raise HoldfastError(
            f"{name}: {len(differ)} of {len(labels)} labels are not the data's, the first in line {cells.lines[first]} "
            f"({printable(classes[given[first]])} instead of {printable(classes[labels[first]])}); "
            "are the rows in another order, or of another split?"
        )
