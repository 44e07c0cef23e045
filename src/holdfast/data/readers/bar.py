"""BAR, biased action recognition (Nam et al., 2020): ``train/`` and ``test/`` flat, the class before the last "_".

All training images are bias-aligned and all test images bias-conflicting; nothing else is known of the bias. The
splits with 1 % and 5 % conflicting images move test images into training. Their authors' choice was not published
as a rule; ours is drawn by a seed.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.data.listing import Listing, ReaderOptions, images_under, list_files
from holdfast.errors import HoldfastError, require
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

MOVED = {"1pct": 17, "5pct": 94}
"""Test images that join training (BiasAdv D.1)."""
GROUPS = ("aligned", "conflicting")
ACTIONS = frozenset({"climbing", "diving", "fishing", "pole vaulting", "racing", "throwing"})


def class_of(path: str) -> str:
    return Path(path).stem.rpartition("_")[0]


def unmistakable(folder: Path) -> bool:
    """Whether the layout is BAR's and so are the classes; other flat folders have underscores in names too."""
    if not recognised(folder):
        return False
    names = {class_of(path).lower().replace("-", " ") for path in images_under(folder / "train")}
    return bool(names) and names <= ACTIONS


def recognised(folder: Path) -> bool:
    """Whether train/ and test/ hold images named <class>_<number> and no folders."""
    for part in ("train", "test"):
        if not (folder / part).is_dir():
            return False
        entries = [entry for entry in os.scandir(folder / part) if not entry.name.startswith(".")]
        if not entries or any(entry.is_dir() or "_" not in entry.name for entry in entries):
            return False
    return True


@reader(
    "bar",
    about="BAR, biased action recognition.",
    names={
        "bar": "BAR: six actions, each at its usual place in training; all test images are bias-conflicting.",
        "bar-1pct": "BAR with 1 % bias-conflicting training images.",
        "bar-5pct": "BAR with 5 % bias-conflicting training images.",
    },
    recognises=unmistakable,
    order=50,
)
def read_bar(source: str | Path, options: ReaderOptions) -> Listing:
    """A folder, or the set below the root folder (BAR/ or bar/), or the root folder itself."""
    if isinstance(source, Path):
        return scan(source, "bar", options.seed)
    root = options.folder()
    for folder in (root, root / "BAR", root / "bar"):
        if recognised(folder):
            return scan(folder, source, options.seed)
    expected = "expected BAR/train/ and BAR/test/ with images such as climbing_0.jpg"
    remedy = "unpack it there, or name another folder with root or $HOLDFAST_ROOT"
    raise HoldfastError(f"no BAR in {printable(root)}: {expected}; {remedy}")


def scan(folder: Path, name: str, seed: int) -> Listing:
    """name: bar for the published set, or with a key of MOVED. The group says whether an image follows the bias."""
    parts = {part: [(path, class_of(path)) for path in images_under(folder / part)] for part in ("train", "test")}
    odd = [path for own in parts.values() for path, action in own if not action]
    problems = [f"{printable(path)} is not named <class>_<number>; rename or remove it" for path in odd]
    classes = sorted({action for _, action in parts["train"]} - {""})
    extra = sorted({action for _, action in parts["test"]} - {"", *classes})
    problems += [f"class {printable(action)!r} of test/ has no image in train/; remove it there" for action in extra]
    rows = {
        part: [(path, action, group) for path, action in parts[part] if action in classes]
        for part, group in zip(("train", "test"), GROUPS, strict=True)
    }
    notes = []
    if share := name.partition("-")[2]:
        import torch

        from holdfast.rng import derive

        count = MOVED[share]
        there = f"{len(rows['test'])} images, of which {count} should move into training"
        require(len(rows["test"]) > count, f"BAR's test folder has {there}; it is incomplete: unpack it again")
        # by name, so that neither the place of the folder nor the order of a listing matters
        ordered = sorted(rows["test"], key=lambda row: Path(row[0]).name)
        generator = torch.Generator().manual_seed(derive(seed, f"bar/{share}"))
        moved = [ordered[i] for i in sorted(torch.randperm(len(ordered), generator=generator)[:count].tolist())]
        rows = {"train": rows["train"] + moved, "test": [row for row in rows["test"] if row not in moved]}
        text = f"{len(moved)} test images were moved into training (data_seed {seed})"
        notes.append(Note("test-images-moved", text))
    return list_files(name, rows, classes=classes, groups=GROUPS, notes=notes, problems=problems)
