"""The layouts of DFA (Lee et al., 2021): biased CIFAR-10 and BFFHQ, whose file names end in ``_<class>_<bias>``.

cifar10c/<share>pct/{align,conflict}/<class>/<id>_<class>_<bias>.png, <share>pct/valid/*/*, cifar10c/test/*/*
bffhq/0.5pct/{align,conflict}/<class>/..., bffhq/{valid,test}/<id>_<class>_<bias>.png
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.data.listing import Listing, ReaderOptions, Row, images_under, list_files
from holdfast.data.readers.torchvision_sets import CIFAR10
from holdfast.errors import HoldfastError
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

NAME = re.compile(r".*_(\d+)_(\d+)$")
SHARE = re.compile(r"\d+(\.\d+)?pct")
BFFHQ_CLASSES = ("young", "old")
BFFHQ_GROUPS = ("woman", "man")
"""What the numbers of BFFHQ stand for, by the set's description: most of its young faces are women, of its old, men."""


def recognised(folder: Path) -> bool:
    """Whether this is the folder of one share: align/ and conflict/ in it."""
    return (folder / "align").is_dir() and (folder / "conflict").is_dir()


def shares(folder: Path) -> list[Path]:
    """The folders of shares in a set's folder."""
    if not folder.is_dir():
        return []
    return sorted(sub for sub in folder.iterdir() if SHARE.fullmatch(sub.name) and recognised(sub))


@reader(
    "dfa",
    about="Biased CIFAR-10 and BFFHQ in the layout of DFA (Lee et al., 2021).",
    names={
        **{
            f"cifar10c-{share}": f"Corrupted CIFAR-10 of DFA's authors, {share.removesuffix('pct')} % bias-conflicting."
            for share in ("0.5pct", "1pct", "2pct", "5pct")
        },
        "bffhq": "BFFHQ: young and old faces, most young ones of women, most old ones of men; 0.5 % bias-conflicting.",
    },
    recognises=lambda folder: recognised(folder) or bool(shares(folder)),
    order=51,
)
def read_dfa(source: str | Path, options: ReaderOptions) -> Listing:
    """A folder of one share or of a set, or the share below the root folder."""
    if isinstance(source, str):
        name, _, share = source.partition("-")
        share = share or "0.5pct"
        return scan(options.published(source, (f"{name}/{share}", share), recognised))
    found = [source] if recognised(source) else shares(source)
    if len(found) != 1:
        there = ", ".join(printable(sub.name) for sub in found) or "none"
        one = printable(source / (found[0].name if found else "1pct"))
        held = f"{printable(source)} holds these shares of conflicting images: {there}"
        raise HoldfastError(f"{held}; name the folder of one, such as {one}")
    return scan(found[0])


def scan(folder: Path) -> Listing:
    """The folder of one share. Classes and groups keep their published numbers."""
    parts = {
        "train": [folder / "align", folder / "conflict"],
        "val": [where for where in (folder / "valid", folder.parent / "valid") if where.is_dir()][:1],
        "test": [where for where in (folder.parent / "test", folder / "test") if where.is_dir()][:1],
    }
    problems: list[str] = []
    rows = {part: _read(folders, problems) for part, folders in parts.items() if folders}
    classes, groups = (1 + max((int(r[k]) for own in rows.values() for r in own), default=-1) for k in (1, 2))
    place = str(folder.resolve()).lower()
    names: Sequence[str] = [str(k) for k in range(classes)]
    group_names: Sequence[str] = [f"bias {k}" for k in range(groups)]
    if classes == 2 and "bffhq" in place:
        names, group_names = BFFHQ_CLASSES, BFFHQ_GROUPS if groups <= 2 else group_names
    elif classes == len(CIFAR10) and "cifar" in place:
        names = CIFAR10
    text = f"no test folder beside {printable(folder)}: a part of training is held out, which has its bias"
    notes = [] if "test" in rows else [Note("no-test-folder", text)]
    shown, biases = ({str(k): name for k, name in enumerate(own)} for own in (names, group_names))
    place = f"{folder.resolve().parent.name}/{folder.name}"
    return list_files(place, rows, classes=shown, groups=biases, notes=notes, problems=problems)


def _read(folders: list[Path], problems: list[str]) -> list[Row]:
    rows = []
    for path in (path for folder in folders for path in images_under(folder)):
        match = NAME.fullmatch(Path(path).stem)
        if match is None:
            layout = "<id>_<class>_<bias>, as images of this layout are"
            problems.append(f"{printable(path)} is not named {layout}; remove it")
        else:
            rows.append((path, str(int(match[1])), str(int(match[2]))))
    return rows
