"""Repair: what abstaining costs and saves, before and after a new last layer and temperature scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.reports.arms import Arm
from holdfast.reports.blocks import Block, Section, Side
from holdfast.reports.report_tables import all_numbers, measure_table
from holdfast.reports.sections import of_check
from holdfast.reports.svg.lines import Line, share_lines
from holdfast.reports.text import numbers

CHECK = "repair"


@of_check(CHECK)
def repair(groups: Sequence[Arm]) -> Section:
    lead = (
        "The last layer, the temperature and the confidence below which the model abstains were fitted on held-out "
        "images; these numbers are of the test split. The curve shows the error among the images that are answered, "
        "from the surest ones on the left to all of them."
    )
    table = measure_table(groups, CHECK, "Abstention")
    blocks: list[Block] = [] if table is None else [table]
    lines: list[Line] = []
    for arm in groups:
        for run in arm.runs:
            for f in run.findings:
                curve = f.evidence.get("curve") if f.check == CHECK else None
                if isinstance(curve, Mapping):
                    pairs = zip(numbers(curve, "coverage"), numbers(curve, "risk"), strict=False)
                    points = tuple((100 * x, y) for x, y in pairs if x is not None and y is not None)
                    label = ", ".join([run.name] * (len(groups) > 1 or len(arm.runs) > 1) + [str(f.where.get("model"))])
                    lines.append(Line(label, (points,), len(lines)))
    if lines:
        title, top = "Error among the images that are answered", max(y for line in lines for _, y in line.segments[0])
        chart = share_lines(
            title, lines, id="risk-coverage", x_label="images answered, %", top=max(top, 0.01), whole=False
        )
        if chart is not None:
            blocks.append(Side((chart,)))
    return Section(CHECK, "Repair", lead, (*blocks, all_numbers(groups, CHECK)))
