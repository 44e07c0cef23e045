"""How the data of an audit is loaded, and the columns that split its samples into groups.

A run's own data is loaded as the run loaded it, so that a model meets no image it was trained on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.audits.subject import GroupColumn, check_measuring, word_ids
from holdfast.data import Dataset, load
from holdfast.data.array_files import open_npz, refusing
from holdfast.data.given_data import is_given
from holdfast.data.load_data import TEST_HELD_OUT
from holdfast.data.splits import ArraySplit, Split
from holdfast.data.tables import NUMBER, cell_text, name_order, read_columns
from holdfast.data.unlabelled_images import few_labels
from holdfast.data.usable_data import admitted
from holdfast.errors import HoldfastError, cut, require
from holdfast.files import at_home
from holdfast.printable import printable
from holdfast.settings.audit_settings import AuditSettings
from holdfast.train.run_result import DataTerms, Run, is_own_data, terms_of_run

Tell = Callable[[str], None]
"""Says something to the user while the audit runs."""


def check_request(request: AuditSettings) -> None:
    """Refuse what nothing can be measured with, and what would be overlooked."""
    size, precision = request.batch_size, request.precision  # where they are left open, what is chosen is right
    size, precision = 1 if size is None else size, "fp32" if precision == "auto" else precision
    check_measuring(size, request.workers, request.seed, precision)
    for name in ("data_seed", "names", "label", "columns", "image_size", "root", "confine", "skip_unreadable"):
        value = getattr(request, name)
        require(
            not isinstance(request.data, Dataset) or value in (None, 0),
            f"{name} {value}: not for a set in memory, which is taken as given; give it to holdfast.data.load",
        )


Sets = Callable[[int | None, DataTerms], Dataset]
"""The data at an image size, loaded once for all models that share it."""


def opener(request: AuditSettings, models: Sequence[Any] = ()) -> Sets:
    """models: as given, which tell whether data may be what one of them was trained on."""
    if isinstance(given := request.data, Dataset):
        return lambda size, terms: admitted(given, training=False)
    same: dict[str, Any] = {"root": request.root, "confine": request.confine, "training": False}
    alone = is_given(given) and not any(isinstance(one, Run | str) for one in models)

    def opened(size: int | None, terms: DataTerms) -> Dataset:
        data = load(given, image_size=size, **same, **terms.reading())
        if terms.labels is not None:  # else curvature would be of images that the run was not trained on
            data = few_labels(data, terms.labels, seed=terms.data_seed)
        remedy = "to measure all of it, give {'test': data}"
        level: Any = "warning" if alone else "note"  # a test loader is not meant to be cut
        notes = (replace(n, remedy=remedy, level=level) if n.code == TEST_HELD_OUT else n for n in data.notes)
        return replace(data, notes=tuple(notes)) if is_given(given) else data

    return cache(opened)


def stated_terms(request: AuditSettings) -> DataTerms:
    """What the command says, for models that were not trained here."""
    said = {name: getattr(request, name) for name in ("names", "label", "columns", "skip_unreadable")}
    return DataTerms(request.data_seed or 0, **said)


def terms_of_all(specs: Sequence[Any], request: AuditSettings, open_set: Sets, tell: Tell) -> list[DataTerms]:
    """The terms of every model: a run's are its own, those of other models the first run's, or what the command says.

    Where the test images would not be the same, one model would be measured on what another, or it itself, was trained
    on: that is refused.
    """
    runs = {spec: own for spec in specs if isinstance(spec, Hashable) and (own := _of_run(spec, request)) is not None}
    if not runs:
        return [stated_terms(request)] * len(specs)
    first, usual = next(iter(runs.items()))
    first = first if isinstance(first, str) else "this run"
    if differs := usual.words(stated_terms(request)):
        tell(f"data: loaded as {first} was trained: {differs}")
    told = {} if request.data_seed is None else {"--data-seed": replace(usual, data_seed=request.data_seed)}
    named = {spec if isinstance(spec, str) else f"run {i}": own for i, (spec, own) in enumerate(runs.items(), start=1)}
    _require_one_test({**named, **told}, request, open_set)
    return [runs.get(spec, usual) if isinstance(spec, str | Run) else usual for spec in specs]


def _of_run(spec: Any, request: AuditSettings) -> DataTerms | None:
    if isinstance(request.data, Dataset) or not isinstance(spec, str | Run):
        return None
    own = terms_of_run(spec, request.data)
    if own is None:
        return None
    same = is_own_data(spec, request.data)
    if request.data_seed is not None and not same:
        own = replace(own, data_seed=request.data_seed)
    said = {
        name: getattr(request, name) or getattr(own, name) for name in ("names", "label", "columns", "skip_unreadable")
    }
    return replace(own, **said)


def _require_one_test(terms: Mapping[str, DataTerms], request: AuditSettings, open_set: Sets) -> None:
    (first, usual), *others = terms.items()
    for other, own in others:
        if own == usual or _same_images(*(open_set(request.image_size, terms).test for terms in (usual, own))):
            continue
        if other == "--data-seed":
            raise HoldfastError(
                f"{first} was trained with {usual.words(own)}: with --data-seed {own.data_seed} it would be measured "
                "on images it was trained on; leave --data-seed out"
            )
        raise HoldfastError(
            f"{first} was trained with {usual.words(own)} and {other} with {own.words(usual)}: their test images "
            "differ, and one would be measured on what the other was trained on; audit them one by one or, "
            "on data that neither was trained on, give --data-seed"
        )


def _same_images(first: Split | None, second: Split | None) -> bool:
    if first is None or second is None or not torch.equal(first.labels, second.labels):
        return False
    if isinstance(first, ArraySplit) and isinstance(second, ArraySplit):
        return torch.equal(first.images, second.images)
    return all(first.describe(i) == second.describe(i) for i in range(len(first)))


FILES = (".csv", ".parquet", ".npz")
"""Data that has columns by name in any number."""
OWN = "group"
Words = Mapping[str | int, str]
"""The word of a column by the key of a sample; "" is unknown."""
FEW = 10
"""A column of more numbers than these is a quantity to the check slices, and no kind."""


@dataclass(frozen=True)
class ColumnWords:
    """By column: the word of each test sample, and of each training sample where it is known; "" is unknown."""

    test: Mapping[str, Sequence[str]] = field(default_factory=dict)
    train: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def group_columns(self) -> dict[str, GroupColumn]:
        made = {}
        for name, words in self.test.items():
            names = tuple(name_order({*words, *self.train.get(name, ())} - {""}))
            train = word_ids(self.train[name], names) if name in self.train else None
            made[name] = GroupColumn(word_ids(words, names), names, train, _numbers(words, names))
        return made


def columns_of(
    source: str, names: Sequence[str], data: Dataset, seen: Dataset, *, again: Callable[[str], Dataset]
) -> ColumnWords:
    """The named columns of a data set, sample by sample of ``seen``, which is all of ``data`` or a part of it.

    source: what --data says. A table has columns; an .npz file arrays such as ``site_test`` and ``site_train``; other
    sets have those that they can be loaded with, by ``again``. ``group`` is what the set itself calls its groups.
    """
    path = at_home(source)
    words: dict[str, Words] = {}
    table = os.path.isfile(path) and path.suffix.lower() in (".csv", ".parquet")
    read = read_columns(path, [n for n in names if n != OWN or not data.group_names]) if table else {}
    for name in names:
        if name == OWN and data.group_names:
            words[name] = _groups(data)
        elif table:
            words[name] = dict(enumerate(read[name]))
        elif os.path.isfile(path) and path.suffix.lower() == ".npz":
            words[name] = _of_arrays(path, name, data)
        else:
            words[name] = _groups(again(name))
    train = {n: own for n in names if any(own := _in_order(words[n], seen.train))}
    return ColumnWords({n: _in_order(words[n], seen.test) for n in names}, train)


def _of_arrays(path: Path, name: str, data: Dataset) -> Words:
    found: dict[str | int, str] = {}
    with open_npz(path) as file:
        require(
            f"{name}_test" in file.names,
            f"{printable(path)} has no array {name}_test; it has: {cut(', '.join(map(printable, file.names)))}",
        )
        for split, part in (("test", data.test), ("train", data.train)):
            if part is None or f"{name}_{split}" not in file.names:
                continue
            cells = file.read(f"{name}_{split}")
            require(
                cells.shape == (len(part),),
                f"{name}_{split} of {printable(path)} has shape {cells.shape}, and there are {len(part)} samples",
            )
            with refusing(f"{name}_{split} of {printable(path)}"):  # text may hold what is not a character
                found |= {part.key(i): printable(cell_text(cell)) for i, cell in enumerate(cells.tolist())}
    return found


def _groups(data: Dataset) -> Words:
    return {
        split.key(i): data.group_names[g] if g >= 0 else ""
        for split in (data.train, data.test)
        if split is not None
        for i, g in enumerate(split.groups.tolist())
    }


def _in_order(words: Words, split: Split | None) -> list[str]:
    return [] if split is None else [words.get(split.key(i), "") for i in range(len(split))]


def _numbers(words: Sequence[str], names: Sequence[str]) -> Tensor | None:
    """The numbers themselves where there are many; None for a column of kinds."""
    if len(names) > FEW and all(NUMBER.fullmatch(name) for name in names):
        return torch.tensor([float(word) if word else float("nan") for word in words], dtype=torch.float64)
    return None
