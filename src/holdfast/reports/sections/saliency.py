"""Saliency: the same pictures for every model, with what each looks at; and how concentrated its maps are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from holdfast.reports.arms import Arm
from holdfast.reports.blocks import Gallery, Picture, Section, Side, png_picture, present
from holdfast.reports.report_tables import all_numbers, measure_table
from holdfast.reports.run_files import group_attribute
from holdfast.reports.sections import of_check
from holdfast.reports.text import finite, percent, records

MOST_MODELS = 8
CHECK = "saliency"


@of_check(CHECK)
def saliency(groups: Sequence[Arm]) -> Section:
    lead = (
        "Grad-CAM: the brighter a place, the more it speaks for the class that the model predicts. A map that "
        "lies on the background or on a mark instead of the object may show a shortcut. The numbers say how much "
        "of the picture holds half of a map: 50 % if the map is the same everywhere."
    )
    columns = [column for arm in groups[:MOST_MODELS] for column in _columns(arm, several=len(groups) > 1)]
    galleries = tuple(_grid(columns, group_attribute(groups[0].runs[0]) or "group"))
    table = measure_table(groups, CHECK, "Maps in numbers")
    blocks = present(table, Side(galleries) if galleries else None, all_numbers(groups, CHECK))
    return Section(CHECK, "Saliency", lead, blocks)


Column_ = tuple[str, Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]]]
"""A model's name, and for each position in the test set the picture and the model's look at it."""


def _columns(arm: Arm, *, several: bool) -> Iterator[Column_]:
    found = (f for run in arm.runs for f in run.findings if (f.check, f.name) == (CHECK, "maps"))
    for finding in islice(found, 1):
        models = finding.evidence.get("models")
        for i, name in enumerate(models if isinstance(models, list) and models else [""]):
            pairs = {
                row["position"]: (row, look)
                for row in records(finding.evidence.get("maps"))
                if isinstance(row.get("position"), int) and (look := _look(row.get("looks"), i)) is not None
            }
            label = str(name) or (arm.label if several else "map")
            yield (f"{arm.label}: {name}" if several and name else label), pairs


def _look(values: object, number: int) -> Mapping[str, Any] | None:
    found = values[number] if isinstance(values, (list, tuple)) and len(values) > number else None
    return found if isinstance(found, Mapping) else None


def _grid(columns: Sequence[Column_], word: str) -> Iterator[Gallery]:
    """One gallery per picture: the picture itself, then one map per model. What all models were shown comes first."""
    rows = {position: row for _, pairs in reversed(columns) for position, (row, _) in pairs.items()}
    order = dict.fromkeys(position for _, pairs in columns for position in pairs)
    for position in sorted(order, key=lambda i: not rows[i].get("shared")):
        row = rows[position]
        label = str(row.get("label", "?"))
        group = f", {word} {row['group']}" if row.get("group") is not None else ""
        where = str(row.get("source") or f"sample {position}")
        found = [png_picture(row.get("png"), f"{label}{group}; {where}", "image")]
        found += [look_picture(name, label, pairs[position][1]) for name, pairs in columns if position in pairs]
        pictures = tuple(p for p in found if p is not None)
        if len(pictures) > 1:
            yield Gallery(f"{label}{group}", pictures)


def look_picture(name: str, label: str, look: Mapping[str, Any]) -> Picture | None:
    said, sure = str(look.get("prediction", "?")), finite(look.get("confidence"))
    detail = said if sure is None else f"{said}, {percent(sure)} %"
    alt = f"where {name} looks, which takes this {label} for {detail}"
    return png_picture(look.get("overlay"), alt, name, detail, wrong=said != label)
