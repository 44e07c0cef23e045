"""``hf:NAME_OR_PATH``: a data set of the Hugging Face hub, or a folder that its library wrote or reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.listing import ReaderOptions
from holdfast.errors import HoldfastError, explaining, require
from holdfast.files import at_home
from holdfast.parts import reader

if TYPE_CHECKING:
    from holdfast.data.splits import Dataset

SAVED = ("dataset_info.json", "dataset_dict.json")
"""What is in a folder that ``save_to_disk`` wrote."""


def read_unlabelled_rows(name: str | Path, options: ReaderOptions) -> Dataset:
    """The same; rows need no label, and have -1 without one."""
    return _read(str(name), options, labelled=False)


@reader(
    "hugging-face",
    about="A data set of the Hugging Face hub (hf:OWNER/NAME or hf:OWNER/NAME:CONFIG), or a folder that it saved.",
    prefix="hf:",
    takes=("columns", "group"),
    unlabelled=read_unlabelled_rows,
    order=830,
)
def read_hugging_face(name: str | Path, options: ReaderOptions) -> Dataset:
    """Image and label columns are found by their types, or named by columns."""
    return _read(str(name), options, labelled=True)


def _read(name: str, options: ReaderOptions, *, labelled: bool) -> Dataset:
    from holdfast.data.given_data import read_given

    require(bool(name.strip()), "hf: names no data set; give hf:OWNER/NAME, or hf:FOLDER that save_to_disk wrote")
    return read_given(_open(name), options, labelled=labelled, name=f"hf:{name}")


def _open(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise HoldfastError(f"hf:{name} needs datasets; run: pip install 'holdfast[datasets]'") from error
    path = at_home(name)
    remedy = "correct the name or path, or get it where there is a network and save it there with save_to_disk"
    with explaining(f"cannot open hf:{name}", remedy):
        if any(os.path.isfile(path / mark) for mark in SAVED):
            return datasets.load_from_disk(str(path))
        if os.path.isdir(path):
            return datasets.load_dataset(str(path))
        whole, _, config = name.partition(":")
        return datasets.load_dataset(whole, config or None)
