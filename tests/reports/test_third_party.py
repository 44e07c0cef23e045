"""A check that no file of ours knows is shown in every rendering, from what its findings file says of it."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from holdfast.reports import read_findings, read_runs, write_findings
from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.reports.html import render
from holdfast.reports.overview import overview, verdict
from holdfast.reports.renderings import junit, markdown, rich_table
from holdfast.types import Finding, Measure, Note, Unit
from tests.reports.page import Page

MEASURES = (
    Measure("fog_accuracy", "accuracy in fog", headline=True, headline_where={"depth": "2"}, drop="fog_drop"),
    Measure("fog_drop", "drop in fog", Unit.POINTS, "lower"),
    Measure("fog_seconds", "time per image", Unit.SECONDS, "lower"),
    Measure("fog_found", "foggy images found", Unit.COUNT, "neither", headline=True),
)
FOUND = (
    Finding("accuracy", "accuracy", 0.9, 1000, 0.88, 0.92),
    Finding("acme_fog", "fog_accuracy", 0.8, 1000, 0.77, 0.83, {"depth": "1"}),
    Finding("acme_fog", "fog_accuracy", 0.5, 1000, 0.47, 0.53, {"depth": "2"}),
    Finding("acme_fog", "fog_drop", 0.4, 1000, 0.37, 0.43, {"depth": "2"}),
    Finding("acme_fog", "fog_seconds", 0.0125, 1000),
    Finding("acme_fog", "fog_found", 12.0, 1000),
)
CHECKS = (
    CheckRecord("accuracy", "measured"),
    CheckRecord("acme_fog", "measured", "", "Fog", "Accuracy in fog.", notes=(Note("thick", "very thick", "wait"),)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gate = {
        "name": "fog_accuracy >= 0.6", "kind": "fail-under", "measure": "fog_accuracy", "check": "acme_fog",
        "threshold": 0.6, "fail_on": "low", "value": 0.5, "low": 0.47, "high": 0.53, "n": 1000, "passed": False,
        "reason": "below",
    }  # fmt: skip
    write_findings(
        tmp_path / "findings.json", FOUND, model={"name": "net"}, data={"name": "roads"}, checks=CHECKS,
        measures={"acme_fog": MEASURES}, gates=[gate],
    )  # fmt: skip
    return tmp_path


@pytest.fixture
def file(folder: Path) -> FindingsFile:
    return read_findings(folder / "findings.json")


def test_measures_and_notes_come_back_typed(file: FindingsFile) -> None:
    assert [file.measures["acme_fog", m.name] for m in MEASURES] == list(MEASURES)
    assert [r.name for r in file.checks] == ["accuracy", "acme_fog"]
    assert file.checks[1].notes == (Note("thick", "very thick", "wait"),)


def test_the_page_has_a_section_with_table_and_chart(folder: Path) -> None:
    page = Page(render(read_runs([folder])))
    assert "Fog" in page.text("h2")
    rows = [[cell.text for cell in row] for row in page.tables["Fog"][1:]]
    assert rows == [
        ["accuracy in fog", "depth 1", "80.0 %"],
        ["accuracy in fog", "depth 2", "50.0 %"],
        ["drop in fog", "depth 2", "40.0 points"],
        ["time per image", "all", "0.0125 s"],
        ["foggy images found", "all", "12"],
    ]
    assert "Fog, %" in page.text("figcaption")
    (top,) = page.text("h1")
    assert "but 50.0 % accuracy in fog (depth 2; 95 % interval" in top.replace("\u00a0", " ")


def test_console_markdown_and_junit_say_the_same(file: FindingsFile) -> None:
    text = io.StringIO()
    Console(file=text, width=200).print(rich_table(overview(file)))
    for made in (text.getvalue(), markdown([file])):
        assert "accuracy in fog, depth 2" in made
        assert "50.0 %" in made
        assert "accuracy in fog, depth 1" not in made, "not the part that stands for it"
    assert verdict(file) == (
        "90.0 % clean accuracy on 1,000 images; drops to 50.0 % accuracy in fog (depth 2); gate failed: accuracy "
        "in fog (depth 2) 50.0 %, 95 % interval 47.0 to 53.0, lower bound must be at least 60.0. 2 of 2 checks "
        "measured; the gate failed: fog_accuracy >= 0.6"
    )
    cases = {case.attrib["name"]: case for case in ElementTree.fromstring(junit([file]).encode()).iter("testcase")}
    properties = {p.attrib["name"]: p.attrib["value"] for p in cases["acme_fog"].iter("property")}
    assert properties["fog_accuracy, depth 1"] == "80.0 % (77.0 to 83.0 %), n 1,000"
    assert cases["fog_accuracy >= 0.6"].find("failure") is not None
