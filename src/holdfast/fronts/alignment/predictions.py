"""Predictions that were made elsewhere, from a file: enough for the fronts that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from holdfast.data.printable import printable
from holdfast.data.splits import Dataset, Split
from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, require, unknown
from holdfast.fronts.alignment.classes import match_classes, simple
from holdfast.fronts.alignment.outputs import KINDS, check_finite, decide_kind, kind_warning, to_logits
from holdfast.fronts.alignment.prediction_cells import Cells, class_columns, read_cells
from holdfast.train.evaluate import Predictions


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
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def read_predictions(
    path: str | Path, *, data: Dataset | None = None, output: str | None = None, groups: Sequence[str] = ()
) -> PredictionTable:
    """Read a CSV or Parquet file with one row an image.

    Columns: ``id`` (or ``path``) or ``position``, which say the image in the data's test split (else rows stand in
    its order); ``label``, needed without data; ``prediction``, or one column a class with logits or probabilities
    (``cat``, ``logit_cat``, ``prob_cat``); ``group``. output: kind of the scores, None to decide on all rows.
    groups: further columns to keep as words.
    """
    if output is not None and output not in KINDS:
        raise unknown("kind of outputs", output, KINDS)
    cells = read_cells(path, extra=groups)
    name, n = printable(path), len(cells.lines)
    require(n > 0, f"{name} has no rows; write one an image")
    notes = (
        [f"columns left out: {', '.join(map(printable, filter(None, cells.left_out)))}"] if any(cells.left_out) else []
    )
    warnings: list[str] = []
    split = None if data is None else data.test
    require(data is None or split is not None, f"{data.name if data else ''} has no test split to compare {name} with")
    classes = tuple(data.classes) if data is not None else _classes(cells, name)
    logits, kind = _logits(cells, classes, name, output, notes, warnings)
    if split is None:
        positions = torch.arange(n)
        labels = _indices(cells, "label", classes, name)
        names = tuple(name_order(set(cells.words.get("group", ())) - {""}))
        number = {group: i for i, group in enumerate(names)} | {"": -1}
        own = torch.tensor([number[cell] for cell in cells.words["group"]]) if names else torch.full((n,), -1)
    else:
        assert data is not None
        positions = _positions(cells, split, name)
        labels, own, names = split.labels[positions], split.groups[positions], data.group_names
        _same_labels(cells, labels, classes, name)
        if n < len(split):
            warnings.append(f"{name} covers {n} of {len(split)} test images; the others are left out")
    return PredictionTable(
        Predictions(logits, labels, own),
        classes,
        names,
        kind is not None,
        kind,
        positions,
        tuple(cells.words.get("id") or cells.words.get("path") or map(str, positions.tolist())),
        {column: tuple(cells.words[column]) for column in groups},
        tuple(notes),
        tuple(warnings),
    )


def _classes(cells: Cells, name: str) -> tuple[str, ...]:
    require("label" in cells.words, f"{name} has no column 'label'; add one, or give the data it belongs to")
    columns, labels = class_columns(cells.names, None), set(cells.words["label"])
    numbers = all(label.isdecimal() and int(label) < len(columns) for label in labels)
    if columns and ("prediction" not in cells.words or labels <= columns.keys() or (numbers and len(columns) > 1)):
        return tuple(columns)
    return tuple(name_order({*labels, *cells.words.get("prediction", ())} - {""}))


def _columns(cells: Cells, classes: tuple[str, ...]) -> dict[str, int]:
    """Score columns by class; none where predictions are given and no number stands under a class."""
    found = class_columns(cells.names, classes)
    wanted = {simple(name) for name in classes}
    return found if "prediction" not in cells.words or any(simple(name) in wanted for name in found) else {}


def _logits(
    cells: Cells, classes: tuple[str, ...], name: str, output: str | None, notes: list[str], warnings: list[str]
) -> tuple[Tensor, str | None]:
    """(logits (N, K), kind of the scores). Without scores the predicted class has 1 and the others 0."""
    predicted = _indices(cells, "prediction", classes, name) if "prediction" in cells.words else None
    columns = _columns(cells, classes)
    if not columns:
        if predicted is None:
            raise HoldfastError(
                f"{name} has neither a column 'prediction' nor one a class, such as {printable(classes[0])!r}"
            )
        return torch.nn.functional.one_hot(predicted, len(classes)).float(), None
    match = match_classes(classes, list(columns), outputs=len(columns))
    require(
        not match.missing,
        f"{name} has no column for {', '.join(map(printable, match.missing[:5]))}; its numeric columns are "
        f"{', '.join(map(printable, cells.names[:5]))}",
    )
    places = list(columns.values())
    chosen = [places[column] for (column,) in match.columns]
    if others := [printable(column) for i, column in enumerate(cells.names) if i not in chosen]:
        notes.append(f"columns of no class left out: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}")
    scores = torch.from_numpy(cells.scores)[:, chosen]
    check_finite(scores)
    kind = output or decide_kind(scores)
    notes.append(f"scores are {kind}" + (", as stated" if output else f", decided on {len(scores)} rows"))
    warnings += [text for text in (kind_warning(scores, kind),) if text]
    if predicted is not None and (differ := int((scores.argmax(1) != predicted).sum())):
        warnings.append(
            f"in {differ} rows of {name} 'prediction' is not the class with the highest score; scores count"
        )
    return to_logits(scores, kind), kind


def _indices(cells: Cells, column: str, classes: tuple[str, ...], name: str) -> Tensor:
    """(N,) class of each cell, by name; by number where no cell is a name."""
    require(column in cells.words, f"{name} has no column {column!r}; add one, or give the data it belongs to")
    words = cells.words[column]
    empty = next((line for cell, line in zip(words, cells.lines, strict=True) if not cell), None)
    require(empty is None, f"{name}, line {empty}: no {column}; fill the cell or remove the row")
    known = {cls: i for i, cls in enumerate(classes)}
    if not known.keys() & set(words) and all(word.isdecimal() and int(word) < len(classes) for word in words):
        return torch.tensor([int(word) for word in words])
    for word, line in zip(words, cells.lines, strict=True):
        if word not in known:
            raise HoldfastError(f"{name}, line {line}: {unknown(column, printable(word), classes)}")
    return torch.tensor([known[word] for word in words])


def _positions(cells: Cells, split: Split, name: str) -> Tensor:
    """(N,) which image of the split each row speaks of; each at most once."""
    if "position" in cells.words:
        words = cells.words["position"]
        bad = next((w for w in words if not (w.isdecimal() and int(w) < len(split))), None)
        require(bad is None, f"{name}: position {bad!r} is none of 0 to {len(split) - 1}")
        found = [int(word) for word in words]
    elif ids := cells.words.get("path") or cells.words.get("id"):  # a table of ours numbers its rows by id
        places = _places(split)
        for word in ids:
            if len(places.get(word, ())) != 1:
                raise HoldfastError(_no_place(word, places, name))
        found = [places[word][0] for word in ids]
    else:
        require(
            len(cells.lines) == len(split),
            f"{name} has {len(cells.lines)} rows for {len(split)} test images and no column 'id' or 'position'; "
            "add one of them",
        )
        found = list(range(len(split)))
    twice = len(found) - len(set(found))
    require(twice == 0, f"{name} speaks of {twice} images more than once; keep one row an image")
    return torch.tensor(found)


def _places(split: Split) -> dict[str, list[int]]:
    """Positions by the image's full description and by its last part, the file name."""
    places: dict[str, list[int]] = {}
    for i in range(len(split)):
        full = split.describe(i)
        for key in {full, full.rsplit("/", 1)[-1]}:
            places.setdefault(key, []).append(i)
    return places


def _no_place(word: str, places: Mapping[str, Sequence[int]], name: str) -> str:
    if word in places:
        return f"{name}: {printable(word)!r} is the name of {len(places[word])} test images; give their full paths"
    near = get_close_matches(word, list(places)[:5000], n=1) or list(places)[:1]
    return (
        f"{name}: {printable(word)!r} is no test image; they have names such as {printable(near[0])!r}. Mend the "
        "column, or give 'position', from 0 on"
    )


def _same_labels(cells: Cells, labels: Tensor, classes: tuple[str, ...], name: str) -> None:
    """Labels of the file must be the data's: where they are not, rows belong to other images."""
    if "label" not in cells.words:
        return
    given = _indices(cells, "label", classes, name)
    differ = (given != labels).nonzero().flatten()
    if len(differ):
        first = int(differ[0])
        raise HoldfastError(
            f"{name}: {len(differ)} of {len(labels)} labels are not the data's, the first in line {cells.lines[first]} "
            f"({printable(classes[given[first]])} instead of {printable(classes[labels[first]])}); "
            "are the rows in another order, or of another split?"
        )
