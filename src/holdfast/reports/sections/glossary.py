"""What every number of a report is, in one sentence each: the section that other sections and tables point to."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.reports.blocks import Cell, Column, Section, Table
from holdfast.reports.findings_file import measure_of
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.text import finite, measure_id, unit
from holdfast.types import Unit

DIRECTION = {"higher": "higher is better", "lower": "lower is better", "neither": "neither is better"}


@section("glossary", order=6)
def glossary(runs: Sequence[RunFiles]) -> Section | None:
    """One row per measure that has a number here and says what it is, in the order of the checks."""
    found = {
        (f.check, f.name): measure_of(f.check, f.name, run.measures)
        for run in runs
        for f in run.findings
        if finite(f.value) is not None
    }
    known = [(check, measure) for (check, _), measure in found.items() if measure.about]
    if not known:
        return None
    rows = tuple(
        (
            Cell(measure.title, id=measure_id(check, measure.name)),
            Cell(measure.about),
            Cell("yes or no" if measure.unit is Unit.FLAG else unit(measure) or "number"),
            Cell(DIRECTION.get(measure.better, "")),
        )
        for check, measure in known
    )
    lead = (
        "Every measure of this page in one sentence. A 95 % interval holds the true value in 95 of 100 such "
        "audits. n is the number of images behind a number. Differences between percentages are in points."
    )
    return Section(
        "glossary",
        "What the numbers are",
        lead,
        (Table("Measures", Column.texts("measure", "what it is", "unit", "direction"), rows),),
    )
