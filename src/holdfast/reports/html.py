"""report.html: one file that needs nothing else, and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from holdfast.errors import HoldfastError, cut, first_line, require
from holdfast.files import write_atomic
from holdfast.printable import one_line
from holdfast.reports.arms import arms, flat, varying
from holdfast.reports.blocks import MOST_BYTES, Section, fitted
from holdfast.reports.figure_files import check_folder, write_figures
from holdfast.reports.findings_file import FindingsFile, Measures, is_as_written, without_nan
from holdfast.reports.headline import MOST_SENTENCES, Top, top, unbroken
from holdfast.reports.run_files import FINDINGS, RunFiles, read_runs, redacted
from holdfast.reports.sections import sections
from holdfast.reports.sections.data_quality import data_quality, quality_summary
from holdfast.reports.sections.shortcuts import shortcuts, summary
from holdfast.reports.svg import series
from holdfast.reports.text import setting
from holdfast.types import Finding, Measure

MOST_TITLES = 3
MOST_NUMBERS = 20_000
"""More findings than this are not in the page in full."""
KEPT = ("check", "name", "value", "low", "high", "n", "where")


def write_report(runs: Sequence[RunFiles], path: str | Path, *, images: bool = True) -> Path:
    """Write the report of one or several runs. The same runs give the same bytes."""
    write_atomic(Path(path), render(runs, images=images).encode("utf-8"))
    return Path(path)


def report_folders(
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    images: bool = True,
    redact: bool = False,
    figures: str | Path | None = None,
) -> tuple[int, int]:
    """Write the report of the runs and audits in folders. redact: without the folders that they name.

    figures: a folder for its charts as SVG and PNG and its tables as CSV and LaTeX. Returns how many there are of each.
    """
    if figures is not None:
        check_folder(figures)
    runs = read_runs(folders)
    runs = [redacted(run) for run in runs] if redact else runs
    try:
        write_report(runs, path, images=images)
        return (0, 0) if figures is None else write_figures(sections(runs), figures)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        files = [file for folder in folders for file in sorted(Path(folder).rglob(FINDINGS))]
        changed = [str(file) for file in files if not is_as_written(file)]
        if not changed:  # then the mistake is ours, and is not to be taken for theirs
            raise
        names, why = ", ".join(changed), f"{type(error).__name__}: {first_line(error)}"
        raise HoldfastError(
            f"cannot show {cut(names)} ({cut(why)}): it is not as holdfast wrote it; measure again to make a new one"
        ) from error


def report(
    findings: Iterable[Finding] | str | Path,
    path: str | Path,
    *,
    name: str | None = None,
    measures: Mapping[str, Iterable[Measure]] | None = None,
) -> Path:
    """Write the report of bare findings, or of the runs and audits in a folder, as ``holdfast report`` does.

    name: what the findings are of, where they come without a folder. measures: what their numbers are, by check, for
    findings that are not of a declared check.

    >>> import tempfile
    >>> from holdfast.types import Finding
    >>> with tempfile.TemporaryDirectory() as place:
    ...     page = report([Finding("accuracy", "accuracy", 0.9, 100, 0.83, 0.94)], f"{place}/report.html", name="mine")
    ...     "90.0" in page.read_text(encoding="utf-8")
    True
    """
    if isinstance(findings, (str, os.PathLike)):
        require(name is None, f"name {name!r} is for findings alone, and {findings} has names of its own; leave it out")
        report_folders([findings], path)
        return Path(path)
    own: tuple[Any, ...] = tuple(findings) if isinstance(findings, Iterable) else (findings,)
    wrong = next((type(one).__name__ for one in own if not isinstance(one, Finding)), "")
    require(not wrong, f"a report is of findings, as holdfast.audit returns them, or of a run folder, got {wrong}")
    known = {(check, m.name): m for check, given in (measures or {}).items() for m in given}
    return write_report([RunFiles(name=name or "model", findings=own, measures=known)], path)


def render(runs: Sequence[RunFiles], *, images: bool = True) -> str:
    require(bool(runs), "a report needs at least one run, got none; name a run folder")
    groups = arms(runs)
    return render_sections(
        title=_title([arm.label for arm in groups], {arm.data for arm in groups}),
        facts=_facts(runs),
        top=top(runs, groups, images=images),
        sections=fitted(sections(runs), MOST_BYTES if images else 0),
        numbers=_numbers(runs),
    )


def write_shortcuts_page(
    findings: Sequence[Finding], path: str | Path, *, name: str, measures: Measures | None = None
) -> Path:
    """Write shortcuts.html: a page of its own for what ``holdfast shortcuts`` found. Same findings, same bytes."""
    page = render_shortcuts_page(findings, name=name, measures=measures)
    write_atomic(Path(path), page.encode("utf-8", "backslashreplace"))
    return Path(path)


def render_shortcuts_page(findings: Sequence[Finding], *, name: str, measures: Measures | None = None) -> str:
    """The page as text. name: the data set's. measures: what the numbers are."""
    section = shortcuts([RunFiles(name, findings=tuple(findings), measures=measures or {})])
    if section is None:
        raise HoldfastError("there are no findings on shortcuts to show; run 'holdfast shortcuts' first")
    settings = next((f.settings for f in findings if f.check == "shortcuts" and f.settings), {})
    facts = [setting(settings["model"])] if "model" in settings else []
    return render_sections(
        title=f"Shortcuts in {name}",
        facts=[*facts, f"the training set of {name}"],
        top=Top(unbroken(summary(findings))),
        sections=[section],
    )


