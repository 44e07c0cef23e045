"""The chapter on corruptions: its tables, its curves, its grid of examples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Block, Chart, Details, Gallery, Section, Side, Table
from holdfast.reports.sections.corruptions import corruptions
from holdfast.types import Finding
from tests.reports.fake_runs import png

MEAN = "mean of eight"
VALUES = {"rotation": (0.8, 0.6), "gaussian": (0.9, 0.88), MEAN: (0.85, 0.74)}


def share(name: str, value: float, **where: str) -> Finding:
    part = {key.replace("_", " "): text for key, text in where.items()}
    return Finding("corruptions", name, value, 500, value - 0.02, value + 0.02, part)


def eight(shift: float = 0.0) -> list[Finding]:
    made = [share("corruption_accuracy", 0.9, corruption="none")]
    for name, values in VALUES.items():
        for strength, value in zip(("1", "2"), values, strict=True):
            mean, part = ("mean_", {}) if name == MEAN else ("", {"corruption": name})
            made.append(share(f"{mean}corruption_accuracy", value + shift, **part, strength=strength))
            made.append(share(f"{mean}corruption_drop", 0.9 - value - shift, **part, strength=strength))
    return made


def severe() -> list[Finding]:
    made = []
    for name, slope in (("fog", 0.1), ("snow", 0.05)):
        for s in range(1, 6):
            made.append(
                share("corruption_accuracy", 0.9 - slope * s, family="nineteen", corruption=name, severity=str(s))
            )
        made.append(share("corruption_error", 0.1 + 3 * slope, family="nineteen", corruption=name))
    made.append(share("mce", 0.325, family="nineteen"))
    made.append(share("mce", 0.41, family="nineteen", relative_to="baseline"))
    return made


def run(name: str = "erm", findings: Sequence[Finding] = ()) -> RunFiles:
    return RunFiles(name, settings={"method": name, "seed": 0, "data": "pets"}, findings=tuple(findings or eight()))


def made(*runs: RunFiles) -> Section:
    section = corruptions(runs)
    assert section is not None
    return section


def flat(section: Section) -> list[Block]:
    return [b for block in section.blocks for b in (block.blocks if isinstance(block, Side) else (block,))]


def tables(section: Section) -> list[Table]:
    return [block for block in flat(section) if isinstance(block, Table)]


def charts(section: Section) -> list[Chart]:
    return [block for block in flat(section) if isinstance(block, Chart)]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def paths(chart: Chart) -> list[list[float]]:
    return [[float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", d)] for d in re.findall(r' d="(M[^"]+)"', chart.svg)]


def test_stays_away_without_findings() -> None:
    assert corruptions([RunFiles("bare")]) is None


def test_the_reason_is_said_where_nothing_was_measured() -> None:
    none = Finding("corruptions", "corruption_accuracy", None, 0, evidence={"reason": "images of 5 channels"})
    assert made(run(findings=[none])).lead == "Not measured: images of 5 channels."


def test_table_of_the_eight() -> None:
    (table,) = tables(made(run()))
    assert [c.title for c in table.columns] == ["corruption", "strength 1, %", "strength 2, %", "drop at 1, points"]
    assert texts(table) == [
        ["rotation", "80.0", "60.0", "10.0 (8.0 to 12.0)"],
        ["gaussian", "90.0", "88.0", "0.0 (-2.0 to 2.0)"],
        ["mean of eight", "85.0", "74.0", "5.0 (3.0 to 7.0)"],
    ]
    assert [row[0].strong for row in table.rows] == [False, False, True]
    assert table.note == "Without corruption 90.0 %, n = 500."


def test_curves_start_at_the_clean_accuracy() -> None:
    (chart,) = charts(made(run()))
    assert chart.title == "Accuracy against strength"
    assert [label for _, label in chart.legend] == ["rotation", "gaussian", "mean of eight"]
    drawn = paths(chart)
    assert len(drawn) == 3
    assert len({heights[0] for heights in drawn}) == 1
    styles = re.findall(r'<path class="line ([^"]+)"', chart.svg)
    assert styles == ["s0", "s1", "ink dashed"], "the mean last, in a colour of its own"
    assert drawn[0][-1] > drawn[1][-1]  # rotation ends lower, which is further down


def test_several_models_are_compared_by_the_mean() -> None:
    section = made(run("erm"), run("lff", eight(0.05)))
    assert [t.caption for t in tables(section)] == [
        "Accuracy under eight corruptions: erm", "Accuracy under eight corruptions: lff",
    ]  # fmt: skip
    (chart,) = charts(section)
    assert chart.title == "Accuracy against strength, mean of eight"
    assert [label for _, label in chart.legend] == ["erm", "lff"]
    assert len(paths(chart)) == 2


def test_severities_have_lines_and_errors() -> None:
    section = made(run(findings=eight() + severe()))
    chart = charts(section)[1]
    assert chart.title == "Accuracy against severity, nineteen"
    assert chart.svg.count(" thin") == 2
    assert "average ends at 52.5" in chart.svg
    table = tables(section)[1]
    assert texts(table) == [
        ["fog", "40.0"],
        ["snow", "25.0"],
        ["mean corruption error", "32.5"],
        ["mean, relative to the baseline", "41.0"],
    ]


def test_a_published_set_alone() -> None:
    section = made(run(findings=severe()))
    assert [t.caption for t in tables(section)] == ["Error by corruption, nineteen"]
    assert len(charts(section)) == 1


def test_examples_say_what_the_model_says() -> None:
    shown = {"png": png("7", (9, 9, 200)), "label": "7", "confidence": 0.81}
    examples: list[Any] = [
        {**shown, "corruption": "none", "strength": "0", "prediction": "7"},
        {**shown, "corruption": "rotation", "strength": "2", "prediction": "1"},
        {**shown, "png": "bm8="},
        "x",
    ]
    finding = Finding("corruptions", "examples", None, 0, evidence={"examples": examples})
    section = made(run(findings=[*eight(), finding]))
    (gallery,) = [block for block in section.blocks if isinstance(block, Gallery)]
    assert [(p.title, p.detail, p.wrong) for p in gallery.pictures] == [
        ("clean", "7, 81.0 % sure", False), ("rotation, 2", "1, 81.0 % sure", True),
    ]  # fmt: skip
    (details,) = [block for block in section.blocks if isinstance(block, Details)]
    (numbers,) = details.blocks
    assert isinstance(numbers, Table)
    assert len(numbers.rows) == len(eight())
