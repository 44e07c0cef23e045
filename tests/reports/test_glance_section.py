"""The chapter that says of every check whether it was measured, and of every gate whether it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.reports import RunFiles, write_findings
from holdfast.reports.blocks import Side, Table
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.sections.glance import glance
from holdfast.types import Finding

FOUND = (Finding("accuracy", "accuracy", 0.75, 400, 0.70, 0.79),)
CHECKS = (
    CheckRecord("accuracy", "measured", ""),
    CheckRecord("attacks", "crashed", "RuntimeError: out of luck"),
    CheckRecord("groups", "not applicable", "no groups"),
)
GATES = (
    {"name": "accuracy >= 0.8", "passed": False, "value": 0.75, "low": 0.7, "high": 0.79, "n": 400, "reason": "below"},
)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_states_reasons_and_gates_are_told(tmp_path: Path) -> None:
    write_findings(tmp_path / "a" / "findings.json", FOUND, model={}, data={}, checks=CHECKS, gates=GATES)
    run = RunFiles.read(tmp_path / "a")
    section = glance([run])
    assert section is not None
    side, gates, states = section.blocks
    assert isinstance(side, Side)
    assert isinstance(states, Table)
    assert isinstance(gates, Table)
    assert texts(states) == [
        ["accuracy", "measured", "clean accuracy", "75.0 %", "70.0 to 79.0 %", "400"],
        ["attacks", "crashed", "RuntimeError: out of luck", "", "", ""],
        ["groups", "not applicable", "no groups", "", "", ""],
    ]
    assert texts(gates)[0][:2] == ["accuracy >= 0.8", "FAILED"]
    assert section.lead.startswith("1 of 3 checks measured; crashed: attacks; the gate failed: accuracy >= 0.8.")
    assert "out of luck" in render([run])


def test_of_two_models_each_is_named() -> None:
    first = RunFiles("first", findings=FOUND, checks=CHECKS)
    section = glance([first, replace(first, name="second")])
    assert section is not None
    assert "first: 1 of 3" in section.lead
    assert "second: 1 of 3" in section.lead
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    assert [column.title for column in table.columns] == ["check", "measure", "first", "second"]
    assert texts(table) == [
        ["accuracy", "clean accuracy", "75.0 % (70.0 to 79.0 %)", "75.0 % (70.0 to 79.0 %)"],
        ["attacks", "state", "crashed: RuntimeError: out of luck", "crashed: RuntimeError: out of luck"],
        ["groups", "state", "not applicable: no groups", "not applicable: no groups"],
    ]


def test_a_long_reason_wraps_and_does_not_push_numbers_out_of_sight() -> None:
    reason = "no layer keeps the plane of a picture; name one with layer"
    checks = (*CHECKS[:2], CheckRecord("groups", "not applicable", reason))
    first = RunFiles("first", findings=FOUND, checks=checks)
    page = render([first, replace(first, name="second")])
    assert f'<td class="number words">not applicable: {reason}' in page
    assert '<td class="number" data-value="0.75">75.0 % (70.0 to 79.0 %)' in page


def test_a_training_has_no_such_chapter() -> None:
    assert glance([RunFiles("plain", findings=FOUND)]) is None
