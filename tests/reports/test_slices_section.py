"""The chapter on slices: verdicts, numbers, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Gallery, Section, Side, Table
from holdfast.reports.html import render
from holdfast.reports.sections.slices import slices
from holdfast.types import Finding
from tests.reports.fake_runs import png

PROFILE = {"brightness": {"value": [0.1, 0.9], "n": [50, 50], "accuracy": [0.6, 0.9]}}


def part(name: str, value: float, *, confirmed: bool, p: float, examples: Any = None) -> tuple[Finding, Finding]:
    evidence: dict[str, Any] = {"confirmed": confirmed, "adjusted_p": p}
    if examples is not None:
        evidence["examples"] = examples
    where = {"slice": name}
    return (
        Finding("slices", "slice_accuracy", value, 40, value - 0.1, value + 0.1, where, evidence=evidence),
        Finding("slices", "slice_gap", 0.9 - value, 200, 0.8 - value, 1.0 - value, where),
    )


def found(examples: Any = None, profile: Any = PROFILE) -> tuple[Finding, ...]:
    looked = {"attributes": ["brightness", "contrast"], "profile": profile}
    return (
        Finding("slices", "confirmed_slices", 1.0, 200, settings={"level": 0.05}, evidence=looked),
        *part("brightness at most 0.2", 0.5, confirmed=True, p=0.0004, examples=examples),
        *part("contrast above 0.3", 0.9003, confirmed=False, p=0.6),
    )


def run(name: str = "erm", findings: Sequence[Finding] = ()) -> RunFiles:
    return RunFiles(name, settings={"method": name, "seed": 0, "data": "pets"}, findings=tuple(findings or found()))


def made(*runs: RunFiles) -> Section:
    section = slices(runs)
    assert section is not None
    return section


def test_stays_away_without_findings() -> None:
    assert slices([RunFiles("bare")]) is None


def test_confirmed_parts_stand_out() -> None:
    table = made(run()).blocks[0]
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["brightness at most 0.2", "50.0", "40", "40.0 (30.0 to 50.0)", "0.0004", "confirmed"],
        ["contrast above 0.3", "90.0", "40", "0.0 (-10.0 to 10.0)", "0.6", "not confirmed"],
    ]
    assert [row[0].strong for row in table.rows] == [True, False]
    assert table.note == "1 confirmed at level 0.05, on 200 samples. Attributes: brightness, contrast."


def test_nothing_confirmed_is_said() -> None:
    nothing = Finding("slices", "confirmed_slices", 0.0, 80, settings={"level": 0.01}, evidence={"attributes": []})
    table = made(run(findings=[nothing])).blocks[0]
    assert isinstance(table, Table)
    assert table.rows == ()
    assert table.note == "No weak slice is confirmed at level 0.01, on 80 samples. Attributes: nothing that varies."


def test_profile_is_drawn_where_it_can_be() -> None:
    (side,) = [block for block in made(run()).blocks if isinstance(block, Side)]
    (chart,) = side.blocks
    assert isinstance(chart, Chart)
    assert "brightness ends at 90.0" in chart.svg
    for damaged in (None, {"a": 1}, {"a": {"accuracy": ["x", "y"]}}, {"a": {"accuracy": [0.5]}}):
        assert not [b for b in made(run(findings=found(profile=damaged))).blocks if isinstance(b, Side)]


def test_pictures_of_mistakes() -> None:
    picture = {"png": png("7", (200, 0, 0)), "label": "7", "prediction": "1", "source": "seven.png"}
    junk: list[Any] = [{"png": "bm8="}, "x"]
    (gallery,) = [b for b in made(run(findings=found([picture, *junk]))).blocks if isinstance(b, Gallery)]
    assert gallery.title == "Mistakes where brightness at most 0.2"
    assert [(p.title, p.alt, p.wrong) for p in gallery.pictures] == [("7 → 1", "7 → 1; seven.png", True)]


def test_clusters_say_what_sets_them_apart() -> None:
    """Numbers inside and in the rest, of a property or of a kind; what cannot be read is left out."""
    apart = {"property": "brightness", "kind": None, "inside": 0.21, "outside": 0.553, "distance": 0.9}
    kind = {"property": "group", "kind": "red", "inside": 0.98, "outside": 0.0, "distance": 0.98}
    picture = {"png": png("7", (200, 0, 0)), "label": "7", "prediction": "1", "source": "seven.png"}
    rows: list[Finding] = []
    for i, own in enumerate((apart, kind, {"inside": "x"}, 3)):
        first, gap = part(f"cat, cluster {i}", 0.1, confirmed=True, p=0.001, examples=[picture] if i == 0 else None)
        rows += [replace(first, evidence={**first.evidence, "class": "cat", "telling": own}), gap]
    section = made(run(findings=[found()[0], *rows]))
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert table.columns[-1].title == "median or share inside, and in the rest"
    assert [row[-1].text for row in table.rows] == ["brightness: 0.21, 0.553", "group red: 98.0 %, 0.0 %", "", ""]
    assert [b.title for b in section.blocks if isinstance(b, Gallery)] == ["Mistakes in cat, cluster 0"]


def test_runs_are_named_when_there_are_several() -> None:
    captions = [b.caption for b in made(run("erm"), run("lff")).blocks if isinstance(b, Table)]
    assert captions == ["Weak slices of erm", "Weak slices of lff"]


def test_hostile_names_are_only_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.reports.html.sections", lambda runs: [slices(runs)])
    picture = {"png": png("7", (200, 0, 0)), "label": '"><script>alert(2)', "prediction": "1"}
    hostile = part("<script>alert(1)</script>", 0.5, confirmed=True, p=0.01, examples=[picture])
    page = render([run(findings=hostile)])
    assert "alert(1)" in page
    assert "alert(2)" in page
    assert "<script>alert" not in page
