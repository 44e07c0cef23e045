"""Images without labels: to score, to fit a detector on, or to learn from beside a few labels.

Any folder, flat or nested, with or without classes, or whatever ``holdfast.data.load`` takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.given_data import is_given, read_given
from holdfast.data.images import GREY_MODES, Unreadable, peek, resize
from holdfast.data.item_split import ItemSplit
from holdfast.data.listing import ReaderOptions, refuse_outside
from holdfast.data.load_data import common_shape, load, refuse_rules
from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Split
from holdfast.data.usable_data import refuse, separate, skipped_note
from holdfast.errors import require
from holdfast.files import at_home, exists, reading
from holdfast.parts import READERS, data_by_prefix, named_data
from holdfast.printable import printable
from holdfast.rng import derive
from holdfast.types import Note

ImageSource = Any
"""Images by name or path, loaded (a split or a data set), or any object that :func:`holdfast.data.load` takes."""
WITHOUT_LABELS = {"least_classes": 1, "training": False}
"""How data is loaded that nobody trains a classifier on."""
REST = "rest"
"""What ``unlabeled`` is called that are the training images without their labels."""


def open_unlabelled(data: ImageSource, **reading: Any) -> Split:
    """A split of images; they need no labels, and have -1 where there are none. reading: as in :func:`open_images`."""
    return open_images(data, **reading)[0]


def open_images(
    data: ImageSource,
    *,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] | None = None,
    confine: bool = False,
    split: str | None = None,
    usual: str = "train",
    shape: tuple[int, int, int] | None = None,
    image_size: int | None = None,
    terms: Mapping[str, Any] | None = None,
    fitting: bool = False,
    note: Callable[[str], None] | None = None,
    skipped: Callable[[Unreadable], None] | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """(a split of images, the names of their classes); they need no labels, and have -1 where there are none.

    A folder or file that says which of its images are for training, validation and test has these parts, as ``holdfast
    data check`` shows them; one that does not is taken whole, in its order. split: which part, ``usual`` by default;
    data without parts is split as training splits it. Of a set with anomalies, ``train`` is its unlabelled part and
    ``test`` all that is normal in its tests.
    columns: which column is which, of a table, ``hf:`` data or an object that has columns; by default the run's own, of
    ``terms``.
    shape: (C, H, W) that a detector or model takes; images are resized to it, and grey ones are repeated over three
    channels where colour is taken. Never the other way: what takes grey would judge a colour image by what is left of
    it without a word.
    terms: further arguments of :func:`holdfast.data.load` for anything that it has to split, such as data_seed.
    fitting: whether something is learned from these images; a test split is refused then.
    note: called with what the data warns of, and with how many rows are left out where nobody chose a part.
    skipped: called with each file that cannot be decoded, which is left out; without it such a file is an error.
    """
    require(not fitting or split != "test", "split 'test': nothing is fitted on a test split; choose another, or none")
    if columns and not takes_columns(data):
        refuse_rules(data if isinstance(data, (str, Path)) else f"a {type(data).__name__}", {"columns"})
    if not isinstance(data, (str, Path, Dataset)) and not is_given(data):
        words = "is for data that has parts, and a split in memory is taken whole; leave it out"
        require(split is None, f"split {split!r} {words}")
        return data, ()
    if isinstance(data, (str, Path)) and holds_anomalies(data):
        held = read_anomalies(data)
        own = {"train": held.unlabeled, "labeled": held.labeled, "test": held.normal_tests()}
        name = split or usual
        require(name in own, f"a set with anomalies has no split {name!r}; choose train, labeled or test")
        return own[name], held.classes
    if shape is not None:
        image_size = shape[1] if shape[1] == shape[2] else None
    columns = columns or (terms or {}).get("columns")
    options = ReaderOptions.of(root=root, columns=columns, image_size=image_size, confine=confine)
    found = data if isinstance(data, Dataset) else declared(data, options)
    if not isinstance(data, Dataset) and (found is None or (split and not _says_split(found, split, terms, data))):
        how: dict[str, Any] = {"root": options.root, "image_size": image_size, "confine": confine}
        skip = skipped is not None or bool((terms or {}).get("skip_unreadable"))
        found = load(data, **{**how, **WITHOUT_LABELS, **(terms or {}), "columns": columns, "skip_unreadable": skip})
        split = split or usual
    assert found is not None
    parts = {name: own for name, own in found.splits.items() if len(own)}
    shown = printable(data) if isinstance(data, (str, Path)) else found.name
    name = split or (usual if isinstance(data, Dataset) or len(parts) > 1 else next(iter(parts)))
    require(name in parts, f"{shown} has no {name} part; choose with split: {', '.join(parts)}")
    images = parts[name]
    remedy = "nothing is fitted on a test split; give images to learn from"
    require(not fitting or name != "test", f"{shown} has a test part alone, and {remedy}")
    if note is not None and not isinstance(data, Dataset):
        for said in (str(own) for own in found.notes if own.level == "warning"):
            note(said)
    if note is not None and split is None and len(parts) > 1:
        taken = f"{len(images)} of {sum(map(len, parts.values()))} rows"
        note(f"{shown} has parts, and only the {name} part is taken: {taken}; --split chooses another")
    if skipped is not None and not isinstance(data, Dataset):
        bad = [replace(own, position=len(images)) for own in found.unreadable]  # where they were is lost in splitting
        if isinstance(images, FileSplit) and not any(images.size):
            total = len(images)
            images, bad = separate(images, name)
            require(len(images) > 0, f"{shown}: none of {total} files can be read; 'holdfast data check' says why")
            if bad and note is not None:
                note(str(skipped_note(len(bad), total, bad[0])))
        for lost in bad:
            skipped(lost)
    if isinstance(images, FileSplit | ItemSplit) and not any(images.size):
        size, channels, _ = common_shape(images, image_size)
        images = replace(images, size=size, channels=channels)
    elif image_size is not None:
        images = resized(images, (image_size, image_size))
    images = _with_channels(images, None if shape is None else shape[0])
    return images if shape is None else resized(images, shape[1:]), found.classes


def declared(data: ImageSource, options: ReaderOptions) -> Dataset | None:
    """What an object, file or folder says of its parts and classes, with or without labels. None for a set that has a
    name, and for what nothing reads."""
    if is_given(data):
        return read_given(data, options, labelled=False)
    if (prefixed := data_by_prefix(data)) is not None:
        part, rest = prefixed
        with reading():
            made: Dataset = (part.unlabelled or part.made)(rest, options)  # type: ignore[arg-type]
        return made
    path = at_home(data)
    if (isinstance(data, str) and data in named_data()) or not exists(path):
        return None
    reader = next((part for part in READERS.values() if part.reads(path)), None)
    if reader is None:
        return None
    with reading():
        found: Dataset = refuse_outside((reader.unlabelled or reader.made)(path, options), path, options)
    refuse([*found.problems, *([] if any(map(len, found.splits.values())) else ["there is no sample"])], found.name)
    return found


def _says_split(found: Dataset, split: str, terms: Mapping[str, Any] | None, data: ImageSource) -> bool:
    """Whether a part is one that data itself names; if not, it is for :func:`holdfast.data.load` to split."""
    parts = [name for name, own in found.splits.items() if len(own)]
    if any((terms or {}).get(name) for name in ("val", "names", "label")):
        return False  # a run that read its labels, or split, otherwise
    folder = isinstance(data, Path) or (isinstance(data, str) and data_by_prefix(data) is None)
    whole = f"the folder {printable(found.name if not folder else data)} is taken whole; leave it out"
    named = parts != ["train"] or bool(found.classes) or not folder or not at_home(data).is_dir()
    require(named, f"split {split!r} is for data that has parts, and {whole}")
    return split in parts and parts != ["train"]


def takes_columns(data: ImageSource) -> bool:
    """Whether data has columns that can be chosen: an object, ``hf:`` data or a table; or does not exist, which what
    opens it will say."""
    if not isinstance(data, (str, Path)):
        return is_given(data)
    if (prefixed := data_by_prefix(data)) is not None:
        return "columns" in prefixed[0].takes
    if isinstance(data, str) and data in named_data():
        return "columns" in named_data()[data].takes
    path = at_home(data)
    return not exists(path) or any("columns" in part.takes for part in READERS.values() if part.reads(path))


def has_parts(
    data: ImageSource,
    *,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] | None = None,
    confine: bool = False,
    or_classes: bool = False,
) -> bool:
    """Whether data says by itself which part is which. or_classes: or has classes, by which it can be split."""
    if not isinstance(data, (str, Path)) and not is_given(data):
        return isinstance(data, Dataset)
    options = ReaderOptions.of(root=root, columns=columns, confine=confine)
    found = None if isinstance(data, (str, Path)) and holds_anomalies(data) else declared(data, options)
    if found is None or (or_classes and found.classes):
        return True
    return sum(len(own) > 0 for own in found.splits.values()) > 1


def _with_channels(images: Split, channels: int | None) -> Split:
    """Images with so many channels, which grey ones can have without loss; as many as they need without a number."""
    if isinstance(images, ArraySplit) and images.shape[0] == 1 and channels == 3:
        return replace(images, images=images.images.expand(-1, 3, -1, -1))
    if isinstance(images, ItemSplit) and images.channels == 1 and channels == 3:
        return replace(images, channels=3)
    if not isinstance(images, FileSplit):
        return images
    # Every header is read, unless colour is taken anyway: the few that tell a set's size may all be grey.
    paths = () if channels == 3 else images.paths
    coloured = next((path for path in paths if peek(path)[1] not in GREY_MODES), None)
    remedy = "is in colour, and grey images are needed; convert it, or leave it out"
    require(channels is None or coloured is None, f"{printable(str(coloured))} {remedy}")
    return replace(images, channels=3 if channels == 3 or coloured else 1)


def resized(images: Split, size: tuple[int, int]) -> Split:
    """Images at another size, resized as for training."""
    if isinstance(images, FileSplit | ItemSplit):
        return replace(images, size=size)
    if isinstance(images, ArraySplit):
        return replace(images, images=resize(images.images, size))
    return images


def few_labels(
    data: Dataset,
    labels: int | None,
    *,
    unlabeled: str | Split | None = None,
    root: str | None = None,
    confine: bool = False,
    seed: int = 0,
) -> Dataset:
    """A set that trains on so many labels, and has other images as ``unlabeled``.

    labels: None keeps all. unlabeled: images without labels; ``rest`` are the training images that lost theirs. None
    keeps what the set itself brings, and is the rest where it brings none. What the set holds out for validation or
    test is left out of them.
    """
    train, notes = data.train, list(data.notes)
    chosen = torch.arange(len(train)) if labels is None else choose_labels(train.labels, labels, data.num_classes, seed)
    if unlabeled is None and data.unlabeled is not None:
        others: Split | None = data.unlabeled
    elif unlabeled is None or unlabeled == REST:
        lost = torch.ones(len(train), dtype=torch.bool)
        lost[chosen] = False
        none = f"all {len(train)} training images of {data.name} keep their label, so there is no rest"
        remedy = "ask for fewer --labels, or name other images with --unlabeled"
        require(unlabeled is None or bool(lost.any()), f"{none}; {remedy}")
        others = train.subset(lost.nonzero().flatten()) if lost.any() else None
    else:

        def note(text: str) -> None:
            notes.append(Note("unlabeled-parts", text.partition(";")[0]))

        with reading():  # a split is returned as it is
            others = open_unlabelled(unlabeled, root=root, confine=confine, shape=data.shape, fitting=True, note=note)
        held_out = {key for own in (data.val, data.test) if own is not None for key in _origins(own)}
        kept = torch.tensor([key not in held_out for key in _origins(others)], dtype=torch.bool)
        if not bool(kept.all()):
            text = f"{int((~kept).sum())} of {len(others)} unlabelled images are in the validation or test split"
            notes.append(Note("held-out-left-out", f"{text} and are left out: nothing is learned from them"))
            others = others.subset(kept.nonzero().flatten())
        shapes = f"{others.shape} and those of {data.name} {data.shape}; make them equal, for example with --image-size"
        require(others.shape == data.shape, f"unlabelled images have shape (C, H, W) {shapes}")
    if others is not None:
        notes.append(Note("few-labels", f"{len(chosen)} labels, {len(others)} images without"))
    return replace(data, train=train.subset(chosen), unlabeled=others, notes=tuple(notes))


def _origins(images: Split) -> list[str]:
    """Where each image comes from, the same for one file or row however it is reached."""
    if isinstance(images, FileSplit):
        return [os.path.realpath(path) if isinstance(path, Path) else str(path) for path in images.paths]
    return [images.describe(i) for i in range(len(images))]


def choose_labels(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Positions of ``count`` labels, as evenly over the classes as they go, drawn by the seed.

    >>> classes = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> classes[choose_labels(classes, 4, 2, seed=0)]
    tensor([0, 0, 1, 1])
    """
    bounds = f"{classes}..{len(labels)} (at least one per class, at most all)"
    require(classes <= count <= len(labels), f"labels must be in {bounds}, got {count}")
    generator = torch.Generator().manual_seed(derive(seed, "few-labels/choice"))
    order = torch.randperm(len(labels), generator=generator)
    rank = torch.empty(len(labels), dtype=torch.int64)
    for label in range(classes):
        own = order[labels[order] == label]
        rank[own] = torch.arange(len(own))
    # by rank within the class first: every class gets its n-th sample before any gets one more
    first = order[rank[order].argsort(stable=True)][:count]
    return first.sort().values
