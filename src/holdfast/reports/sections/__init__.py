"""The sections of a report, and the registry that finds them. Open this file to see in which order they stand.

A check needs no section of its own: its declared measures are shown by :func:`from_measures`. One that has more to show
is a function here, or in any module of the entry-point group ``holdfast``, under the decorator :func:`section`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.parts import Part, Registry
from holdfast.reports.blocks import Section
from holdfast.reports.run_files import RunFiles

MakeSection = Callable[[Sequence[RunFiles]], Section | None]
"""Looks at the runs and returns None where it has nothing to show."""


@dataclass(frozen=True)
class SectionPart(Part):
    """A section of a report. name: the check whose findings it shows, or a word of its own.

    order: below 0 it stands before the checks, above 0 after them; the checks' own stand as the findings order them.
    """


SECTIONS: Registry[SectionPart] = Registry("report section", "holdfast.reports.sections")


def section(name: str, *, order: int = 0) -> Callable[[MakeSection], MakeSection]:
    """Declare a section of the report."""

    def declare(made: MakeSection) -> MakeSection:
        SECTIONS.add(SectionPart(name, (made.__doc__ or "").partition("\n")[0], made, order=order))
        return made

    return declare


def sections(runs: Sequence[RunFiles]) -> list[Section]:
    """Every section that has something to show, in reading order."""
    parts = [SECTIONS[name] for name in SECTIONS]
    checks = dict.fromkeys(
        [str(record["name"]) for run in runs for record in run.checks] + [f.check for run in runs for f in run.findings]
    )
    makers = [part.made for part in parts if part.order < 0]
    makers += [SECTIONS[check].made if check in SECTIONS else _generic(check) for check in checks]
    makers += [part.made for part in parts if part.order > 0]
    return [made for make in makers if (made := make(runs)) is not None]


def _generic(check: str) -> MakeSection:
    return lambda runs: None
