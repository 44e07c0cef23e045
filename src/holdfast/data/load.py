"""From a name or a path to a data set that can be trained on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from holdfast.data.layouts.filenames import Rules
from holdfast.data.listing import Listing, open_files
from holdfast.data.options import Options, at_home
from holdfast.data.sources import find
from holdfast.data.splits import Dataset, hold_out
from holdfast.data.validate import label_problems, refuse
from holdfast.errors import require
from holdfast.files import reading
from holdfast.rng import derive
from holdfast.settings.names import CONFLICT, check_conflict

TEST_SHARE = 0.2
"""Share of training held out as test where a set brings no test split."""


def check_source(data: object) -> None:
    """Refuse what is neither a name nor a path."""
    require(
        isinstance(data, (str, os.PathLike)),
        f"data must be a name or a path, got {type(data).__name__}; arrays become a set for holdfast.fit and "
        "holdfast.audit by holdfast.data.Dataset('mine', ('cat', 'dog'), train=ArraySplit(images, labels), test=...)",
    )


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    val: float = 0.0,
    conflict: float | None = None,
    data_seed: int = 0,
    names: str | None = None,
    label: str | None = None,
    group: str | None = None,
    least_classes: int = 2,
    training: bool = True,
) -> Dataset:
    """A built-in set by name, an .npz file, a CSV or Parquet table, or a folder of images.

    root: where built-in sets lie or are downloaded to (default: $HOLDFAST_ROOT, or ./data); for a table, the
    folder its paths are relative to.
    image_size: side in pixels that images are brought to; their own by default.
    val: share of training held out for validation, by class; 0 keeps the set's own validation split, if any.
    conflict: sets made with a shortcut (coloured-digits, corrupted-cifar10-...): share of training samples that
    contradict it, 0.05 by default. Other data is as it is, and a value is refused.
    data_seed: of held-out splits and generated sets.
    names: pattern of file names, such as "{age}_{gender}_{race}_", for folders whose labels are in the names.
    label, group: rules on the parts of such names, such as "age>=40" or "gender"; for CelebA, attributes.
    least_classes: a classifier needs two, a detector one.
    training: whether something will be trained on it. If not, a folder or table may have a test or validation part
    alone, and classes without an image.

    >>> data = load("coloured-digits", val=0.1)
    >>> data.shape, len(data.train), len(data.val), len(data.test)
    ((3, 16, 16), 1078, 120, 599)
    """
    check_source(name_or_path)
    require(isinstance(val, (int, float)) and 0 <= val < 1, f"val must be in [0, 1), got {val!r}")
    check_conflict(name_or_path, conflict)
    options = Options(
        root=None if root is None else at_home(root),
        image_size=image_size,
        conflict=CONFLICT if conflict is None else conflict,
        seed=data_seed,
    )
    with reading():
        found = find(name_or_path, Rules(names=names, label=label, group=group))(options)
        data = open_files(found, image_size, training=training) if isinstance(found, Listing) else found
    refuse(label_problems(data, least=least_classes, training=training), data.name)
    return _with_val(_with_test(data, data_seed), val, data_seed)


def _with_test(data: Dataset, seed: int) -> Dataset:
    if data.test is not None:
        return data
    if len(data.train) == 0 and data.val is not None:
        note = "there is neither a training nor a test split; the validation split is taken for the test split"
        return replace(data, val=None, test=data.val, notes=(*data.notes, note))
    train, test = hold_out(data.train, TEST_SHARE, derive(seed, "hold-out/test"))
    require(
        len(test) > 0,
        f"{data.name}: there is no test split, and {len(data.train)} training samples of {data.num_classes} "
        "classes are too few to hold some out; add a test split or more samples",
    )
    note = (
        f"there is no test split; {len(test)} of {len(data.train)} training samples (20 % of every class, "
        f"data_seed {seed}) were held out as test"
    )
    return replace(data, train=train, test=test, notes=(*data.notes, note))


def _with_val(data: Dataset, share: float, seed: int) -> Dataset:
    if share == 0:
        return data
    train, val = hold_out(data.train, share, derive(seed, "hold-out/val"))
    require(
        len(val) > 0,
        f"{data.name}: val {share} holds out none of {len(data.train)} training samples of "
        f"{data.num_classes} classes; give a larger share",
    )
    notes = data.notes
    if data.val is not None:
        note = f"the set's own validation split ({len(data.val)} samples) is not used: val {share} was asked for"
        notes = (*notes, note)
    return replace(data, train=train, val=val, notes=notes)
