"""An audit at a glance: the tables that the terminal, Markdown and JUnit share, made from a findings file alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.printable import one_line
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.report_tables import shown
from holdfast.reports.robustness_summary import sentence, stands
from holdfast.reports.text import exact, finite, part
from holdfast.types import Finding

Where = dict[str, str]
PAPER: Where = {"strength": "1"}
STRONGEST: Where = {"attack": "strongest", "access": "any"}
HEADLINES: dict[str, tuple[tuple[str, Where, str], ...]] = {
    "accuracy": (
        ("accuracy", {}, "accuracy"),
        ("accuracy", {"reading": "all"}, "accuracy among all classes of the model"),
        ("nll", {}, "negative log-likelihood"),
        ("ece", {}, "calibration error"),
    ),
    "groups": (
        ("worst_group_accuracy", {}, "accuracy in the worst group"),
        ("group_balanced_accuracy", {}, "group-balanced accuracy"),
        ("cell_gap", {}, "gap between best and worst cell"),
    ),
    "slices": (("confirmed_slices", {}, "weak parts confirmed"),),
    "corruptions": (
        ("mean_corruption_accuracy", PAPER, "accuracy, mean of eight corruptions"),
        ("mean_corruption_drop", PAPER, "drop, mean of eight corruptions"),
    ),
    "attacks": (
        ("attack_error", STRONGEST, "error, strongest attack within {radius}"),
        ("trusted", {}, "trust checks passed"),
    ),
    "ood": (
        ("ood_auroc", {"score": "msp"}, "AUROC of the confidence"),
        ("ood_auroc", {"score": "vim"}, "AUROC of ViM"),
    ),
    "curvature": (("top_eigenvalue", {}, "λ1"), ("eigenvalue_ratio", {}, "λ1/λ5")),
    "saliency": (("saliency_half_area", {}, "area that holds half of the map"),),
    "against": (
        ("lead", {"measure": "accuracy"}, "lead over {against}"),
        ("mcnemar_p", {"measure": "accuracy"}, "McNemar's p against {against}"),
        ("lead", {"measure": "bias_conflicting_accuracy"}, "lead over {against} against the shortcut"),
        ("lead", {"measure": "mean_corruption_accuracy", **PAPER}, "lead over {against}, mean of eight corruptions"),
        ("lead", {"measure": "robust_accuracy", "radius": "8/255"}, "lead over {against} under attack, 8/255"),
        ("lead", {"measure": "ood_auroc", "score": "msp"}, "lead over {against} in AUROC of the confidence"),
    ),
}
"""The numbers of a check that stand for it: name, what their part must at least say, and words for people."""
OPEN = frozenset({"attacks"})
"""Checks whose headlines may say more of their part, such as each radius."""
UNTOLD = ("column", "against")
"""What a part may say that no headline asks for."""


def headlines(file: FindingsFile, check: str) -> list[tuple[str, Finding]]:
    """The findings that stand for a check, each with its words."""
    found = []
    for name, where, words in HEADLINES.get(check, ()):
        for f in file.findings:
            own = {k: v for k, v in f.where.items() if k not in UNTOLD}
            fits = own.items() >= where.items() if check in OPEN else own == where
            if (f.check, f.name) == (check, name) and fits and f.value is not None:
                rest = {k: v for k, v in f.where.items() if k not in where and f"{{{k}}}" not in words}
                said = _filled(words, f.where)
                found.append((f"{said}, {part(rest)}" if rest else said, f))
    return found


def _filled(words: str, where: Mapping[str, str]) -> str:
    """Names are put in as they are; braces in them mean nothing.

    >>> _filled("lead over {against}", {"against": "{x}"})
    'lead over {x}'
    """
    for key in ("radius", "against"):
        before, mark, after = words.partition(f"{{{key}}}")
        if mark:
            return before + str(where.get(key, "?")) + after
    return words


def _records(file: FindingsFile) -> list[Mapping[str, Any]]:
    checks: list[Mapping[str, Any]] = [*file.checks]
    if any(f.check == "against" for f in file.findings):
        checks.append({"name": "against", "state": "measured", "reason": ""})
    return checks


def overview(file: FindingsFile) -> Table:
    """One row a check, with its state and headline numbers; what was not measured says why."""
    rows = []
    for record in _records(file):
        name, state = str(record["name"]), str(record["state"])
        numbers = headlines(file, name) if state == "measured" else []
        for what, f in numbers:
            value, span = shown(f)
            cells = (Cell(value, finite(f.value)), Cell(span, finite(f.low)), Cell(f"{f.n:,}", f.n))
            rows.append((Cell(name), Cell(state), Cell(what), *cells))
        if not numbers:
            rows.append((Cell(name), Cell(state), Cell(str(record.get("reason", ""))), Cell(""), Cell(""), Cell("")))
    columns = (
        Column("check"), Column("state"), Column("measure"), Column("value", numeric=True),
        Column("95 % interval", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    return Table(title(file), columns, tuple(rows))


def side_by_side(files: Sequence[FindingsFile], names: Sequence[str]) -> Table:
    """The numbers of :func:`overview` for several models: one row a number, one column a model."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    for i, file in enumerate(files):
        for record in file.checks:
            check, state = str(record["name"]), str(record["state"])
            numbers = headlines(file, check) if state == "measured" else []
            for what, f in numbers:
                value, span = shown(f)
                row = cells.setdefault((check, what), [Cell("")] * len(files))
                row[i] = Cell(f"{value} ({span})" if span else value, finite(f.value))
            if state != "measured":
                row = cells.setdefault((check, "state"), [Cell("measured")] * len(files))
                reason = record.get("reason")
                row[i] = Cell(f"{state}: {reason}" if reason else state)
    columns = (Column("check"), Column("measure"), *(Column(name, numeric=True) for name in names))
    order = {name: i for i, name in enumerate(dict.fromkeys(str(r["name"]) for f in files for r in f.checks))}
    rows = sorted(cells.items(), key=lambda item: order[item[0][0]])
    note = "In parentheses: the 95 % interval."
    return Table("Every check", columns, tuple((Cell(f), Cell(w), *own) for (f, w), own in rows), note)


