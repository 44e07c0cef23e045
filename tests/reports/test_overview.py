"""Audits in findings.json: what they add to the file, and the tables made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.reports import read_findings, write_findings
from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.reports.overview import gates, overview, states, verdict
from holdfast.types import Finding, Measure, Unit
from tests.reports.audits import audited


def write(path: Path, **changes: Any) -> Path:
    file = audited()
    measures = {"accuracy": [Measure("nll", "loss", Unit.NUMBER, "lower", digits=3)]}
    write_findings(
        path, file.findings, model=file.model, data=file.data, run=file.run, checks=file.checks, measures=measures,
        gates=file.gates,
    )  # fmt: skip
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def bare(file: FindingsFile) -> FindingsFile:
    """Without what the declarations add as the file is written."""
    return replace(file, measures={}, checks=tuple(replace(record, title="", about="") for record in file.checks))


def test_an_audit_comes_back_whole(tmp_path: Path) -> None:
    read = read_findings(write(tmp_path / "findings.json"))
    assert bare(read) == audited()
    assert read.checks[0].title == "Clean accuracy", "as the check declares it"
    assert read.measures["accuracy", "nll"] == Measure("nll", "loss", Unit.NUMBER, "lower", digits=3)


def test_a_file_without_an_audit_is_read(tmp_path: Path) -> None:
    content = {"format": "holdfast-findings", "version": 2, "model": {}, "data": {}, "findings": []}
    (tmp_path / "findings.json").write_text(json.dumps(content))
    read = read_findings(tmp_path / "findings.json")
    assert (read.run, read.checks, read.gates) == ({}, (), ())
    assert gates(read) is None
    assert overview(read).rows == ()


def test_keys_of_a_later_holdfast_are_left_alone(tmp_path: Path) -> None:
    assert bare(read_findings(write(tmp_path / "findings.json", surprise=[1]))) == audited()


@pytest.mark.parametrize(
    ("key", "value"),
    [("run", 3), ("checks", {}), ("checks", [{"name": "accuracy"}]), ("gates", [{"passed": True}]), ("gates", [1])],
)
def test_damaged_parts_are_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(HoldfastError, match="is damaged"):
        read_findings(write(tmp_path / "findings.json", **{key: value}))


def test_every_check_has_a_row_with_its_numbers_or_its_reason() -> None:
    rows = [[cell.text for cell in row] for row in overview(audited()).rows]
    assert rows == [
        ["accuracy", "measured", "clean accuracy", "71.2 %", "66.0 to 75.0 %", "1,642"],
        ["accuracy", "measured", "negative log-likelihood", "0.831", "0.800 to 0.900", "1,642"],
        ["groups", "not applicable", "no groups", "", "", ""],
        ["attacks", "crashed", "RuntimeError: cat", "", "", ""],
        ["saliency", "skipped", "not asked for", "", "", ""],
    ]


def test_the_worst_cell_is_named_beside_its_number() -> None:
    cell = {"cell": {"class": "cat", "group": "red"}}
    worst = Finding("groups", "worst_group_accuracy", 0.25, 4, 0.1, 0.6, evidence=cell)
    file = replace(audited(), findings=(worst,), checks=(CheckRecord("groups", "measured"),))
    rows = [[cell.text for cell in row] for row in overview(file).rows]
    assert rows == [
        ["groups", "measured", "worst-group accuracy: class cat, group red", "25.0 %", "10.0 to 60.0 %", "4"]
    ]


def test_gates_are_listed_with_what_was_judged() -> None:
    table = gates(audited())
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["accuracy >= 0.7", "passed", "0.7120", "0.6600 to 0.7500", "1,642", ""],
        ["accuracy >= 0.9", "FAILED", "0.7120", "", "1,642", "value 0.7120 is under 0.9"],
    ]
    assert verdict(audited()) == ("1 of 4 checks measured; crashed: attacks; 1 of 2 gates failed. Warning: look here")
    assert states([], [{"passed": True}]).endswith("; the gate passed")
    lost = {"name": "accuracy >= 0.9", "passed": False}
    assert states([], [lost]).endswith("; the gate failed: accuracy >= 0.9")
    assert states([], [lost, {"passed": True}]).endswith("; 1 of 2 gates failed")
    assert states([], [{"passed": True}] * 2).endswith("; all 2 gates passed")
