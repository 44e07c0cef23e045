"""Folders of images: ``train/<class>/**`` with optional test and val beside it, or ``<class>/**`` alone."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.data import listing
from holdfast.data.listing import Listing, ReaderOptions, Rows, images_under, list_files, subfolders
from holdfast.errors import HoldfastError, require
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note


def list_unlabelled(folder: Path, options: ReaderOptions) -> Listing:
    """All images of a folder, wherever they lie in it, by its train, val and test folders where it has some; a class is
    the folder that images lie in, directly below. Images outside of such a folder have none."""
    parts, problems, notes = _parts(folder)
    rows: dict[str, Rows] = {}
    for split, part in parts.items():
        inner = ((path, path.removeprefix(str(part)).strip(os.sep).partition(os.sep)) for path in images_under(part))
        rows[split] = Rows((path, first if deeper else "", "") for path, (first, _, deeper) in inner)
    require(any(rows.values()), f"{printable(folder)} holds no images; give a folder with some")
    classes = dict.fromkeys(name for own in rows.values() for name in sorted({label for _, label, _ in own} - {""}))
    return list_files(folder.resolve().name, rows, classes=[*classes], notes=notes, problems=problems)


@reader(
    "class-folders",
    about="Folders of images: <class>/ or train/<class>/, with val/ and test/ where there are some.",
    recognises=Path.is_dir,
    unlabelled=list_unlabelled,
    order=900,  # after every layout that can be recognised
)
def read_class_folders(folder: Path, options: ReaderOptions) -> Listing:
    """Classes are the sorted folder names of the training part, or of what there is instead."""
    remedy = "open it with holdfast.data.corruption_sets.open_corrupted"
    corrupted = f"{printable(folder)} is a corrupted test set without training images"
    require(not (folder / "labels.npy").is_file(), f"{corrupted}; {remedy}")
    if not subfolders(folder):
        names = 'labels in the file names: --names "{age}_{gender}_" --label "age>=40"'
        expected = f"expected <class>/ or train/<class>/ with images, or {names}"
        raise HoldfastError(f"{printable(folder)} has no folders in it; {expected}")
    parts, problems, notes = _parts(folder)
    untrainable = []
    if "train" not in parts:
        names = ", ".join(printable(part.name) for part in parts.values())
        remedy = "add train/<class>/ with the training images"
        untrainable.append(f"{printable(folder)} has {names} but no train folder; {remedy}")
    classes = [c.name for c in subfolders(parts["train"])] if "train" in parts else []
    classes = classes or sorted({c.name for part in parts.values() for c in subfolders(part)})
    rows: dict[str, Rows] = {}
    for split, part in parts.items():
        rows[split] = Rows()
        for own in subfolders(part):
            if own.name not in classes:
                lost = f"class folder {printable(own)} has no counterpart in {printable(parts['train'])}"
                untrainable.append(f"{lost}; remove it, or add training images of that class")
                classes.append(own.name)
            rows[split].add((path, own.name, "") for path in images_under(own))
        if loose := len(listing.images_in(part)):
            text = f"{loose} images directly in {printable(part)} belong to no class and are left out"
            notes.append(Note("images-without-class", text))
        if not rows[split] and split != "train":
            problems.append(f"{printable(part)} holds no images; add some or remove the folder")
    name = folder.resolve().name
    return list_files(name, rows, classes=classes, notes=notes, problems=problems, untrainable=untrainable)


def _parts(folder: Path) -> tuple[dict[str, Path], list[str], list[Note]]:
    """({split: its folder}, problems, notes); without any such folder the whole is the training part."""
    inner = subfolders(folder)
    parts: dict[str, Path] = {}
    problems = []
    others = []
    for sub in inner:
        split = listing.SPLIT_FOLDERS.get(sub.name.lower())
        if split is None:
            others.append(sub)
        elif split in parts:
            problems.append(f"{printable(parts[split])} and {printable(sub)} are the same split; keep one of them")
        else:
            parts[split] = sub
    if "train" in parts:
        names = ", ".join(printable(sub.name) for sub in others)
        notes = [Note("folders-left-out", f"folders beside train/ are left out: {names}")] if others else []
        return {"train": parts["train"], **parts}, problems, notes
    if parts and not others:
        return parts, problems, []
    return {"train": folder}, [], []
