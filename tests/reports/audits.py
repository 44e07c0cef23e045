"""A findings file as an audit leaves it, with every state and a failed gate."""

from __future__ import annotations

from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.types import Finding


def audited(name: str = "net", cls: str = "cat") -> FindingsFile:
    return FindingsFile(
        findings=(
            Finding("accuracy", "accuracy", 0.712, 1642, 0.66, 0.75),
            Finding("accuracy", "accuracy", 0.5, 10, 0.2, 0.8, {"class": cls}),
            Finding("accuracy", "nll", 0.83124, 1642, 0.8, 0.9),
            Finding("accuracy", "accuracy", None, 0, where={"class": "none"}),
            Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": "no groups"}),
        ),
        model={"name": name, "hash": "ab" * 32, "warnings": ["look here"]},
        data={"name": "digits", "hash": "cd" * 32},
        run={"command": "holdfast audit net --data digits", "seed": 0, "holdfast": "0.1.0"},
        checks=(
            CheckRecord("accuracy", "measured", "", seconds=1.5),
            CheckRecord("groups", "not applicable", "no groups", seconds=0.0),
            CheckRecord("attacks", "crashed", f"RuntimeError: {cls}", seconds=0.1),
            CheckRecord("saliency", "skipped", "not asked for", seconds=0.0),
        ),
        gates=(
            {"name": "accuracy >= 0.7", "passed": True, "value": 0.712, "low": 0.66, "high": 0.75, "n": 1642},
            {"name": "accuracy >= 0.9", "passed": False, "value": 0.712, "n": 1642,
             "reason": "value 0.7120 is under 0.9"},
        ),
    )  # fmt: skip
