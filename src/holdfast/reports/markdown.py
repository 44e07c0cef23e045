"""An audit as Markdown, for a pull request or a pipeline's summary page; made from findings files alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.printable import one_line
from holdfast.reports.blocks import Table
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.overview import gates, overview, side_by_side, title, verdict
from holdfast.reports.report_tables import findings_list, leads, paired
from holdfast.reports.robustness_summary import drop_clauses, drop_table, robustness
from holdfast.reports.text import setting

MOST_ROWS = 200
"""Findings of a check listed one by one; a summary page holds a megabyte."""
SPECIAL = re.compile(r"([\\`*_{}\[\]#!|~$])")
"""What markup or a formula could start with."""
INSTEAD = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;&#8203;", "://": ":&#8203;//", "www.": "www&#8203;."}
"""HTML stays text; nobody is mentioned, and no address becomes a link."""


def markdown(files: Sequence[FindingsFile]) -> str:
    """Models side by side where there are several; then a chapter per model: verdict, gates, checks, every number."""
    lines: list[str] = []
    if len(files) > 1:
        names = [str(file.model.get("name") or "model") for file in files]
        lines += ["## Side by side", "", *table(side_by_side(files, names)), ""]
        named = zip(files, names, strict=True)
        pairs = paired([row for file, name in named for row in leads(file.findings, file.measures, name)])
        lines += [f"### {escape(pairs.caption)}", "", *table(pairs), "", escape(pairs.note), ""] if pairs else []
    return "\n".join([*lines, *(line for file in files for line in _chapter(file))])


def _chapter(file: FindingsFile) -> list[str]:
    lines = [f"## {escape(title(file))}", "", escape(verdict(file)), ""]
    warnings = [f"- {escape(text)}" for text in file.warnings]
    lines += ["### Warnings", "", *warnings, ""] if warnings else []
    shares = robustness(file.findings, file.measures, file.gates)
    if drop_clauses(shares):
        lines += ["### Drops", "", *table(drop_table(shares, "")), ""]
    made = gates(file)
    lines += ["### Gates", "", *table(made), ""] if made is not None else []
    lines += ["### Checks", "", *table(overview(file)), ""]
    for check in dict.fromkeys(f.check for f in file.findings if f.value is not None):
        found = [f for f in file.findings if f.check == check and f.value is not None]
        rows = table(findings_list(found[:MOST_ROWS], file.measures))
        more = [f"{len(found) - MOST_ROWS} more in findings.json."] if len(found) > MOST_ROWS else []
        summary = f"<details><summary>{escape(check)}: {len(found)} numbers</summary>"
        lines += [summary, "", *rows, *more, "", "</details>", ""]
    return [*lines, *_repeat(file)]


def _repeat(file: FindingsFile) -> list[str]:
    known = [name for name in ("holdfast", "torch", "device", "seed") if name in file.run]
    facts = [f"{name} {setting(file.run[name])}" for name in known]
    hashes = {"weights": file.model.get("hash"), "data": file.data.get("hash")}
    facts += [f"{name} {str(value)[:12]}" for name, value in hashes.items() if value]
    lines = [escape(", ".join(facts)), ""] if facts else []
    if file.run.get("command"):
        lines += ["Repeat it:", "", f"    {one_line(str(file.run['command']))}", ""]
    return lines


def table(block: Table) -> list[str]:
    rule = ["---:" if column.numeric else "---" for column in block.columns]
    rows = [[column.title for column in block.columns], *([cell.text for cell in row] for row in block.rows)]
    head, *body = ["| " + " | ".join(map(escape, row)) + " |" for row in rows]
    return [head, "| " + " | ".join(rule) + " |", *body]


def escape(text: str) -> str:
    r"""Text that stays text: no markup, no HTML, no mention, one line.

    >>> print(escape("a|b <script> *x* @me"))
    a\|b &lt;script&gt; \*x\* &#64;&#8203;me
    """
    safe = SPECIAL.sub(r"\\\1", one_line(text))
    for special, word in INSTEAD.items():
        safe = safe.replace(special, word)
    return safe
