"""The sample report that the documentation shows is what this code makes of its findings."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.reports import read_runs
from holdfast.reports.findings_file import is_as_written
from holdfast.reports.html import render

SAMPLE = Path(__file__).parents[2] / "docs" / "sample"


def test_the_sample_is_up_to_date_and_small() -> None:
    shown = (SAMPLE / "report.html").read_bytes()
    made = render(read_runs([SAMPLE / "audit"])).encode("utf-8")
    assert shown == made, "make it anew: holdfast report docs/sample/audit --out docs/sample/report.html"
    assert len(shown) < 1_200_000


def test_the_page_names_the_command_that_measured_the_sample() -> None:
    page = (SAMPLE.parent / "how-to" / "read-the-report.md").read_text(encoding="utf-8").replace("\\\n", "")
    for path in SAMPLE.glob("audit/*/findings.json"):
        assert is_as_written(path)
        assert json.loads(path.read_bytes())["run"]["command"] in " ".join(page.split())
