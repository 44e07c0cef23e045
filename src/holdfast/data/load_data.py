"""From what a user has in hand to a data set: finds the reader, opens the files, holds splits out.

:func:`load` is the one door: every function and command that takes data comes through it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.data.given_data import read_given
from holdfast.data.images import GREY_MODES
from holdfast.data.item_split import ItemSplit
from holdfast.data.listing import ReaderOptions, refuse_outside
from holdfast.data.splits import Dataset, FileSplit, hold_out
from holdfast.data.usable_data import consistent, drop_unreadable, find_problems, refuse
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import at_home, exists, reading
from holdfast.parts import READERS, data_by_prefix, data_name, data_syntax, named_data
from holdfast.printable import printable
from holdfast.rng import derive
from holdfast.settings.training import CONFLICT, check_conflict
from holdfast.types import Note

TEST_SHARE = 0.2
"""Share of training held out as test where a set brings no test split."""
SAMPLED = 256
"""Headers read to learn the size and channels of a set."""
FALLBACK_SIZE = 224
"""Side of the images of a set whose own sizes differ: what most pretrained networks take."""
SIZES_DIFFER = "images-differ-in-size"
"""Code of the note that says what they are resized to."""
TEST_HELD_OUT = "test-held-out"
"""Code of the note on a test split that the set did not bring."""


def load(
    source: Any,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    val: float = 0.0,
    conflict: float | None = None,
    data_seed: int = 0,
    names: str | None = None,
    label: str | None = None,
    group: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    least_classes: int = 2,
    training: bool = True,
    confine: bool = False,
    skip_unreadable: bool = False,
) -> Dataset:
    """Load a data set from a name, a path, arrays, or a data set of another library.

    source: a name (``holdfast list data``), ``hf:NAME_OR_PATH``, an .npz file, a CSV or Parquet table, or a folder of
    images; from Python also (images, labels) arrays, a map-style torch ``Dataset``, a ``DataLoader`` (its data set and
    transforms are used), a Hugging Face ``Dataset`` or ``DatasetDict``, or {"train": ..., "test": ...} of these. Their
    images are Pillow images, uint8, or float in [0, 1], and are asked for when they are needed. A set that does not say
    which split it is (as Hugging Face's and torchvision's do) is split as a folder without a test part is.
    root: where sets with a name are or are downloaded to (default: $HOLDFAST_ROOT, or ./data); for a table, the
    folder its paths are relative to.
    image_size: side in pixels that the short side of images is resized to, and the centre cut out; their own size by
    default.
    val: share of training held out for validation, by class; 0 keeps the set's own validation split, if any.
    conflict: sets made with a shortcut (coloured-digits, corrupted-cifar10-...): share of bias-conflicting training
    samples, 0.05 by default. For other data a value is refused.
    data_seed: of held-out splits and generated sets.
    names: pattern of file names, such as "{age}_{gender}_{race}_", for folders whose labels are in the names.
    label, group: rules on the parts of such names, such as "age>=40" or "gender"; for CelebA, attributes. group is for
    a table and for Hugging Face data the column of groups, for a torch data set an attribute.
    columns: which column, or key of an item, is which: {"image": "file", "label": "class", "group": "site"}, or
    "image=file,label=class". Of a table, ``split`` too.
    least_classes: a classifier needs two, a detector one.
    training: whether something will be trained on it. If not, a folder or table may have a test or validation part
    alone, and classes without an image.
    confine: whether files outside the folder of the data are refused: paths with ../ or from the root, and links.
    skip_unreadable: whether files that cannot be decoded are left out, counted in a warning and listed in the set's
    ``unreadable``; every file is decoded once for that. Otherwise the first one that is met is an error.

    >>> data = load("coloured-digits", val=0.1)
    >>> data.shape, len(data.train), len(data.val), len(data.test)
    ((3, 16, 16), 1078, 120, 599)
    """
    source = Path(source) if isinstance(source, os.PathLike) else source
    require(isinstance(val, (int, float)) and 0 <= val < 1, f"val must be in [0, 1), got {val!r}")
    check_conflict(source, conflict)
    share = CONFLICT if conflict is None else conflict
    rules: dict[str, Any] = {"names": names, "label": label, "group": group, "columns": columns}
    made: dict[str, Any] = {"image_size": image_size, "conflict": share, "seed": data_seed}
    options = ReaderOptions.of(root=root, confine=confine, **rules, **made)
    with reading():
        data = find_reader(source, options)(options)
        if skip_unreadable:
            data = drop_unreadable(data)
        refuse(find_problems(data, least=least_classes, training=training), data.name)
        data = with_size(data, image_size)
    return _with_val(_with_test(data, data_seed), val, data_seed)


def find_reader(source: Any, options: ReaderOptions) -> Callable[[ReaderOptions], Dataset]:
    """What reads an object, a named set, a file or a folder, and refuses files outside of it where that is wanted.

    It lists what is there; nothing is resized, split or otherwise refused yet.
    """
    read = _reader_of(source, options)
    if not isinstance(source, str | Path):
        return read
    return lambda options: refuse_outside(read(options), source, options)


def _reader_of(source: Any, options: ReaderOptions) -> Callable[[ReaderOptions], Dataset]:
    """A name wins over a folder of that name (write ./name)."""
    if not isinstance(source, str | Path):
        kind = f"a {type(source).__name__}"
        refuse_rules(kind, options.rules - {"columns", "group"})
        require(not options.confine, f"confine is for data that is given by its path, and this is {kind}; leave it out")
        return partial(read_given, source)
    named = named_data()
    if (prefixed := data_by_prefix(source)) is not None:
        part, rest = prefixed
        refuse_rules(str(source), options.rules - {*part.takes})
        return partial(part.made, rest)
    if isinstance(source, str) and not exists(at_home(source)):
        source = data_name(source)
    if isinstance(source, str) and source in named:
        refuse_rules(source, options.rules - {*named[source].takes})
        return partial(named[source].made, source)
    path = at_home(source)
    require(source != "", f"no data was given; give {data_syntax()}")
    if exists(path):
        found = [part for part in READERS.values() if part.reads(path)]
        for part in found:
            if options.rules <= {*part.takes}:
                return partial(part.made, path)
            # a reader that takes some of the rules knows better than a more general one that takes all
            refuse_rules(source, options.rules - {*part.takes} if options.rules & {*part.takes} else set())
        refuse_rules(source, options.rules if found else set())
        raise HoldfastError(f"cannot tell what {printable(path)} holds; give {data_syntax()}")
    known = any(path.suffix.lower() in part.suffixes for part in READERS.values())
    if isinstance(source, Path) or known or os.sep in source:
        raise HoldfastError(f"no such file or folder: {printable(path)}; correct the path of the data")
    raise HoldfastError(f"{unknown('data set', source, named)} (nor is there a file or folder of that name)")


def refuse_rules(source: str | Path, unused: set[str]) -> None:
    """Refuse settings of reading that what reads the source does not take."""
    use = "names, label and group are for folders of images, label and group for celeba, group and columns for tables"
    use += " and hf: data; leave them out"
    require(not unused, f"{', '.join(sorted(unused))} cannot be used for {printable(str(source))}; {use}")


def with_size(data: Dataset, image_size: int | None) -> Dataset:
    """Files whose size is not chosen yet get that of the first split. Reads a few headers, no pixels."""
    splits = data.splits.items()
    files = {name: s for name, s in splits if isinstance(s, FileSplit | ItemSplit) and not any(s.size)}
    if not files:
        return data
    size, channels, notes = common_shape(next(s for s in files.values() if len(s)), image_size)
    made: Mapping[str, Any] = {name: replace(split, size=size, channels=channels) for name, split in files.items()}
    return consistent(replace(data, **made, notes=(*data.notes, *notes)))


def common_shape(images: FileSplit | ItemSplit, image_size: int | None) -> tuple[tuple[int, int], int, list[Note]]:
    """((H, W), C, notes) to bring all images to, judged by evenly spaced samples."""
    count = min(SAMPLED, len(images))
    heads = [images.head(i * len(images) // count) for i in range(count)]
    channels = 1 if all(mode in GREY_MODES for _, mode in heads) else 3
    sizes = Counter(size for size, _ in heads)
    if image_size is not None:
        return (image_size, image_size), channels, []
    if len(sizes) == 1:
        return next(iter(sizes)), channels, []
    (low_h, low_w), (high_h, high_w) = min(sizes), max(sizes)
    sampled = f"from {low_w}x{low_h} to {high_w}x{high_h} among {count} sampled"
    fitted = f"the short side is resized to {FALLBACK_SIZE} and the centre cut out"
    text = f"images differ in size ({sampled}); {fitted}"
    return (FALLBACK_SIZE, FALLBACK_SIZE), channels, [Note(SIZES_DIFFER, text, "choose another size with image_size")]


def _with_test(data: Dataset, seed: int) -> Dataset:
    if data.test is not None:
        return data
    if len(data.train) == 0 and data.val is not None:
        text = "there is neither a training nor a test split; the validation split is taken for the test split"
        return replace(data, val=None, test=data.val, notes=(*data.notes, Note("val-is-test", text)))
    train, test = hold_out(data.train, TEST_SHARE, derive(seed, "hold-out/test"))
    few = f"{len(data.train)} training samples of {data.num_classes} classes are too few to hold some out"
    require(len(test) > 0, f"{data.name}: there is no test split, and {few}; add a test split or more samples")
    held = f"{len(test)} of {len(data.train)} training samples (20 % of every class, data_seed {seed})"
    text = f"there is no test split; {held} were held out as test"
    return replace(data, train=train, test=test, notes=(*data.notes, Note(TEST_HELD_OUT, text)))


def _with_val(data: Dataset, share: float, seed: int) -> Dataset:
    if share == 0:
        return data
    train, val = hold_out(data.train, share, derive(seed, "hold-out/val"))
    samples = f"{len(data.train)} training samples of {data.num_classes} classes"
    require(len(val) > 0, f"{data.name}: val {share} holds out none of {samples}; give a larger share")
    notes = data.notes
    if data.val is not None:
        text = f"the set's own validation split ({len(data.val)} samples) is not used: val {share} was given"
        notes = (*notes, Note("own-val-unused", text))
    return replace(data, train=train, val=val, notes=notes)
