"""Models are compared on the same samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.reports import read_findings
from tests.experiment.audit.nearest import MODEL, OTHER, QUICK, table


def test_models_are_compared_on_the_same_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", MODEL, *QUICK, "--against", OTHER, "--only", "clean", "--quiet", "--out", "out"]
    assert main([*words, "--max-drop", "clean=0.0"]) in (0, 1)
    sides = {}
    for name in ("python-nearest-make", "python-nearest-other"):
        sides[name] = [row["clean"] == "right" for row in table(Path("out") / name)]
    mine, theirs = sides.values()
    read = read_findings("out/python-nearest-make/findings.json")
    lead = next(f for f in read.findings if f.name == "lead")
    assert lead.value == pytest.approx((sum(mine) - sum(theirs)) / len(mine))
    assert lead.value is not None
    assert lead.low is not None
    assert lead.high is not None
    assert lead.low < lead.value < lead.high
    assert lead.evidence["only_this"] == sum(a and not b for a, b in zip(mine, theirs, strict=True))
    (gate,) = read.gates
    assert gate["value"] == pytest.approx(-lead.value)
    assert gate["passed"] == (lead.value >= 0)
    both = Path("out/report.html").read_text(encoding="utf-8")
    assert "python-nearest-other" in both
    before = Path("out/report.html").read_bytes()
    assert main(["report", "out"]) == 0
    assert Path("out/report.html").read_bytes() == before
