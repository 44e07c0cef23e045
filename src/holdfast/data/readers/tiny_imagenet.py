"""Tiny ImageNet in the layout it is published in; its validation part, which has labels, serves as test."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.listing import Files, Listing, ReadOptions, images_under, make_files
from holdfast.data.printable import printable
from holdfast.errors import HoldfastError
from holdfast.parts import reader

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
def read_tiny_imagenet(source: str | Path, options: ReadOptions) -> Listing:
    """A folder, or the set below the root folder, which may be the set itself."""
    if isinstance(source, Path):
        return scan(source)
    root = options.folder()
    return scan(root if recognised(root) else root / FOLDER)


def scan(folder: Path) -> Listing:
    """Classes are the sorted WordNet ids, as readers of class folders order them; names from words.txt."""
    ids = sorted(set(_lines(folder, MARK)))
    words = dict(line.partition("\t")[::2] for line in _lines(folder, "words.txt"))
    names = [printable(words.get(wnid, wnid)) for wnid in ids]
    names = [f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, ids, strict=True)]
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    paths: list[str] = []
    labels: list[int] = []
    for wnid in ids:
        own = folder / "train" / wnid
        found = images_under(own) if own.is_dir() else []
        paths += found
        labels += [label_of[wnid]] * len(found)
    test, problems = _annotated(folder, label_of)
    return Listing(
        name="tiny-imagenet",
        classes=tuple(names),
        splits={"train": make_files(paths, labels), "test": test},
        problems=tuple(problems),
    )


def _annotated(folder: Path, label_of: dict[str, int]) -> tuple[Files, list[str]]:
    paths: list[str] = []
    labels: list[int] = []
    problems = []
    for number, line in enumerate(_lines(folder, "val/val_annotations.txt"), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid in label_of:
            paths.append(str(folder / "val" / "images" / name))
            labels.append(label_of[wnid])
        else:
            problems.append(
                f"line {number} of val/val_annotations.txt names the class {printable(wnid)!r}, which {MARK} "
                "lacks; unpack the archive again"
            )
    return make_files(paths, labels), problems


def _lines(folder: Path, name: str) -> list[str]:
    try:
        return [line for line in (folder / name).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(
            f"cannot read {printable(folder / name)} of tiny-imagenet ({error.__class__.__name__}); get "
            f"http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it so that {FOLDER} lies "
            f"in {printable(folder.parent)}, or name another folder with root or $HOLDFAST_ROOT"
        ) from error
