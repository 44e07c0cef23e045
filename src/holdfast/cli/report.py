"""``holdfast report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from holdfast.cli.common import parse
from holdfast.errors import HoldfastError


@dataclass(frozen=True)
class ReportOptions:
    """The report."""

    folders: Positional[tuple[str, ...]]
    """Run folders."""
    out: str | None = None
    """The file to write (default: report.html in the run folder, or here for several)."""


def report(words: list[str]) -> int:
    """Rebuild report.html from the files of one or more runs alone."""
    options: ReportOptions = parse(ReportOptions, words, "report", report.__doc__)
    if not options.folders:
        raise HoldfastError("no run folder given; try: holdfast report runs/demo/*")
    from holdfast.reports import read_runs, write_report

    folders = [Path(folder) for folder in options.folders]
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    out = Path(options.out) if options.out else default
    write_report(read_runs(folders), out)
    print(f"report: {out}")
    return 0
