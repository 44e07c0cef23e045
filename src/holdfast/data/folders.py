"""Folders of images: ``train/<class>/**`` with optional test and val beside it, or ``<class>/**`` alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import torch

from holdfast.data.images import EXTENSIONS
from holdfast.data.listing import Files, Listing
from holdfast.data.paths import Paths
from holdfast.data.printable import printable
from holdfast.errors import HoldfastError

SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Folder name, in any case -> split. Left unread, "Train" and "Test" would pass for two classes."""


def scan(folder: Path) -> Listing:
    """The images of a folder. Classes are the sorted folder names of the training part, or of what there is instead."""
    parts, problems, notes = _parts(folder)
    untrainable = []
    if "train" not in parts:
        names = ", ".join(printable(part.name) for part in parts.values())
        untrainable.append(
            f"{printable(folder)} has {names} but no train folder; add train/<class>/ with the training images"
        )
    classes = [c.name for c in _subfolders(parts["train"])] if "train" in parts else []
    classes = classes or sorted({c.name for part in parts.values() for c in _subfolders(part)})
    splits = {"train": make_files([], [])}
    for split, part in parts.items():
        paths: list[str] = []
        labels: list[int] = []
        for own in _subfolders(part):
            if own.name not in classes:
                untrainable.append(
                    f"class folder {printable(own)} has no counterpart in {printable(parts['train'])}; "
                    "remove it, or add training images of that class"
                )
                classes.append(own.name)
            found = images_under(own)
            paths += found
            labels += [classes.index(own.name)] * len(found)
        if loose := len(images_in(part)):
            notes.append(f"{loose} images directly in {printable(part)} belong to no class and are left out")
        if not paths and split != "train":
            problems.append(f"{printable(part)} holds no images; add some or remove the folder")
        splits[split] = make_files(paths, labels)
    return Listing(
        name=printable(folder.resolve().name),
        classes=tuple(map(printable, classes)),
        splits=splits,
        notes=tuple(notes),
        problems=tuple(problems),
        untrainable=tuple(untrainable),
    )


def images_under(folder: Path) -> list[str]:
    """Paths of all visible image files below a folder, sorted; links are followed, each folder once."""
    found: list[str] = []
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        seen.add(os.path.realpath(where))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(where, name)) not in seen
        )
        found += (os.path.join(where, name) for name in sorted(files) if _is_image(name))
    return found


def images_in(folder: Path) -> list[str]:
    """Paths of the visible image files directly in a folder, sorted."""
    try:
        return sorted(entry.path for entry in os.scandir(folder) if entry.is_file() and _is_image(entry.name))
    except OSError as error:
        _refuse_folder(error)


def make_files(paths: list[str], labels: list[int], groups: list[int] | None = None) -> Files:
    """Files with their labels; groups are unknown where none are given."""
    return Files(
        Paths(paths),
        torch.tensor(labels, dtype=torch.int64),
        torch.full((len(paths),), -1) if groups is None else torch.tensor(groups, dtype=torch.int64),
    )


def _parts(folder: Path) -> tuple[dict[str, Path], list[str], list[str]]:
    """({split: its folder}, problems, notes); without any such folder the whole is the training part."""
    inner = _subfolders(folder)
    parts: dict[str, Path] = {}
    problems = []
    others = []
    for sub in inner:
        split = SPLIT_FOLDERS.get(sub.name.lower())
        if split is None:
            others.append(sub)
        elif split in parts:
            problems.append(f"{printable(parts[split])} and {printable(sub)} are the same split; keep one of them")
        else:
            parts[split] = sub
    if "train" in parts:
        names = ", ".join(printable(sub.name) for sub in others)
        notes = [f"folders beside train/ are left out: {names}"] if others else []
        return {"train": parts["train"], **parts}, problems, notes
    if parts and not others:
        return parts, problems, []
    if not inner:
        raise HoldfastError(
            f"{printable(folder)} has no folders in it; expected <class>/ or train/<class>/ with images, or "
            'labels in the file names: --names "{age}_{gender}_" --label "age>=40"'
        )
    return {"train": folder}, [], []


def _subfolders(folder: Path) -> list[Path]:
    try:
        inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        _refuse_folder(error)
    return sorted((sub for sub in inner if not sub.name.startswith(".")), key=lambda sub: sub.name)


def _refuse_folder(error: OSError) -> NoReturn:
    raise HoldfastError(
        f"cannot read folder {printable(str(error.filename))}: {error.strerror}; make it readable or remove it"
    ) from error


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS
