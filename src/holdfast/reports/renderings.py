"""The tables of a report elsewhere than on its page: on a terminal, as Markdown for a pull request or a pipeline's
summary page, as JUnit XML, which pipelines show as tests, as LaTeX for a paper, and as CSV with every number by
itself. Audits are rendered from findings files alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.printable import one_line
from holdfast.reports.arms import Arm, arms
from holdfast.reports.blocks import Cell, Table
from holdfast.reports.findings_file import CheckRecord, FindingsFile, Measures
from holdfast.reports.overview import gates, overview, side_by_side, title, verdict
from holdfast.reports.report_tables import findings_list, leads, method_table, paired, paired_table, shown
from holdfast.reports.robustness_summary import drop_clauses, drop_table, robustness
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import EXACT, finite, number, part, setting
from holdfast.types import Finding

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
        lines += ["## Side by side", "", *markdown_table(side_by_side(files, names)), ""]
        named = zip(files, names, strict=True)
        pairs = paired([row for file, name in named for row in leads(file.findings, file.measures, name)])
        lines += (
            [f"### {markdown_text(pairs.caption)}", "", *markdown_table(pairs), "", markdown_text(pairs.note), ""]
            if pairs
            else []
        )
    return "\n".join([*lines, *(line for file in files for line in _chapter(file))])


def _chapter(file: FindingsFile) -> list[str]:
    lines = [f"## {markdown_text(title(file))}", "", markdown_text(verdict(file)), ""]
    warnings = [f"- {markdown_text(text)}" for text in file.warnings]
    lines += ["### Warnings", "", *warnings, ""] if warnings else []
    shares = robustness(file.findings, file.measures, file.gates)
    if drop_clauses(shares):
        lines += ["### Drops", "", *markdown_table(drop_table(shares, "")), ""]
    made = gates(file)
    lines += ["### Gates", "", *markdown_table(made), ""] if made is not None else []
    lines += ["### Checks", "", *markdown_table(overview(file)), ""]
    for check in dict.fromkeys(f.check for f in file.findings if f.value is not None):
        found = [f for f in file.findings if f.check == check and f.value is not None]
        rows = markdown_table(findings_list(found[:MOST_ROWS], file.measures))
        more = [f"{len(found) - MOST_ROWS} more in findings.json."] if len(found) > MOST_ROWS else []
        summary = f"<details><summary>{markdown_text(check)}: {len(found)} numbers</summary>"
        lines += [summary, "", *rows, *more, "", "</details>", ""]
    return [*lines, *_repeat(file)]


def _repeat(file: FindingsFile) -> list[str]:
    known = [name for name in ("holdfast", "torch", "device", "seed") if name in file.run]
    facts = [f"{name} {setting(file.run[name])}" for name in known]
    hashes = {"weights": file.model.get("hash"), "data": file.data.get("hash")}
    facts += [f"{name} {str(value)[:12]}" for name, value in hashes.items() if value]
    lines = [markdown_text(", ".join(facts)), ""] if facts else []
    if file.run.get("command"):
        lines += ["Repeat it:", "", f"    {one_line(str(file.run['command']))}", ""]
    return lines


def markdown_table(block: Table) -> list[str]:
    rule = ["---:" if column.numeric else "---" for column in block.columns]
    rows = [[column.title for column in block.columns], *([cell.text for cell in row] for row in block.rows)]
    head, *body = ["| " + " | ".join(map(markdown_text, row)) + " |" for row in rows]
    return [head, "| " + " | ".join(rule) + " |", *body]


def markdown_text(text: str) -> str:
    r"""Text that stays text: no markup, no HTML, no mention, one line.

    >>> print(markdown_text("a|b <script> *x* @me"))
    a\|b &lt;script&gt; \*x\* &#64;&#8203;me
    """
    safe = SPECIAL.sub(r"\\\1", one_line(text))
    for special, word in INSTEAD.items():
        safe = safe.replace(special, word)
    return safe


FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold even as an entity."""