def write_data_page(
    findings: Sequence[Finding], path: str | Path, *, name: str, measures: Measures, notes: Sequence[str] = ()
) -> Path:
    """Write data_check.html: a page of its own for what ``holdfast data check`` found. Same findings, same bytes."""
    section = data_quality([RunFiles(name, findings=tuple(findings), measures=measures)])
    page = render_sections(
        title=f"Data check of {name}",
        facts=[f"the data set {name}"],
        top=Top(unbroken(quality_summary(findings)), [("Note", note) for note in notes[:MOST_SENTENCES]]),
        sections=fitted([section] if section else [], 2 * MOST_BYTES),
    )
    write_atomic(Path(path), page.encode("utf-8", "backslashreplace"))
    return Path(path)


def notebook_frame(file: FindingsFile) -> str:
    """The report in a frame of its own, so that neither its style nor its script meets the notebook's."""
    page = escape(render([RunFiles.of(file)]))
    return (
        f'<iframe title="holdfast report" sandbox="allow-scripts allow-downloads" srcdoc="{page}" '
        'style="width: 100%; height: 40rem; border: 1px solid #8888; border-radius: 4px"></iframe>'
    )


def render_sections(title: str, facts: Sequence[str], top: Top, sections: Sequence[Section], numbers: str = "") -> str:
    """A page of sections, with its style and script and a policy that allows no others.

    top: what stands above them. numbers: JSON that the page offers to save.
    """
    folder = files("holdfast.reports") / "templates"
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digests = [hashlib.sha256(text.encode("utf-8")).digest() for text in (style, script)]
    own = [f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests]
    # Nothing may be loaded but pictures inside the page, and only our own style and script apply.
    policy = f"default-src 'none'; img-src data:; style-src {own[0]}; script-src {own[1]}; "
    policy += "base-uri 'none'; form-action 'none'"
    values = {"title": title, "facts": facts, "top": top, "sections": sections}
    values |= {"style": Markup(style), "script": Markup(script), "policy": policy, "numbers": numbers}
    return _environment().get_template("report.html").render(**values)


def _title(labels: Sequence[str], sets: Collection[str]) -> str:
    """What a browser's tab has room for.

    >>> _title(["erm", "lff"], {"digits"}), _title(["a", "b", "c", "d", "e"], {"digits", "mnist"})
    ('erm, lff on digits', 'a, b, c and 2 more')
    """
    shown = ", ".join(labels[:MOST_TITLES])
    more = f" and {len(labels) - MOST_TITLES} more" if len(labels) > MOST_TITLES else ""
    return _on(shown + more, "" if len(sets) > 1 else "".join(sets))


def _on(what: str, data: object) -> str:
    return f"{what} on {data}" if data else what


def _numbers(runs: Sequence[RunFiles]) -> Markup:
    """Every number with all its digits, as JSON that no name can end; what would make the page too long is named."""
    room, given = MOST_NUMBERS, []
    for run in runs:
        own = [finding for finding in run.findings if finding.value is not None]
        room -= len(own)
        kept = [{key: getattr(f, key) for key in KEPT} for f in own] if room >= 0 else f"{len(own)} in findings.json"
        checks = [asdict(record) for record in run.checks]
        given.append({"name": run.name, "checks": checks, "gates": run.gates, "findings": kept})
    text = json.dumps(without_nan(given), separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _facts(runs: Sequence[RunFiles]) -> list[str]:
    shared, _ = varying(flat(run.settings) for run in runs)
    sets = {arm.data for arm in arms(runs)} - {""}
    facts = [sets.pop()] if len(sets) == 1 else []
    facts += [setting(shared["model"])] if "model" in shared else []
    epochs = [f"{setting(n)} epoch{'' if n == 1 else 's'}" for n in [shared.get("epochs")] if "epochs" in shared]
    return [*facts, *epochs, f"{len(runs)} runs" if len(runs) > 1 else runs[0].name]


@cache
def _environment() -> Environment:
    whitespace: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    strict: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "finalize": _finalize}
    made = Environment(loader=PackageLoader("holdfast.reports"), **strict, **whitespace)
    made.filters |= {"series": series, "kind": lambda block: type(block).__name__, "unbroken": unbroken}
    return made


def _finalize(value: Any) -> Any:
    """Every text that is not markup already loses its control characters before it is escaped."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value
