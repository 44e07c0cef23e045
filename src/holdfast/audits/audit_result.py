"""What ``holdfast.audit`` returns: findings, states of checks, gates and warnings, to look up, show, save and compare.
Open this file to change what an audit offers in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.audits.gates import target_of
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import exists
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.findings_file import AGAINST, CheckRecord, FindingsFile, is_known, measure_of, read_findings
from holdfast.reports.html import notebook_frame, write_report
from holdfast.reports.notebook_tables import SideBySide, audit_html, data_frame
from holdfast.reports.overview import headlines, title
from holdfast.reports.report_tables import shown
from holdfast.reports.run_files import FINDINGS, RunFiles
from holdfast.reports.text import DIFFERENCE, bounds, part, quantity
from holdfast.types import Finding, Measure, Note, Unit

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found. In a notebook it shows itself as a table, with warnings first.

    files: findings, states of checks, gates and records of each model, the audited one first. notes: what was said on
    the way; those of level "warning" change how to read a number. out: the folder that was written, if one was.

    >>> from holdfast.types import Finding
    >>> found = (Finding("accuracy", "accuracy", 0.9, 100, 0.83, 0.94),)
    >>> record = CheckRecord("accuracy", "measured")
    >>> audit = Audit((FindingsFile(found, {"name": "mine"}, {"name": "photos"}, checks=(record,)),))
    >>> audit
    <Audit of mine on photos: 1 of 1 checks measured, 1 findings>
    >>> audit["accuracy"].value, audit.passed
    (0.9, True)
    """

    files: tuple[FindingsFile, ...]
    notes: tuple[Note, ...] = ()
    out: Path | None = None

    @classmethod
    def read(cls, folder: str | Path) -> Audit:
        """The audit in a folder that ``holdfast audit`` wrote; of several models, in the order of their names."""
        place = Path(folder)
        inside = [place / FINDINGS] if exists(place / FINDINGS) else sorted(place.glob(f"*/{FINDINGS}"))
        require(bool(inside), f"{place} holds no {FINDINGS}; give the folder of an audit or of a run")
        return cls(tuple(map(read_findings, inside)), out=place)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.files[0].findings

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        """What became of each check."""
        return self.files[0].checks

    @property
    def measures(self) -> Mapping[tuple[str, str], Measure]:
        """What the numbers are, by check and name."""
        return self.files[0].measures

    @property
    def gates(self) -> tuple[Mapping[str, Any], ...]:
        """What was demanded, and whether it holds."""
        return self.files[0].gates

    @property
    def warnings(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.level == "warning")

    @property
    def passed(self) -> bool:
        """Whether every check ran through and every gate holds."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 passed, 1 a gate failed, 3 a check crashed: an audit that is not whole is not a verdict."""
        if any(record.state == "crashed" for file in self.files for record in file.checks):
            return 3
        return 1 if any(not gate["passed"] for file in self.files for gate in file.gates) else 0

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __contains__(self, name: object) -> bool:
        """Whether a measure has a finding; hyphens do for underscores."""
        return isinstance(name, str) and _measure_name(name)[0] in {f.name for f in self.findings}

    def __getitem__(self, name: str) -> Finding:
        """The finding of a measure, as a gate names it: ``audit["robust_accuracy@8/255"]``; hyphens do for underscores.

        Of several group columns the lowest; for what has no gate, the finding on all of the data, or the first.
        """
        require(isinstance(name, str), f"a finding is looked up by the name of its measure, got {name!r}")
        wanted, name = _measure_name(name)
        measured = [f for f in self.findings if f.name == wanted]
        try:
            own = list(target_of(name).find(self.findings).values())
        except HoldfastError:  # what is no gate
            own = []
        if not own and not measured:
            raise unknown("measure", name, dict.fromkeys(f.name for f in self.findings))
        own = own or [f for f in measured if not f.where] or measured[:1]
        return min(own, key=lambda f: (f.value is None, f.value))

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per number: model, check, measure, part, value, low, high, n, unit and which way is better."""
        made = []
        for file in self.files:
            for f in file.findings:
                if f.value is None and not is_known(f.check, f.name, file.measures):
                    continue  # evidence alone
                measure = measure_of(f.check, f.name, file.measures)
                made.append(
                    {"model": file.model.get("name") or "model", **_key_columns(f), "value": f.value, "low": f.low}
                    | {"high": f.high, "n": f.n, "unit": measure.unit.value, "better": measure.better}
                )
        return made

    def to_dataframe(self) -> pandas.DataFrame:
        """:meth:`rows` as a pandas data frame. Needs the extra ``holdfast[pandas]``."""
        return data_frame(self.rows())

    def report(self, path: str | Path) -> Path:
        """Write the report, a page of its own."""
        return write_report([RunFiles.of(file) for file in self.files], Path(path))

    def show(self) -> Any:
        """The whole report of the audited model inside a notebook, in a frame of its own."""
        try:
            ipython: Any = import_module("IPython.display")
        except ImportError as error:
            raise HoldfastError("show() is for notebooks; write the page with report('report.html')") from error
        return ipython.HTML(notebook_frame(self.files[0]))

    def compare(self, other: Audit | str | Path) -> SideBySide:
        """This audit beside another: every number that both have, the difference, and whether it is beyond chance.

        other: an audit, or the folder of one. Intervals treat the two as independent samples; ``holdfast.audit(...,
        against=...)`` compares two models on the same images instead, which shows smaller differences.
        """
        theirs = other if isinstance(other, Audit) else Audit.read(other)
        ours, base = self.files[0], theirs.files[0]
        heading, notes = f"{title(ours)}, compared with {title(base)}", []
        if ours.data.get("hash") != base.data.get("hash"):
            notes.append("the two were measured on different images: differences are of the data, too")
        found = {_key(f): f for f in base.findings if f.value is not None and f.check != AGAINST}
        pairs = [(f, found[_key(f)]) for f in ours.findings if f.value is not None and _key(f) in found]
        rows = {_key(f): _compared(f, was, measure_of(f.check, f.name, ours.measures)) for f, was in pairs}
        order = dict.fromkeys(record.name for record in ours.checks) or dict.fromkeys(f.check for f in ours.findings)
        main = [(what, f) for check in order for what, f in headlines(ours, check) if _key(f) in rows]
        cells = []
        for what, f in main:
            both = (shown(f, ours.measures)[0], shown(found[_key(f)], base.measures)[0])
            apart = _difference_cells(rows[_key(f)], measure_of(f.check, f.name, ours.measures))
            cells.append((Cell(f.check), Cell(what), *map(Cell, both), *apart))
        columns = Column.texts("check", "measure") + Column.numbers("this", "other", "difference", "95 % interval")
        table = Table("", columns + Column.texts("verdict"), tuple(cells))
        return SideBySide(heading, table, tuple(rows.values()), tuple(notes))

    def _repr_html_(self) -> str:
        """In a notebook: warnings, the verdict, gates and headline numbers; :meth:`show` has the whole report."""
        return audit_html(self.files, [str(note) for note in self.warnings])

    def __repr__(self) -> str:
        of, on = self.files[0].model.get("name"), self.files[0].data.get("name")
        states = [record.state for record in self.checks]
        words = [f"{states.count('measured')} of {len(states)} checks measured"]
        words += [f"{len(self.warnings)} warnings"] if self.warnings else []
        if held := [bool(gate["passed"]) for gate in self.gates]:
            one = "the gate holds" if all(held) else "the gate failed"
            words.append(one if len(held) == 1 else f"{sum(held)} of {len(held)} gates hold")
        return f"<Audit of {of} on {on}: {', '.join(words)}, {len(self)} findings>"


def _measure_name(name: str) -> tuple[str, str]:
    """(measure, as a gate names it): a part follows an @ or a colon.

    >>> _measure_name("robust-accuracy@8/255"), _measure_name("class_accuracy:black-cat")
    (('robust_accuracy', 'robust_accuracy@8/255'), ('class_accuracy', 'class_accuracy:black-cat'))
    """
    measure = re.split("[@:]", name, maxsplit=1)[0]
    plain = measure.replace("-", "_")
    return plain, plain + name[len(measure) :]


def _key(finding: Finding) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return finding.check, finding.name, tuple(sorted(finding.where.items()))


def _key_columns(finding: Finding) -> dict[str, str]:
    return {"check": finding.check, "measure": finding.name, "part": part(finding.where)}


def _compared(ours: Finding, theirs: Finding, measure: Measure) -> dict[str, Any]:
    """Two findings of one measure. The interval of the difference is built from both (MOVER: Zou and Donner, 2008)."""
    assert ours.value is not None
    assert theirs.value is not None
    value, low, high = ours.value - theirs.value, None, None
    if not any(end is None for end in (ours.low, ours.high, theirs.low, theirs.high)):
        low = value - math.hypot(ours.value - ours.low, theirs.high - theirs.value)  # type: ignore[operator]
        high = value + math.hypot(ours.high - ours.value, theirs.value - theirs.low)  # type: ignore[operator]
    verdict = ""
    if low is not None and high is not None and measure.better != "neither" and not low <= 0 <= high:
        verdict = "better" if (value > 0) == (measure.better == "higher") else "worse"
    made: dict[str, Any] = {**_key_columns(ours), "this": ours.value, "other": theirs.value, "difference": value}
    return made | {"low": low, "high": high, "verdict": verdict}


def _difference_cells(row: Mapping[str, Any], measure: Measure) -> tuple[Cell, Cell, Cell]:
    unit = DIFFERENCE if measure.unit in (Unit.PERCENT, Unit.POINTS) else measure
    sign = "+" if row["difference"] > 0 else ""
    span = bounds(row["low"], row["high"], unit)
    verdict = row["verdict"] or ("" if row["low"] is None else "within chance")
    return (
        Cell(sign + quantity(unit, row["difference"]), row["difference"]),
        Cell(span, row["low"]),
        Cell(verdict, strong=row["verdict"] == "worse"),
    )
