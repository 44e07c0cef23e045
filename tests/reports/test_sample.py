"""The reports of the documentation's gallery are made from findings in the repository, by commands that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.reports import read_runs
from holdfast.reports.findings_file import is_as_written
from holdfast.reports.html import render

DOCS = Path(__file__).parents[2] / "docs"
SAMPLE = DOCS / "sample"
GALLERY = (SAMPLE / "audit", DOCS / "gallery" / "fashion")


@pytest.mark.parametrize("folder", GALLERY, ids=lambda folder: folder.parent.name)
def test_a_report_of_the_gallery_is_small_and_tells_what_it_is_about(folder: Path) -> None:
    page = render(read_runs([folder]))
    assert 500_000 < len(page.encode("utf-8")) < 1_500_000
    assert 'class="answers"' in page, "the filters have samples to search"
    assert 'class="look"' in page
    assert all(path.stat().st_size < 2**20 for path in folder.rglob("*.json"))


@pytest.mark.parametrize("folder", GALLERY, ids=lambda folder: folder.parent.name)
def test_the_gallery_names_the_command_that_measured_it(folder: Path) -> None:
    page = " ".join((DOCS / "gallery" / "index.md").read_text(encoding="utf-8").replace("\\\n", "").split())
    found = list(folder.glob("*/findings.json"))
    assert len(found) == 2
    for path in found:
        assert is_as_written(path)
        assert json.loads(path.read_bytes())["run"]["command"].removesuffix(" --quiet") in page
