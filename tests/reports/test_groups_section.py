"""The chapters on groups and on the clean test set: their numbers, maps and curves, and what is not there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Block, Chart, Details, Section, Side, Table
from holdfast.reports.sections.accuracy import accuracy as clean
from holdfast.reports.sections.groups import groups
from holdfast.reports.svg.bars import Heat, heat_map
from holdfast.types import Finding

TABLE = {
    "column": "group",
    "classes": ["cat", "<b>dog</b>"],
    "groups": ["snow", "grass", "sea"],
    "hits": [[9, 1, 0], [2, 8, 0]],
    "n": [[10, 4, 0], [8, 8, 0]],
}


def share(name: str, value: float | None, n: int = 30, evidence: dict[str, Any] | None = None, **where: str) -> Finding:
    low, high = (None, None) if value is None else (value - 0.1, value + 0.1)
    return Finding("groups", name, value, n, low, high, where, evidence=evidence or {})


def found(shift: float = 0.0, table: Any = TABLE, **column: str) -> tuple[Finding, ...]:
    cell = {"cell": {"class": "cat", "group": "grass"}, "table": table}
    return (
        share("average_accuracy", 0.66 + shift),
        share("bias_aligned_accuracy", 0.94 + shift, **column),
        share("bias_conflicting_accuracy", 0.25 + shift, **column),
        share("harmonic_mean", 0.4 + shift, **column),
        share("bias_gap", 0.69, **column),
        share("worst_group_accuracy", 0.25 + shift, 4, cell, **column),
        share("group_balanced_accuracy", 0.6 + shift, **column),
    )


def run(method: str = "erm", seed: int = 0, findings: Sequence[Finding] = ()) -> RunFiles:
    settings = {"method": method, "seed": seed, "data": "pets"}
    return RunFiles(f"{method}-{seed}", settings=settings, findings=tuple(findings or found()))


def made(section: Section | None) -> Section:
    assert section is not None
    return section


def blocks(section: Section, kind: type[Any]) -> list[Any]:
    flat: list[Block] = [b for block in section.blocks for b in (block.blocks if isinstance(block, Side) else (block,))]
    return [block for block in flat if isinstance(block, kind)]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def cells(svg: str) -> list[tuple[str, str, str]]:
    """(opacity, text, tooltip) of every cell of a map."""
    found = []
    for group in ET.fromstring(svg):
        rect = next((child for child in group if child.tag == "rect"), None)
        if rect is not None:
            written = "".join(child.text or "" for child in group if child.tag == "text")
            found.append((rect.get("fill-opacity", ""), written, group[0].text or ""))
    return found


def test_stays_away_without_findings() -> None:
    assert groups([RunFiles("bare")]) is None
    assert groups([run(findings=[Finding("accuracy", "accuracy", 0.5, 10)])]) is None


def test_the_reason_is_said_where_nothing_was_measured() -> None:
    none = Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": "there are no groups"})
    section = made(groups([run(findings=[none])]))
    assert section.lead == "Not measured: there are no groups."
    assert section.blocks == ()


def test_table_of_one_run_names_the_worst_cell() -> None:
    (table,) = blocks(made(groups([run()])), Table)
    assert [c.title for c in table.columns] == [
        "method", "average accuracy, %", "group-balanced accuracy, %", "bias-aligned accuracy, %",
        "bias-conflicting accuracy, %", "harmonic mean of bias-aligned and bias-conflicting, %",
        "gap between bias-aligned and bias-conflicting, points", "worst-group accuracy, %",
    ]  # fmt: skip
    assert texts(table) == [["erm", "66.0", "60.0", "94.0", "25.0", "40.0", "69.0", "25.0"]]
    assert "class cat, group grass" in table.note


def test_a_note_says_which_classes_are_bias_aligned_and_bias_conflicting() -> None:
    evidence = {"note": "Bias-aligned and bias-conflicting samples: 50 of 100, of 1 of 2 classes"}
    noted = [replace(f, evidence=evidence) if f.name.startswith("bias_") else f for f in found()]
    (table,) = blocks(made(groups([run(findings=noted)])), Table)
    assert table.note.count("50 of 100, of 1 of 2 classes.") == 1


def test_the_gap_beside_the_worst_cell_is_between_cells() -> None:
    """Groups of all classes together can be level while a cell is far below the others: each gap says which it is."""
    gaps = share("group_gap", 0.02), share("cell_gap", 0.75)
    (table,) = blocks(made(groups([run(findings=(*found(), *gaps))])), Table)
    assert [c.title for c in table.columns][-3:] == [
        "worst-group accuracy, %",
        "gap between best and worst cell of class and group, points",
        "gap between best and worst group, all classes together, points",
    ]
    assert texts(table)[0][-3:] == ["25.0", "75.0", "2.0"]


def test_seeds_are_a_mean_and_a_deviation() -> None:
    (table,) = blocks(made(groups([run(seed=0), run(seed=1, findings=found(0.1))])), Table)
    assert texts(table)[0][1] == "71.0 ± 7.1"
    assert "class cat" not in table.note


def test_map_shades_errors_and_shows_empty_cells() -> None:
    bars, drawn = blocks(made(groups([run()])), Chart)
    assert "whisker" in bars.svg
    assert drawn.title == "Accuracy by class and group, %"
    shown = cells(drawn.svg)
    assert [text for _, text, _ in shown] == ["90", "25", "–", "25", "100", "–"]
    assert shown[2] == ("", "–", "cat, sea: no samples")
    assert shown[1][2] == "cat, grass: 25.0 % of 4"
    opacity = [float(o) for o, _, _ in shown if o]
    assert opacity[1] == opacity[2] > opacity[0] > opacity[3] > 0
    assert "<b>dog" not in drawn.svg


def test_seeds_add_up_in_the_map() -> None:
    drawn = blocks(made(groups([run(seed=0), run(seed=1)])), Chart)[-1]
    assert cells(drawn.svg)[1][2] == "cat, grass: 25.0 % of 8"
    assert drawn.note.endswith("Every image counts once for each of 2 seeds.")


def test_what_is_of_one_seed_says_so() -> None:
    """Bars are means over seeds; calibration and the confusion matrix beside them are of the first."""
    found = (Finding("accuracy", "accuracy", 0.9, 100, 0.8, 0.95),)
    seeds = [RunFiles(f"erm-{seed}", settings={"method": "erm", "seed": seed}, findings=found) for seed in range(2)]
    assert "of the first seed of each" in made(clean(seeds)).lead
    assert "seed" not in made(clean(seeds[:1])).lead


@pytest.mark.parametrize(
    "table",
    [None, "x", {}, {**TABLE, "n": [[1, 2]]}, {**TABLE, "hits": [["a", 1, 2], [1, 2, 3]]}, {**TABLE, "classes": "ab"}],
)
def test_a_damaged_table_is_not_drawn(table: Any) -> None:
    section = made(groups([run(findings=found(table=table))]))
    assert len(blocks(section, Chart)) == 1  # the bars


def test_columns_have_rows_and_maps_of_their_own() -> None:
    both = (*found(column="place"), *found(-0.1, {**TABLE, "column": "site"}, column="site")[1:])
    section = made(groups([run(findings=both)]))
    (table,) = blocks(section, Table)
    assert [row[0] for row in texts(table)] == ["erm, place", "erm, site"]
    assert [row[-1] for row in texts(table)] == ["25.0", "15.0"]
    assert [c.title for c in blocks(section, Chart)] == [
        "Accuracy by group, place", "Accuracy by group, site",
        "Accuracy by class and group, %", "Accuracy by class and site, %",
    ]  # fmt: skip
    ids = re.findall(r'id="([^"]+)"', "".join(c.svg for c in blocks(section, Chart)))
    assert len(ids) == len(set(ids))


def test_all_numbers_are_there() -> None:
    (details,) = blocks(made(groups([run()])), Details)
    assert len(details.blocks[0].rows) == len(found())


def test_narrow_columns_have_slanted_heads_and_no_text_that_does_not_fit() -> None:
    heats = [[Heat(0.5, "100", f"c{i}") for i in range(20)]]
    svg = heat_map(["row"], [f"column {i}" for i in range(20)], heats, id="m", title="t", x_label="x", y_label="y")
    assert svg.count("rotate(-45") == 20
    assert ">100<" not in svg
    assert "<title>c7</title>" in svg
    wide = heat_map(["row"], ["a", "b"], [heats[0][:2]], id="m", title="t", x_label="x", y_label="y")
    assert "rotate(-45" not in wide
    assert wide.count(">100<") == 2


def whole(**evidence: Any) -> Finding:
    return Finding("accuracy", "accuracy", 0.8, 20, 0.6, 0.9, evidence=evidence)


def calibrated(confidence: Any, accuracy: Any) -> Finding:
    curve = {"confidence": confidence, "accuracy": accuracy}
    return Finding("accuracy", "ece", 0.12, 20, 0.05, 0.2, evidence={"reliability": curve, "chance_high": 0.03})


def test_confusion_of_few_classes_is_a_map() -> None:
    matrix = {"classes": ["a", "b", "c"], "matrix": [[8, 2, 0], [0, 10, 0], [0, 0, 0]]}
    section = made(clean([run(findings=[whole(confusion=matrix)])]))
    (drawn,) = [c for c in blocks(section, Chart) if c.title.startswith("What is taken")]
    shown = cells(drawn.svg)
    assert [text for _, text, _ in shown] == ["80", "20", "", "", "100", "", "–", "–", "–"]
    assert shown[1][2] == "a taken for b: 2 of 10"


def test_confusion_of_many_classes_is_its_largest_pairs() -> None:
    names = [f"k{i}" for i in range(30)]
    matrix = [[10 if i == j else 0 for j in range(30)] for i in range(30)]
    matrix[3][7], matrix[5][6] = 4, 6
    section = made(clean([run(findings=[whole(confusion={"classes": names, "matrix": matrix})])]))
    (table,) = [t for t in blocks(section, Table) if t.caption.startswith("Most frequent")]
    assert texts(table) == [["k5", "k6", "6", "37.5"], ["k3", "k7", "4", "28.6"]]
    given = {"pairs": [{"label": "x", "prediction": "y", "count": 3, "of": 12}, {"label": "bad"}], "errors": 3}
    section = made(clean([run(findings=[whole(confusion=given)])]))
    (table,) = [t for t in blocks(section, Table) if t.caption.startswith("Most frequent")]
    assert texts(table) == [["x", "y", "3", "25.0"]]


@pytest.mark.parametrize(
    "confusion", ["x", {}, {"classes": ["a"], "matrix": [[1, 2]]}, {"classes": ["a"], "matrix": "no"}]
)
def test_a_damaged_confusion_is_not_drawn(confusion: Any) -> None:
    section = made(clean([run(findings=[whole(confusion=confusion)])]))
    assert [c.title for c in blocks(section, Chart)] == ["Overall"]


def test_calibration_curve_and_table() -> None:
    section = made(clean([run(findings=[whole(), calibrated([0.5, 0.9], [0.4, 0.7])])]))
    (drawn,) = [c for c in blocks(section, Chart) if c.title == "Calibration: accuracy by confidence, %"]
    lines = re.findall(r'class="line[^"]*" d="([^"]+)"', drawn.svg)
    assert len(lines) == 2  # the model's, and the perfect one
    heights = [[float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", d)] for d in lines]
    assert heights[0][0] < heights[1][0]  # the thin one is drawn first, and is higher: the model is too sure
    (table,) = [t for t in blocks(section, Table) if t.caption == "Probabilities"]
    assert texts(table) == [["erm", "12.0 (5.0 to 20.0)", "3.0"]]


@pytest.mark.parametrize("values", [("x", [0.4]), (None, None), ([], [])])
def test_a_damaged_curve_is_not_drawn(values: tuple[Any, Any]) -> None:
    section = made(clean([run(findings=[whole(), calibrated(*values)])]))
    assert "Calibration: accuracy by confidence, %" not in [c.title for c in blocks(section, Chart)]
