"""The sample report that the documentation shows is what this code makes of its findings."""

from __future__ import annotations

from pathlib import Path

from holdfast.reports import read_runs
from holdfast.reports.html import render

SAMPLE = Path(__file__).parents[2] / "docs" / "sample"


def test_the_sample_is_up_to_date_and_small() -> None:
    shown = (SAMPLE / "report.html").read_bytes()
    made = render(read_runs([SAMPLE / "audit"])).encode("utf-8")
    assert shown == made, "make it anew: holdfast report docs/sample/audit --out docs/sample/report.html"
    assert len(shown) < 1_000_000
