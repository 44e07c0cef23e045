"""An audit at a glance: the tables that the terminal, Markdown and JUnit share, made from a findings file alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.findings import FindingsFile
from holdfast.reports.tables import EMPTY
from holdfast.reports.text import finite, part, quantity
from holdfast.types import Finding

Where = dict[str, str]
SHARED: Where = {"corruption": "mean of eight", "strength": "1"}
HEADLINES: dict[str, tuple[tuple[str, Where], ...]] = {
    "clean": (("accuracy", {}), ("accuracy", {"reading": "all"}), ("nll", {}), ("ece", {})),
    "groups": (("worst-group", {}), ("balanced-accuracy", {}), ("gap", {"between": "best and worst cell"})),
    "slices": (("confirmed", {}),),
    "corruptions": (("accuracy", SHARED), ("drop", SHARED)),
    "attacks": (("error", {"attack": "strongest", "access": "any"}), ("trusted", {})),
    "unknown": (("auroc", {"score": "msp"}), ("auroc", {"score": "vim"})),
    "curvature": (("lambda-1", {}), ("lambda-1/lambda-5", {})),
    "saliency": (("half-area", {}),),
    "against": (("lead", {}), ("mcnemar-p", {})),
}
"""The numbers of a front that stand for it: name, and what their part must at least say."""
OPEN = frozenset({"attacks", "against"})
"""Fronts whose headlines may say more of their part, such as each radius."""


def shown(finding: Finding) -> tuple[str, str]:
    """(value, interval) of a finding as every rendering writes them."""
    value, low, high = finite(finding.value), finite(finding.low), finite(finding.high)
    text = EMPTY if value is None else quantity(finding.name, value)
    if low is None or high is None:
        return text, ""
    return text, f"{quantity(finding.name, low)} to {quantity(finding.name, high)}"


def headlines(file: FindingsFile, front: str) -> list[Finding]:
    """The findings that stand for a front."""
    found = []
    for name, where in HEADLINES.get(front, ()):
        for f in file.findings:
            own = {k: v for k, v in f.where.items() if k != "column"}
            fits = own.items() >= where.items() if front in OPEN else own == where
            if (f.front, f.name) == (front, name) and fits and f.value is not None:
                found.append(f)
    return found


def overview(file: FindingsFile) -> Table:
    """One row a front, with its state and headline numbers; what was not measured says why."""
    rows = []
    fronts = [*file.fronts]
    if any(f.front == "against" for f in file.findings):
        fronts.append({"name": "against", "state": "measured", "reason": ""})
    for record in fronts:
        name, state = str(record["name"]), str(record["state"])
        numbers = headlines(file, name) if state == "measured" else []
        for f in numbers:
            value, interval = shown(f)
            what = f.name if not f.where else f"{f.name}, {part(f.where)}"
            rows.append(
                (
                    Cell(name),
                    Cell(state),
                    Cell(what),
                    Cell(value, f.value),
                    Cell(interval, f.low),
                    Cell(f"{f.n:,}", f.n),
                )
            )
        if not numbers:
            rows.append((Cell(name), Cell(state), Cell(str(record.get("reason", ""))), Cell(""), Cell(""), Cell("")))
    columns = (
        Column("front"), Column("state"), Column("measure"), Column("value", numeric=True),
        Column("95 % interval", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    return Table(title(file), columns, tuple(rows))


def gates(file: FindingsFile) -> Table | None:
    """One row a gate; None where none was set."""
    if not file.gates:
        return None
    rows = []
    for gate in file.gates:
        value, low, high = (_number(gate, key) for key in ("value", "low", "high"))
        interval = "" if low is None or high is None else f"{low:.4f} to {high:.4f}"
        rows.append(
            (
                Cell(str(gate["name"])),
                Cell("holds" if gate["passed"] else "FAILED"),
                Cell("" if value is None else f"{value:.4f}", value),
                Cell(interval, low),
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
    """One line: gates first, then crashes, then what was measured."""
    failed = sum(not gate["passed"] for gate in file.gates)
    crashed = [str(r["name"]) for r in file.fronts if r["state"] == "crashed"]
    measured = sum(r["state"] == "measured" for r in file.fronts)
    words = [f"{measured} of {len(file.fronts)} fronts measured"]
    if crashed:
        words.append(f"crashed: {', '.join(crashed)}")
    if file.gates:
        words.append(f"{failed} of {len(file.gates)} gates failed" if failed else f"all {len(file.gates)} gates hold")
    return "; ".join(words)


def _number(gate: Mapping[str, Any], key: str) -> float | None:
    value = gate.get(key)
    return finite(float(value)) if isinstance(value, (int, float)) else None
