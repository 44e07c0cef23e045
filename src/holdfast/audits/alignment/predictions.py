"""Predictions that were made elsewhere, from a file: enough for the checks that need no model.

Open this file to change which columns are read, and how rows find their images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMap
from holdfast.audits.alignment.outputs import KINDS
from holdfast.audits.alignment.prediction_scores import class_indices, classes_of_file, is_number, read_scores
from holdfast.audits.subject import word_ids
from holdfast.data.splits import Dataset, Split
from holdfast.data.tables import TABLES, TableCells, name_order, read_table
from holdfast.detect.predicting import ABSTAIN, PREDICTION_COLUMNS
from holdfast.errors import HoldfastError, brief, cut, require, require_known
from holdfast.files import exists
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
    (``cat``, ``logit_cat``, ``prob_cat``); ``group``; so also a file of ``holdfast predict``. output: kind of the
    scores, None for what stands before their names, or to decide on all rows. class_map: see :func:`match_classes`.
    groups: further columns to keep as words.
    """
    if output is not None:
        require_known("kind of outputs", output, KINDS)
    cells = read_cells(path, extra=groups)
    name, n = printable(path), len(cells.lines)
    require(n > 0, f"{name} has no rows; write one per image")
    unread = [printable(column) for column in cells.left_out if column]
    notes = [Note("columns-left-out", f"columns left out: {', '.join(unread)}")] if unread else []
    split = None if data is None else data.test
    require(data is None or split is not None, f"{data.name if data else ''} has no test split to compare {name} with")
    classes = classes_of_file(cells, name, output, class_map) if data is None else tuple(data.classes)
    require(bool(classes), f"{name} names no class: all its labels are empty; fill them")
    logits, kind = read_scores(cells, classes, name, output=output, class_map=class_map, notes=notes)
    if split is None:
        positions = torch.arange(n)
        said = [cells.text[column] for column in ("id", "path", "position") if column in cells.text]
        _require_once([row for row in zip(*said, strict=True) if any(row)], name)
        labels = class_indices(cells, "label", classes, name)
        groups_said = cells.text.get("group", [""] * n)
        names = tuple(name_order(set(groups_said) - {""}))
        own = word_ids(groups_said, names)
    else:
        assert data is not None
        positions = _positions(cells, split, name)
        labels, own, names = split.labels[positions], split.groups[positions], data.group_names
        if "label" in cells.text:
            _require_labels(cells, labels, classes, name)
        known = [names[g] if g >= 0 else "" for g in own.tolist()]
        if "group" not in groups and cells.text.get("group", known) != known:
            text = f"groups are those of {data.name}, and the column 'group' of {name} is another one"
            notes.append(Note("groups-of-data", text, "--group group takes the file's"))
        if n < len(split):
            text = f"{name} covers {n} of {len(split)} test images; the others are left out"
            notes.append(Note("covers-part", text, level="warning"))
    seen, kept = Predictions(logits, labels, own), {column: tuple(cells.text[column]) for column in groups}
    ids = tuple(cells.text.get("id") or cells.text.get("path") or map(str, positions.tolist()))
    return PredictionTable(seen, classes, names, kind is not None, kind, positions, ids, kept, tuple(notes))


def _positions(cells: TableCells, split: Split, name: str) -> Tensor:
    """(N,) which image of the split each row speaks of; each at most once."""
    if "position" in cells.text:
        words = cells.text["position"]
        bad = next((w for w in words if not (is_number(w) and int(w) < len(split))), None)
        require(bad is None, f"{name}: position {brief(bad)} is none of 0 to {len(split) - 1}")
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
            f"{name}: {brief(printable(word))} is the name of {len(found)} test images; give their full paths"
        )
    near = get_close_matches(word, list(exact)[:5000], n=1) or list(exact)[:1]
    raise HoldfastError(
        f"{name}: {brief(printable(word))} is not a test image; they have names such as {printable(near[0])!r}. Fix "
        "the column, or give 'position', from 0 on"
    )


def _require_labels(cells: TableCells, labels: Tensor, classes: tuple[str, ...], name: str) -> None:
    """Labels of the file must be the data's: where they are not, rows belong to other images."""
    given = class_indices(cells, "label", classes, name)
    differ = (given != labels).nonzero().flatten()
    if len(differ):
        first = int(differ[0])
        raise HoldfastError(
            f"{name}: {len(differ)} of {len(labels)} labels are not the data's, the first in line {cells.lines[first]} "
            f"({printable(classes[given[first]])} instead of {printable(classes[labels[first]])}); "
            "are the rows in another order, or of another split?"
        )


WORDS: Final = ("id", "path", "position", "label", "prediction", "group")
"""Columns that say something of a row; known in any case."""
IGNORED: Final = ("split", "confidence", "correct")
PREDICT: Final = {name: name if name in WORDS else "" for name in PREDICTION_COLUMNS}
"""Columns of a file of ``holdfast predict``, and what each is here. Only all of them together are taken so: in files of
others ``ood`` may be a class."""


def read_cells(path: str | Path, *, extra: Sequence[str] = ()) -> TableCells:
    """A CSV or Parquet file. extra: further columns of words."""
    path = Path(path)
    require(exists(path) and path.is_file(), f"predictions {printable(path)} do not exist; give a CSV or Parquet file")
    suffix = path.suffix.lower()
    require(suffix in TABLES, f"predictions {printable(path)} must be .csv or .parquet, not {suffix!r}")

    def header(names: Sequence[str]) -> list[str]:
        """Column names; those known in any case in lower case, those ignored empty."""
        stripped = [name.strip() for name in names]
        own = PREDICT | {ABSTAIN: ""} if {*PREDICT} <= {*stripped} else {}
        known = {word: word for word in WORDS} | dict.fromkeys(IGNORED, "")
        found = [name if name in extra else own.get(name, known.get(name.lower(), name)) for name in stripped]
        require(bool(found), f"{printable(path)} is empty; the first line must name the columns")
        twice = cut(", ".join(printable(name) for name in sorted({n for n in found if n and found.count(n) > 1})))
        require(not twice, f"{printable(path)} has the column {twice} more than once; keep one")
        for name in extra:
            require(
                name in found,
                f"{printable(path)} has no column {name!r}; its columns are: {cut(', '.join(map(printable, names)))}",
            )
        return found

    return read_table(path, header=header, text=(*WORDS, *extra), numbers=True, strict=True)
