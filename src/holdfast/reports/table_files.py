"""A table as a file for other programs: LaTeX for a paper, CSV with every number by itself for everything else."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.printable import one_line
from holdfast.reports.blocks import Table

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
