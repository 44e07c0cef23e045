"""``holdfast report``: the HTML report of runs and audits, made anew from their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import parse, say
from holdfast.errors import HoldfastError
from holdfast.settings.fields import Several, Unset


@dataclass(frozen=True)
class ReportOptions:
    """The report."""

    folders: Annotated[Positional[Several[str]], arg(metavar="FOLDER ...")]
    """Run or audit folders, or folders with several of them inside."""
    out: Unset[str] = None
    """The file to write (default: report.html in the run folder; in the current folder for several)."""
    figures: Unset[str] = None
    """Also write the charts as SVG and PNG, and the tables as CSV and LaTeX, to this folder (default: none)."""
    no_images: bool = False
    """Leave out all pictures."""
    redact_paths: bool = False
    """Leave out folder names: files are shown by their name only."""


def report(words: list[str]) -> int:
    """Rebuild report.html from the files of runs and audits alone."""
    options: ReportOptions = parse(ReportOptions, words, "report", report.__doc__)
    if not options.folders:
        raise HoldfastError("no run folder given; try: holdfast report runs/demo/*")
    from holdfast.reports.html import report_folders

    folders = [Path(folder) for folder in options.folders]
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    out = Path(options.out) if options.out else default
    images, redact = not options.no_images, options.redact_paths
    charts, tables = report_folders(folders, out, images=images, redact=redact, figures=options.figures)
    say(f"report: {out}")
    if options.figures is not None:
        say(f"figures: {charts} charts and {tables} tables in {options.figures}")
    return 0
