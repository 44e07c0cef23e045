"""Columns that part the samples in groups: several, each by name, wherever the data keeps them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data import Dataset
from holdfast.data.splits import Split
from holdfast.data.tables import NUMBER, cell_text, name_order, read_columns
from holdfast.errors import HoldfastError, require
from holdfast.files import at_home
from holdfast.printable import printable

FILES = (".csv", ".parquet", ".npz")
"""Data that has columns by name in any number."""
OWN = "group"
"""What the data's own groups are called."""
Words = Mapping[str | int, str]
"""The word of a column by the key of a sample; "" is unknown."""
FEW = 10
"""A column of more numbers than these is a quantity to the check slices, and no kind."""


@dataclass(frozen=True)
class Columns:
    """By column: the word of each test sample, and of each training sample where it is known; "" is unknown."""

    test: Mapping[str, Sequence[str]] = field(default_factory=dict)
    train: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def settings(self) -> dict[str, dict[str, Any]]:
        """What to tell the checks that look at columns."""
        if not self.test:
            return {}
        names = {
            name: tuple(name_order({*words, *self.train.get(name, ())} - {""})) for name, words in self.test.items()
        }
        ids = {name: _ids(words, names[name]) for name, words in self.test.items()}
        train = {name: _ids(words, names[name]) for name, words in self.train.items()}
        looks = {name: _quantity(words, names[name]) for name, words in self.test.items()}
        kinds = {name: names[name] for name, values in looks.items() if not values.is_floating_point()}
        return {
            "groups": {"columns": ids, "names": names, "train": train},
            "slices": {"columns": looks, "names": kinds},
        }

    def hash(self) -> str:
        return hashlib.sha256(json.dumps([self.test, self.train], sort_keys=True).encode()).hexdigest()


def columns_of(
    source: str,
    names: Sequence[str],
    data: Dataset,
    seen: Dataset,
    *,
    again: Callable[[str], Dataset],
) -> Columns:
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
    return Columns({n: _in_order(words[n], seen.test) for n in names}, train)


def _of_arrays(path: Path, name: str, data: Dataset) -> Words:
    found: dict[str | int, str] = {}
    with np.load(path, allow_pickle=False) as archive:
        require(
            f"{name}_test" in archive.files,
            f"{printable(path)} has no array {name}_test; it has: {', '.join(map(printable, archive.files))}",
        )
        for split, part in (("test", data.test), ("train", data.train)):
            if part is None or f"{name}_{split}" not in archive.files:
                continue
            try:
                cells = archive[f"{name}_{split}"]
            except ValueError as error:
                raise HoldfastError(
                    f"{name}_{split} of {printable(path)} holds Python objects, never unpickled; save it as text"
                ) from error
            require(
                cells.shape == (len(part),),
                f"{name}_{split} of {printable(path)} has shape {cells.shape}, and there are {len(part)} samples",
            )
            found |= {part.key(i): printable(cell_text(cell)) for i, cell in enumerate(cells.tolist())}
    return found


def _groups(data: Dataset) -> Words:
    """The data's own groups, by sample."""
    return {
        split.key(i): data.group_names[g] if g >= 0 else ""
        for split in (data.train, data.test)
        if split is not None
        for i, g in enumerate(split.groups.tolist())
    }


def _in_order(words: Words, split: Split | None) -> list[str]:
    return [] if split is None else [words.get(split.key(i), "") for i in range(len(split))]


def _ids(words: Sequence[str], names: Sequence[str]) -> Tensor:
    number = {name: i for i, name in enumerate(names)} | {"": -1}
    return torch.tensor([number[word] for word in words], dtype=torch.int64)


def _quantity(words: Sequence[str], names: Sequence[str]) -> Tensor:
    """Numbers as they are where there are many; kinds else, unknown ones left out of every part."""
    if len(names) > FEW and all(NUMBER.fullmatch(name) for name in names):
        return torch.tensor([float(word) if word else float("nan") for word in words], dtype=torch.float64)
    return _ids(words, names)
