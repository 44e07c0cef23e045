"""What the columns of a file of predictions say of classes: which class a word is, which columns are scores, and of
what kind their numbers are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import (
    ORDER,
    ClassMap,
    index_names,
    match_classes,
    simple,
    some,
    targets,
)
from holdfast.audits.alignment.outputs import TOLERANCE, decide_kind, kind_warnings, to_logits
from holdfast.data.tables import TableCells, name_order
from holdfast.errors import HoldfastError, brief, cut, require, require_known, unknown
from holdfast.printable import printable
from holdfast.types import Note

PREFIXES: Final = {
    "probabilities": "prob(?:s|ability)?|p",
    "logits": "logits?",
    "log-probabilities": "log[ _-]?probs?",
    None: "scores?",
}
"""What may stand before the name of a class, by the kind of numbers it states."""
NUMBERS_ONLY = "scores must be numbers, with a point before decimals: NaN, infinity, text and empty cells are none"
NEAR_ONE: Final = 0.05
"""Rows of stated probabilities may sum so far from one, as many rounded ones do, before anything is said."""


@dataclass(frozen=True)
class Family:
    """Numeric columns with the same word before the class, or with none. places: {class: column}. kind: as stated."""

    places: Mapping[str, int]
    kind: str | None = None
    prefixed: bool = False

    def named(self, wanted: Iterable[str]) -> list[str]:
        spellings = {simple(name) for name in wanted}
        return [name for name in self.places if simple(name) in spellings]


def score_columns(names: Sequence[str], wanted: Iterable[str], output: str | None = None) -> Family:
    """The family of columns that names the most of the wanted classes.

    Where several do, one with a word such as ``logit_`` before two columns or more, and of these the one of the kind
    that was asked for.

    >>> score_columns(["width", "logit_cat", "logit_dog"], ["0", "1"]).places
    {'cat': 1, 'dog': 2}
    >>> score_columns(["cat", "p_dog"], ["cat", "p_dog"]).places
    {'cat': 0, 'p_dog': 1}
    """
    words = list(wanted)
    families = [Family({name: i for i, name in enumerate(names)})]
    for kind, word in PREFIXES.items():
        prefix = re.compile(f"(?:{word})[_:. ]", re.IGNORECASE)
        places = {name[m.end() :]: i for i, name in enumerate(names) if (m := prefix.match(name))}
        families.append(Family(places, kind, prefixed=True))
    return max(families, key=lambda f: (len(f.named(words)), f.prefixed and len(f.places) > 1, f.kind == output))


def classes_of_file(
    cells: TableCells, name: str, output: str | None, class_map: ClassMap | str | None
) -> tuple[str, ...]:
    """The classes where the file alone says them: columns with a prefix, those that a label names, or the labels.

    Columns that sum to one together are classes together, also those without a label: an answer may be one of them. A
    class map names the classes too; in order, columns are the labels' whatever they are called.
    """
    require(
        "label" in cells.text,
        f"{name} has no column 'label' with the truth (a file of 'holdfast predict' has answers only); add one, or "
        "give the data it belongs to with --data",
    )
    if isinstance(class_map, Mapping):
        return tuple(class_map)
    if class_map is not None:
        return tuple(name_order(set(cells.text["label"]) - {""}))
    words = {*cells.text["label"], *cells.text.get("prediction", ())} - {""}
    family = score_columns(cells.number_names, words, output)
    named, numbers = family.named(words), all(is_number(word) for word in words)
    if family.prefixed and (named or numbers):
        return tuple(family.places)
    for places in (family.places, _within_one(cells, family.places)) if named else ():
        whole = torch.from_numpy(cells.numbers)[:, list(places.values())]
        if set(named) <= places.keys() and decide_kind(whole) == "probabilities":
            return tuple(places)
    if named:
        return tuple(c for c in family.places if c in named or (numbers and c.isdecimal()))
    if numbers and family.places and "prediction" not in cells.text:
        highest = max(map(int, words), default=-1)
        require(
            len(family.places) == highest + 1,
            f"{name}: labels are numbers up to {highest}, and {len(family.places)} columns may be their scores "
            f"({some(family.places)}); write prob_ or logit_ before the names of those that are",
        )
        return tuple(family.places)
    return tuple(name_order(words))


def _within_one(cells: TableCells, places: Mapping[str, int]) -> dict[str, int]:
    """The columns that may be probabilities: ages and sizes stand beside them in many a table."""
    low, high = cells.numbers.min(0), cells.numbers.max(0)
    return {name: i for name, i in places.items() if low[i] >= -TOLERANCE and high[i] <= 1 + TOLERANCE}


def read_scores(
    cells: TableCells,
    classes: tuple[str, ...],
    name: str,
    *,
    output: str | None,
    class_map: ClassMap | str | None,
    notes: list[Note],
) -> tuple[Tensor, str | None]:
    """(logits (N, K), kind of the scores). Without scores the predicted class has 1 and the others 0."""
    said = class_map if isinstance(class_map, Mapping) else {}
    predicted = class_indices(cells, "prediction", classes, name, said) if "prediction" in cells.text else None
    wanted = [word for target in said.values() for word in targets(target)] or list(classes)
    family = score_columns(cells.number_names, map(str, wanted), output)
    by_number = class_map == ORDER or any(isinstance(word, int) for word in wanted)
    if predicted is not None and not (family.places if by_number else family.named(map(str, wanted))):
        _note_others(cells.number_names, [], notes)
        return torch.nn.functional.one_hot(predicted, len(classes)).float(), None
    _require_no_text(cells, family, list(map(str, wanted)), name)
    require(
        bool(family.places),
        f"{name} has neither a column 'prediction' nor one per class, such as {some(classes[:1])!r}",
    )
    match = match_classes(classes, list(family.places), outputs=len(family.places), class_map=class_map)
    require(
        not match.missing,
        f"{name} has no column for {some(match.missing)}; its numeric columns are {some(cells.number_names)}",
    )
    places = list(family.places.values())
    chosen = [places[column] for own in match.columns for column in own]
    _note_others(cells.number_names, chosen, notes)
    scores = torch.from_numpy(cells.numbers)
    kind, scale = _kind(scores[:, chosen], scores[:, places], output or family.kind)
    used = scores[:, chosen] / scale
    _require_valid(cells, used, chosen, kind, name)
    stated = ", as stated" if output or family.kind else f", decided on {len(scores)} rows"
    notes.append(Note("scores", f"scores are {kind}{' in percent' if scale != 1 else ''}{stated}"))
    notes += _doubts(used, scores[:, places] / scale, kind)
    logits = _joined(to_logits(used, kind), match.columns)
    if predicted is not None and (differ := int((logits.argmax(1) != predicted).sum())):
        text = f"in {differ} rows of {name} 'prediction' is not the class with the highest score; scores count"
        notes.append(Note("prediction-differs", text, level="warning"))
    return logits, kind


def _note_others(names: Sequence[str], chosen: Sequence[int], notes: list[Note]) -> None:
    if others := [column for i, column in enumerate(names) if i not in chosen]:
        remedy = "write prob_ or logit_ before the names of those that are classes"
        notes.append(Note("columns-left-out", f"columns of no class left out: {some(others)}", remedy))


def _kind(chosen: Tensor, family: Tensor, stated: str | None) -> tuple[str, float]:
    """(kind, what to divide by). Probabilities of more classes than are looked at sum to one with the others alone."""
    parts = (chosen, family)
    if stated in (None, "probabilities") and any(decide_kind(part / 100) == "probabilities" for part in parts):
        return "probabilities", 100.0
    return stated or next((kind for kind in map(decide_kind, parts) if kind != "logits"), "logits"), 1.0


def _joined(logits: Tensor, outputs: Sequence[Sequence[int]]) -> Tensor:
    """(N, K) from one column an output: several of one class are added up as probabilities."""
    own = torch.split(logits, list(map(len, outputs)), dim=1)
    return torch.stack([part.logsumexp(1) if part.shape[1] > 1 else part[:, 0] for part in own], 1)


def _require_no_text(cells: TableCells, family: Family, wanted: Sequence[str], name: str) -> None:
    """Refuse a column that is called as a class and whose first cell is not a number."""
    found = {simple(cls) for cls in family.places}
    missing = [cls for cls in wanted if simple(cls) not in found]
    text = score_columns(tuple(cells.left_out), missing)
    for cls in text.named(missing):
        column, cell = list(cells.left_out.items())[text.places[cls]]
        raise HoldfastError(
            f"{name}, line {cells.lines[0]}: {cut(printable(column))} is {brief(printable(cell))}; {NUMBERS_ONLY}"
        )


def _require_valid(cells: TableCells, used: Tensor, chosen: Sequence[int], kind: str, name: str) -> None:
    """Name the first cell that is not a number, or not one of its kind."""
    refused = {NUMBERS_ONLY: used.isnan() | (used == float("inf")) | (used == float("-inf")).all(1, keepdim=True)}
    if kind in ("probabilities", "sigmoid"):
        why = "a probability is from 0 to 1, or in percent where a row sums to 100; say --output logits for logits"
        refused[why] = (used < -TOLERANCE) | (used > 1 + TOLERANCE)
    if kind == "log-probabilities":
        refused["the logarithm of a probability is not above 0; say --output logits for logits"] = used > TOLERANCE
    for why, bad in refused.items():
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            value, more = cells.numbers[row, chosen[column]], int(bad.any(1).sum()) - 1
            raise HoldfastError(
                f"{name}, line {cells.lines[row]}: {cut(printable(cells.number_names[chosen[column]]))} is {value:g}"
                + (f" (and {more} more rows are alike)" if more else "")
                + f"; {why}"
            )


def _doubts(used: Tensor, family: Tensor, kind: str) -> list[Note]:
    if kind != "probabilities":
        return kind_warnings(used, kind)
    sums = min((part.sum(1) for part in (used, family)), key=lambda own: float((own - 1).abs().max()))
    if float((sums - 1).abs().max()) <= NEAR_ONE:
        return []
    text = f"probabilities of a row sum to {sums.min():.3g} up to {sums.max():.3g}: they are scaled to one"
    return [Note("sums", text, "if each class has a sigmoid of its own, give --output sigmoid", "warning")]


def class_indices(
    cells: TableCells, column: str, classes: tuple[str, ...], name: str, class_map: ClassMap | None = None
) -> Tensor:
    """(N,) class of each cell of a column of words: by name, spelled as columns may be, or by number where no cell is
    a name. class_map: which other words stand for a class."""
    require(column in cells.text, f"{name} has no column {column!r}; add one, or give the data it belongs to")
    words = cells.text[column]
    empty = next((line for cell, line in zip(words, cells.lines, strict=True) if not cell), None)
    require(empty is None, f"{name}, line {empty}: no {column}; fill the cell or remove the row")
    known = {cls: i for i, cls in enumerate(classes)}
    for cls, target in (class_map or {}).items():
        require_known("class of the data in the class map", cls, known)
        known |= {str(other): known[cls] for other in targets(target)}
    spelled = list(known)
    loose = index_names((simple(cls), i) for cls, i in known.items())
    known = {spelling: places.pop() for spelling, places in loose.items() if len(places) == 1} | known
    words = [word if word in known else simple(word) for word in words]
    if not known.keys() & set(words) and all(is_number(word) and int(word) < len(classes) for word in words):
        return torch.tensor([int(word) for word in words])
    for word, said, line in zip(words, cells.text[column], cells.lines, strict=True):
        if word not in known:
            raise HoldfastError(f"{name}, line {line}: {unknown(column, printable(said), spelled)}")
    return torch.tensor([known[word] for word in words])


def is_number(word: str) -> bool:
    """Whether a cell is a whole number of a length that numbers of rows and classes have."""
    return word.isdecimal() and len(word) <= 18
