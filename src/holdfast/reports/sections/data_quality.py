"""Data quality: samples by class and group, duplicates, leakage between splits, and labels that are probably wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Block, Cell, Column, Details, Gallery, Picture, Section, Table, png_picture
from holdfast.reports.findings_file import measure_of
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.text import finite, quantity, records
from holdfast.types import Finding

MOST_COLUMNS = 40
MOST_ROWS = 400
"""Rows and columns of a table of counts; findings.json has all."""


@section("data")
def data_quality(runs: Sequence[RunFiles]) -> Section | None:
    blocks: list[Block] = []
    for run in runs:
        found = [f for f in run.findings if f.check == "data"]
        blocks += _blocks(found, run) if found else ()
    if not blocks:
        return None
    lead = (
        "Near duplicates are found by small copies of the images, whatever their brightness, contrast and size. A "
        "held-out image with a duplicate in training makes the accuracy too high. A label is probably wrong where "
        "models that were not trained on the image are confident of another class, more than their own errors explain "
        "(confident learning); hard images are among them, so check before you change a label."
    )
    return Section("data", "Data quality", lead, tuple(blocks))


def quality_summary(findings: Sequence[Finding]) -> str:
    """What was found, in one sentence."""
    total: dict[str, float] = {}
    for f in findings:
        if f.check == "data" and f.name != "samples" and (value := finite(f.value)) is not None:
            total[f.name] = total.get(f.name, 0) + value
    words = {
        "leaked_images": ("held-out image has", "held-out images have", "a duplicate in an earlier split"),
        "identical_images": ("image is", "images are", "identical to another"),
        "near_duplicates": ("image is", "images are", "nearly the same as another"),
        "label_errors": ("label is", "labels are", "probably wrong"),
        "unreadable_files": ("file", "files", "cannot be read"),
    }
    said = [
        f"{total[name]:,.0f} {one if total[name] == 1 else many} {what}"
        for name, (one, many, what) in words.items()
        if total.get(name)
    ]
    return "; ".join(said) if said else "No duplicates, leaks or unreadable files were found"


def _blocks(found: Sequence[Finding], run: RunFiles) -> Iterator[Block]:
    yield _numbers(found, run)
    yield _classes(found)
    yield from _cells(found)
    for f in found:
        split = str(f.where.get("split", ""))
        if f.name == "leaked_images":
            yield from _pairs(f"Leakage: {split} images with a duplicate in an earlier split", f)
        elif f.name == "label_errors":
            shown = [_suspect(row) for row in records(f.evidence.get("rows"))]
            yield from Gallery.readable(f"Labels that are probably wrong ({split}), the least plausible first", shown)
        elif f.name in ("identical_images", "near_duplicates"):
            words = "Identical images" if f.name == "identical_images" else "Near duplicates"
            yield from _pairs(f"{words} within a split", f)
        elif f.name == "unreadable_files" and (files := records(f.evidence.get("files"))):
            rows = tuple((Cell(str(row.get("path"))), Cell(str(row.get("reason")))) for row in files)
            table = Table("Files that cannot be read", Column.texts("file", "reason"), rows)
            yield Details(f"Files that cannot be read ({finite(f.value) or 0:,.0f})", (table,))


def _numbers(found: Sequence[Finding], run: RunFiles) -> Table:
    rows = []
    for f in found:
        value = finite(f.value)
        if f.name == "samples" or value is None:
            continue
        measure = measure_of(f.check, f.name, run.measures)
        split = str(f.where.get("split", "all"))
        rows.append((Cell(measure.title), Cell(split), Cell(quantity(measure, value), value), Cell(f"{f.n:,}", f.n)))
    return Table("What was found", Column.texts("measure", "split") + Column.numbers("value", "of"), tuple(rows))


def _classes(found: Sequence[Finding]) -> Table:
    by_class: dict[str, dict[str, int]] = {}
    for f in found:
        if f.name == "samples" and "group" not in f.where:
            by_class.setdefault(str(f.where.get("class")), {})[str(f.where.get("split"))] = f.n
    splits = list(dict.fromkeys(split for own in by_class.values() for split in own))
    return _counts("Samples by class and split", by_class, splits)


def _cells(found: Sequence[Finding]) -> Iterator[Table]:
    by_split: dict[str, dict[str, dict[str, int]]] = {}
    for f in found:
        if f.name == "samples" and "group" in f.where:
            cells = by_split.setdefault(str(f.where.get("split")), {})
            cells.setdefault(str(f.where.get("class")), {})[str(f.where["group"])] = f.n
    for split, rows in by_split.items():
        groups = list(dict.fromkeys(group for own in rows.values() for group in own))
        yield _counts(f"Samples by class and group ({split})", rows, groups)


def _counts(caption: str, rows: Mapping[str, Mapping[str, int]], columns: Sequence[str]) -> Table:
    shown = columns[:MOST_COLUMNS]
    body = tuple(
        (Cell(name), *(Cell(f"{own.get(column, 0):,}", own.get(column, 0)) for column in shown))
        for name, own in list(rows.items())[:MOST_ROWS]
    )
    cut = len(rows) > MOST_ROWS or len(columns) > MOST_COLUMNS
    note = f"{len(rows)} classes, {len(columns)} columns; the rest is in findings.json." if cut else ""
    return Table(caption, Column.texts("class") + Column.numbers(*shown), body, note)


def _pairs(title: str, finding: Finding) -> Iterator[Gallery]:
    pictures: list[Picture] = []
    for group in records(finding.evidence.get("groups")):
        rows = records(group.get("rows"))
        labels = {str(row.get("label")) for row in rows}
        made = [_duplicate(row, wrong=len(labels) > 1) for row in rows]
        if len(made) == 2 and all(made):
            pictures += [picture for picture in made if picture is not None]
    if pictures:
        note = "Two of each group side by side. Bold labels mark groups whose labels differ."
        yield Gallery(title, tuple(pictures), note, together=2)


def _duplicate(row: Mapping[str, Any], *, wrong: bool) -> Picture | None:
    label, split, source = (str(row.get(key) or "") for key in ("label", "split", "source"))
    alt = f"{label or 'no label'}, {split}, {source}"
    return png_picture(row.get("png"), alt, label or "no label", f"{split}, {_short(source)}", wrong=wrong)


def _suspect(row: Mapping[str, Any]) -> Picture | None:
    label, other, source = (str(row.get(key) or "") for key in ("label", "suggested", "source"))
    own, rather = (finite(row.get(key)) or 0 for key in ("probability", "suggested_probability"))
    detail = f"rather {other} ({100 * rather:.0f} % against {100 * own:.0f} %), {_short(source)}"
    return png_picture(row.get("png"), f"labelled {label}, rather {other}; {source}", label, detail, wrong=True)


def _short(source: str) -> str:
    """The end of a path: its last folder and name."""
    return "/".join(source.split("/")[-2:])
