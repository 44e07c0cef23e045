"""shortcuts.html: a page of its own for what ``holdfast shortcuts`` found, as self-contained as a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.reports.html import render_sections, unbroken
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.sections.shortcuts import shortcuts, summary
from holdfast.reports.text import setting
from holdfast.types import Finding


def write_page(findings: Sequence[Finding], path: str | Path, *, name: str) -> Path:
    """Write the page. The same findings give the same bytes."""
    path = Path(path)
    write_atomic(path, render_page(findings, name=name).encode("utf-8", "backslashreplace"))
    return path


def render_page(findings: Sequence[Finding], *, name: str) -> str:
    """The page as text. name: the data set's."""
    section = shortcuts([RunFiles(name, findings=tuple(findings))])
    require(section is not None, "there are no findings on shortcuts to show; run 'holdfast shortcuts' first")
    assert section is not None
    settings = next((f.settings for f in findings if f.check == "shortcuts" and f.settings), {})
    facts = [setting(settings["model"])] if "model" in settings else []
    return render_sections(
        title=f"Shortcuts in {name}",
        facts=[*facts, f"the training set of {name}"],
        verdict=unbroken(summary(findings)),
        sections=[section],
    )