def junit(files: Sequence[FindingsFile]) -> str:
    """An audit as JUnit XML.

    A gate is a test case that passes or fails. A check is one too: an error where it crashed, skipped where it was not
    measured. Its numbers are properties of its case. A warning is a skipped case, so that viewers show its text.
    """
    root = ElementTree.Element("testsuites", name="holdfast audit")
    for file in files:
        name, states = xml_text(title(file)), [record.state for record in file.checks]
        counts = {
            "tests": len(file.checks) + len(file.gates) + len(file.warnings),
            "failures": sum(not gate["passed"] for gate in file.gates),
            "errors": states.count("crashed"),
            "skipped": states.count("skipped") + states.count("not applicable") + len(file.warnings),
        }
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **{k: str(v) for k, v in counts.items()}})
        for i, text in enumerate(map(xml_text, file.warnings), start=1):
            case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.warnings", name=f"warning {i}")
            ElementTree.SubElement(case, "skipped", message=f"warning: {text}")
        for gate in file.gates:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"{name}.gates", name=xml_text(str(gate["name"]))
            )
            if not gate["passed"]:
                text = xml_text(str(gate.get("reason") or "failed"))
                ElementTree.SubElement(case, "failure", message=text).text = _gate_numbers(gate)
        for record in file.checks:
            _check(suite, file, name, record)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _check(suite: ElementTree.Element, file: FindingsFile, name: str, record: CheckRecord) -> None:
    check, reason, seconds = xml_text(record.name), xml_text(record.reason), f"{record.seconds:.3f}"
    case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.checks", name=check, time=seconds)
    own = [f for f in file.findings if f.check == record.name and f.value is not None]
    if own:
        properties = ElementTree.SubElement(case, "properties")
        for f in own:
            value, span = shown(f, file.measures)
            text = value + (f" ({span})" if span else "") + f", n {f.n:,}"
            ElementTree.SubElement(properties, "property", name=xml_text(f"{f.name}, {part(f.where)}"), value=text)
    if record.state == "crashed":
        ElementTree.SubElement(case, "error", message=reason)
    elif record.state != "measured":
        ElementTree.SubElement(case, "skipped", message=f"{record.state}: {reason}")


def _gate_numbers(gate: Mapping[str, Any]) -> str:
    shares = {key: finite(gate.get(key)) for key in ("value", "low", "high")}
    words = [f"{key} {number(EXACT, share)}" for key, share in shares.items() if share is not None]
    words += [f"n {gate['n']:,}"] if gate.get("n") is not None else []
    words += [f"threshold {gate['threshold']:g}"] if gate.get("threshold") is not None else []
    return ", ".join(words)


def xml_text(text: str) -> str:
    r"""Text that XML can hold.

    >>> xml_text("a\x00b\ufffe")
    'a\\x00b'
    """
    return FORBIDDEN.sub("", one_line(text))


_LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
          "±": r"$\pm$", "Δ": r"$\Delta$", "λ": r"$\lambda$", "−": "--"}  # fmt: skip
_SPECIAL = re.compile(r"[\\{}~^±Δλ−$&#_%]")


def latex_text(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(latex_text("lff q=0.5, 50 % ± 1_a"))
    lff q=0.5, 50 \% $\pm$ 1\_a
    """
    return _SPECIAL.sub(lambda found: _LATEX.get(found[0], "\\" + found[0]), one_line(text))


def latex(table: Table) -> str:
    """A ``tabular`` with the rules of booktabs; the caption and the note are comments above it."""
    rows = [[latex_text(column.title) for column in table.columns]]
    rows += [
        [rf"\textbf{{{latex_text(c.text)}}}" if c.strong else latex_text(c.text) for c in row] for row in table.rows
    ]
    head, *body = [" & ".join(row) + r" \\" for row in rows]
    align = "".join("r" if column.numeric else "l" for column in table.columns)
    notes = [f"% {one_line(text)}" for text in (table.caption, table.note, r"needs \usepackage{booktabs}") if text]
    lines = [*notes, rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with one column per key of any of them, in the order in which they come; numbers in full.

    >>> csv_text([{"settings": "erm", "mean": 0.5}, {"settings": "a,b", "sd": None}]).splitlines()
    ['settings,mean,sd', 'erm,0.5,', '"a,b",,']
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    made = io.StringIO()
    writer = csv.DictWriter(made, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return made.getvalue()


def comparison_table(runs: Sequence[RunFiles]) -> RichTable:
    """Runs side by side, as in the report: one row per method, mean ± sample standard deviation over seeds."""
    return rich_table(method_table(arms(runs)))


def findings_table(findings: Iterable[Finding], measures: Measures | None = None) -> RichTable:
    """One row per finding: what, where, how much, the interval and the number of samples."""
    return rich_table(findings_list(findings, measures or {}))


def paired_console(
    compared: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None
) -> RichTable:
    table = rich_table(paired_table(compared, baseline, extra=extra))
    table.columns[0].no_wrap = True
    table.collapse_padding, table.pad_edge, table.show_edge = True, False, False  # seven columns in eighty letters
    return table


def rich_table(table: Table) -> RichTable:
    """Names go in as text, never as markup."""
    caption = Text(one_line(table.note), style="dim") if table.note else None
    rich = RichTable(title=Text(one_line(table.caption)), caption=caption, box=box.SIMPLE_HEAD)
    for column in table.columns:
        # fold: where a word is wider than its column, it continues below rather than being cut off
        rich.add_column(Text(one_line(column.title)), justify="right" if column.numeric else "left", overflow="fold")
    for row in table.rows:
        rich.add_row(*(Text(one_line(cell.text or "-"), style="bold" if cell.strong else "") for cell in row))
    return rich