def gates(file: FindingsFile) -> Table | None:
    """One row a gate; None where none was set."""
    if not file.gates:
        return None
    rows = []
    for gate in file.gates:
        value, low, high = (finite(gate.get(key)) for key in ("value", "low", "high"))
        span = "" if low is None or high is None else f"{exact(low)} to {exact(high)}"
        rows.append(
            (
                Cell(str(gate["name"])),
                Cell("holds" if gate["passed"] else "FAILED", strong=not gate["passed"]),
                Cell("" if value is None else exact(value), value),
                Cell(span, low),
                Cell(f"{gate.get('n', 0):,}", gate.get("n", 0)),
                Cell(str(gate.get("reason", ""))),
            )
        )
    columns = (
        Column("gate"), Column("verdict"), Column("value", numeric=True), Column("95 % interval", numeric=True),
        Column("n", numeric=True), Column("why"),
    )  # fmt: skip
    return Table("Gates", columns, tuple(rows))


def title(file: FindingsFile) -> str:
    """Which model on which data."""
    return f"{file.model.get('name') or 'model'} on {file.data.get('name') or 'data'}"


def verdict(file: FindingsFile) -> str:
    """What drops, then the states of the checks and the gates; one line."""
    words, told = sentence(stands(file.findings, file.gates)), states(file.checks, file.gates)
    return one_line(f"{words}. {told}" if words else told)


def states(checks: Sequence[Mapping[str, Any]], gates: Sequence[Mapping[str, Any]]) -> str:
    """How many checks were measured, which crashed, and how many gates hold."""
    failed = sum(not gate["passed"] for gate in gates)
    crashed = [str(r["name"]) for r in checks if r["state"] == "crashed"]
    measured = sum(r["state"] == "measured" for r in checks)
    words = [f"{measured} of {len(checks)} checks measured"]
    if crashed:
        words.append(f"crashed: {', '.join(crashed)}")
    if gates:
        every = "the gate holds" if len(gates) == 1 else f"all {len(gates)} gates hold"
        words.append(f"{failed} of {len(gates)} gates failed" if failed else every)
    return "; ".join(words)
