"""The sections of a report, and the registry that finds them. Open this file to see in which order they stand.

A check needs no section of its own: its declared measures are shown by :func:`from_measures`. One that has more to show
is a function here, or in any module of the entry-point group ``holdfast``, under the decorator :func:`section`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps

from holdfast.parts import Part, Registry
from holdfast.reports.arms import Arm, arms, share_chart
from holdfast.reports.blocks import Block, Section, Side
from holdfast.reports.report_tables import all_numbers, measure_table
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import part
from holdfast.types import Unit

MOST_BARS = 20
"""Shares in the chart of a check without a section of its own; its table has them all."""

MakeSection = Callable[[Sequence[RunFiles]], Section | None]
"""Looks at the runs and returns None where it has nothing to show."""


@dataclass(frozen=True, kw_only=True)
class SectionPart(Part):
    """A section of a report. name: the check whose findings it shows, or a word of its own.

    order: below 0 it stands before the checks, above 0 after them; the checks' own stand as the findings order them.
    """


SECTIONS: Registry[SectionPart] = Registry("report section", SectionPart, "holdfast.reports.sections")


def section(name: str, *, order: int = 0) -> Callable[[MakeSection], MakeSection]:
    return SECTIONS.declare(name, about=f"the section {name}", order=order)


def of_check(check: str) -> Callable[[Callable[[Sequence[Arm]], Section | None]], MakeSection]:
    """Declare the section of a check as a function of the arms that have findings of it; without any it is left out."""

    def declare(make: Callable[[Sequence[Arm]], Section | None]) -> MakeSection:
        @section(check)
        @wraps(make)
        def made(runs: Sequence[RunFiles]) -> Section | None:
            groups = arms(runs, check)
            return make(groups) if groups else None

        return made

    return declare


def sections(runs: Sequence[RunFiles]) -> list[Section]:
    parts = [SECTIONS[name] for name in SECTIONS]
    checks = dict.fromkeys(
        [record.name for run in runs for record in run.checks] + [f.check for run in runs for f in run.findings]
    )
    makers = [part.made for part in parts if part.order < 0]
    makers += [SECTIONS[check].made if check in SECTIONS else partial(from_measures, check) for check in checks]
    makers += [part.made for part in parts if part.order > 0]
    return [made for make in makers if (made := make(runs)) is not None]


def from_measures(check: str, runs: Sequence[RunFiles]) -> Section | None:
    """The section of a check that has none of its own: its measures in a table and, shares that are, in a chart."""
    groups = arms(runs, check)
    record = next((r for run in runs for r in run.checks if r.name == check), None)
    title = record.title if record and record.title else check.replace("_", " ").capitalize()
    table = measure_table(groups, check, title) if groups else None
    if table is None:
        return None
    blocks: list[Block] = [table]
    keys = list(dict.fromkeys(key for arm in groups for key in arm.found if key.check == check))
    measures = {key: groups[0].measure(key) for key in keys}
    shares = [k for k in keys if measures[k].unit is Unit.PERCENT and any(arm.spread(k) for arm in groups)]
    if shares:
        words = {key: ", ".join([measures[key].title, *([part(dict(key.where))] if key.where else [])]) for key in keys}
        rows = {words[key]: [arm.spread(key) for arm in groups] for key in shares[:MOST_BARS]}
        chart = share_chart(f"{title}, %", groups, rows, id=f"{check}-measures", drawn=title, longest=29)
        blocks.append(Side((chart,)))
    blocks.append(all_numbers(groups, check))
    return Section(check, title, record.about if record else "", tuple(blocks))
