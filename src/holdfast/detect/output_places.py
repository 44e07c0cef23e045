"""What the functions around detectors take as data, and where they may write: no file of anything else is replaced."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import HoldfastError, require
from holdfast.files import writable_folder
from holdfast.models import ModelCard
from holdfast.reports import read_findings

FINDINGS, PAGE = "findings.json", "report.html"


def shape_for(card: ModelCard | None) -> tuple[int, int, int] | None:
    """(C, H, W) that a classifier takes; None where it takes any size."""
    if card is None or card.image_size is None:
        return None
    size = card.image_size
    return (card.in_channels, size, size) if isinstance(size, int) else (card.in_channels, *size)


def claim_folder(out: str | Path, *, check: str) -> Path:
    """A folder for findings of one check and their report, checked before any work; its own old ones may be there."""
    folder = writable_folder(out)
    require(not (folder / "run.yaml").exists(), f"{folder} holds a training run; choose another --out")
    there = [name for name in (FINDINGS, PAGE) if (folder / name).exists()]
    require(
        not there or _only_of(check, folder / FINDINGS),
        f"{folder} holds {' and '.join(there)} of something else; choose another --out",
    )
    return folder


def claim_table(out: str | Path, columns: Sequence[str], *, more: tuple[str, ...] = ()) -> Path:
    """A CSV file to write, checked before any work; an old one with these columns may be there.

    more: what the names of further columns start with, of which there may be any number.
    """
    require(out != "", "out is empty; name a CSV file")
    path = Path(out)
    require(path.is_file() or not path.exists(), f"{path} is not a file; name a CSV file to write with --out")
    writable_folder(path.parent)
    if path.exists():
        with path.open("rb") as file:
            header = next(csv.reader([file.readline().rstrip().decode(errors="replace")]), [])
        require(
            header[: len(columns)] == [*columns] and all(name.startswith(more) for name in header[len(columns) :]),
            f"{path} is there and holds something else than the columns {', '.join(columns)}; choose another --out",
        )
    return path


def _only_of(check: str, path: Path) -> bool:
    try:
        found = read_findings(path).findings
    except HoldfastError:
        return False
    return bool(found) and all(finding.check == check for finding in found)
