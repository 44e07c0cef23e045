"""Tiny ImageNet in the layout it is published in; its validation part, which has labels, serves as test."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.listing import Listing, ReaderOptions, Row, images_under, list_files, text_lines
from holdfast.parts import reader
from holdfast.printable import printable

FOLDER = "tiny-imagenet-200"
MARK = "wnids.txt"
"""The file that tells this layout from a folder of class folders."""


def recognised(folder: Path) -> bool:
    return (folder / MARK).is_file()


@reader(
    "tiny-imagenet",
    about="Tiny ImageNet: 200 classes, 64x64 pixels.",
    names=("tiny-imagenet",),
    recognises=recognised,
    order=30,
)
def read_tiny_imagenet(source: str | Path, options: ReaderOptions) -> Listing:
    """A folder, or the set below the root folder, which may be the set itself. Classes are the sorted WordNet ids, as
    readers of class folders order them; names from words.txt.
    """
    folder = source if isinstance(source, Path) else options.folder()
    if isinstance(source, str) and not recognised(folder):
        folder /= FOLDER
    place = f"{FOLDER} is in {printable(folder.parent)}, or name another folder with root or $HOLDFAST_ROOT"
    remedy = f"get http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it so that {place}"
    ids = sorted(set(text_lines(folder / MARK, remedy)))
    words = dict(line.partition("\t")[::2] for line in text_lines(folder / "words.txt", remedy))
    names = [printable(words.get(wnid, wnid)) for wnid in ids]
    names = [f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, ids, strict=True)]
    rows: dict[str, list[Row]] = {"train": [], "test": []}
    for wnid in ids:
        own = folder / "train" / wnid
        rows["train"] += ((path, wnid, "") for path in (images_under(own) if own.is_dir() else ()))
    problems, known = [], {*ids}
    for number, line in enumerate(text_lines(folder / "val" / "val_annotations.txt", remedy), start=1):
        name, wnid = [*line.split("\t"), ""][:2]
        if wnid in known:
            rows["test"].append((str(folder / "val" / "images" / name), wnid, ""))
        else:
            where = f"line {number} of val/val_annotations.txt names the class {printable(wnid)!r}"
            problems.append(f"{where}, which {MARK} lacks; unpack the archive again")
    return list_files("tiny-imagenet", rows, classes=dict(zip(ids, names, strict=True)), problems=problems)
