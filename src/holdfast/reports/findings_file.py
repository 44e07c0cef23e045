"""findings.json: what was measured, and all that a report is made from. Its schema: docs/reference/findings.md.

Keys may be added within a version, and readers leave those alone that they do not know; the version changes when a key
that is there changes its meaning. Titles, units and directions stand in the file, so that a report of a third party's
check needs nothing of it installed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, brief, cut
from holdfast.files import exists, reading, write_atomic
from holdfast.parts import CHECKS
from holdfast.types import Finding, Measure, Note, Unit

FORMAT = "holdfast-findings"
VERSION = 2

AGAINST = "against"
"""What findings that compare two models on the same samples stand under, in place of a check."""
PAIRED = (
    Measure("lead", "lead", Unit.POINTS, headline=True),
    Measure("mcnemar_p", "McNemar's p", Unit.P_VALUE, "neither"),
    Measure("delong_p", "DeLong's p", Unit.P_VALUE, "neither"),
)

MOST_DIGITS = 20
"""After the point: more than a number has."""

Measures = Mapping[tuple[str, str], Measure]


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """What became of one check.

    state: "measured", "not applicable", "crashed" or "skipped". reason: why it is not measured. settings: what it was
    set to beyond its defaults. seconds: how long it took. notes: what happened on the way. asked: whether it was
    selected at all.
    """

    name: str
    state: str
    reason: str = ""
    title: str = ""
    about: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notes: tuple[Note, ...] = ()
    asked: bool = True

    @classmethod
    def of(cls, values: CheckRecord | Mapping[str, Any]) -> CheckRecord:
        if isinstance(values, CheckRecord):
            return values
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["notes"] = tuple(as_note(note) for note in values.get("notes") or ())
        return cls(**known)

    def declared(self) -> CheckRecord:
        """With title and about as the check declares them, where it is installed."""
        if self.title or self.name not in CHECKS:
            return self
        return replace(self, title=CHECKS[self.name].title, about=CHECKS[self.name].about)


@dataclass(frozen=True, slots=True)
class FindingsFile:
    """The content of a findings file. Of what training writes, run, checks and gates are empty.

    model: which, its hash, and how it was aligned. data: which, its hash and classes. run: command, versions, seed.
    checks: what became of each. measures: what the numbers are. gates: what must be reached, and whether it is.
    """

    findings: tuple[Finding, ...]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[CheckRecord, ...] = ()
    measures: Measures = field(default_factory=dict)
    gates: tuple[Mapping[str, Any], ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What changes how to read the numbers: said of the data and the model, by checks and beside findings."""
        given = (record.get("warnings") for record in (self.data, self.model))
        said = [text for texts in given if isinstance(texts, list | tuple) for text in texts if isinstance(text, str)]
        said += [f"{r.name}: {note}" for r in self.checks for note in r.notes if note.level == "warning"]
        said += [f"{f.check}: {text}" for f in self.findings if isinstance(text := f.evidence.get("warning"), str)]
        return tuple(dict.fromkeys(said))


@cache
def declared_measures(check: str) -> Mapping[str, Measure]:
    declared = PAIRED if check == AGAINST else CHECKS[check].measures if check in CHECKS else ()
    return {measure.name: measure for measure in declared}


def measure_of(check: str, name: str, measures: Measures) -> Measure:
    """What a number is: as the file says; for bare findings as the check declares; else a number by its name."""
    known = measures.get((check, name)) or declared_measures(check).get(name)
    return known or Measure(name, name.replace("_", " "), Unit.NUMBER, "neither")


def is_known(check: str, name: str, measures: Measures) -> bool:
    """Whether a name is of a measure; other findings carry evidence alone."""
    return (check, name) in measures or name in declared_measures(check)


def all_measures(measures: Measures) -> Measures:
    """The measures of a file; for bare findings, all that installed checks declare."""
    every = [*CHECKS, AGAINST] if not measures else []
    return measures or {(check, m.name): m for check in every for m in declared_measures(check).values()}


def as_note(value: Note | Mapping[str, Any] | str) -> Note:
    return value if isinstance(value, Note) else Note("note", value) if isinstance(value, str) else Note(**value)


def write_findings(
    path: str | Path,
    findings: Iterable[Finding],
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
    checks: Sequence[CheckRecord | Mapping[str, Any]] = (),
    measures: Mapping[str, Iterable[Measure]] | None = None,
    gates: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the file whole or not at all. JSON has no NaN and no infinity: they become null.

    measures: by the name of what declares them, for findings that are not of a declared check.
    """
    found, records = tuple(findings), [CheckRecord.of(record).declared() for record in checks]
    names = dict.fromkeys([*(r.name for r in records), *(f.check for f in found)])
    known = {(check, m.name): m for check in names for m in declared_measures(check).values()}
    known |= {(check, m.name): m for check, given in (measures or {}).items() for m in given}
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": model, "data": data}
    extra = {
        "run": run or {},
        "checks": [asdict(record) for record in records],
        "measures": [{"check": check, **asdict(m), "unit": m.unit.name.lower()} for (check, _), m in known.items()],
        "gates": list(gates),
    }
    content |= {key: value for key, value in extra.items() if value}
    content["findings"] = [finding.to_json() for finding in found]
    plain = without_nan(content)
    write_json(path, {**plain, "digest": _digest(plain)})


def _check_record(values: Mapping[str, Any]) -> CheckRecord:
    _typed(values, dict.fromkeys(("name", "state", "reason", "title", "about"), (str,)))
    _typed(values, {"settings": (dict,), "seconds": (float, int), "notes": (list,), "asked": (bool,)})
    for note in values.get("notes", ()):
        if not isinstance(note, str):
            _typed(note, dict.fromkeys(note, (str,)))
    return CheckRecord.of(values)


def _measure(values: Mapping[str, Any]) -> Measure:
    texts = ("check", "name", "title", "better", "part", "usual_part", "of", "drop", "drop_from", "about")
    flags = ("gate", "headline", "data_part", "changed_images")
    _typed(values, dict.fromkeys(texts, (str,)) | dict.fromkeys(flags, (bool,)))
    _typed(values, {"headline_where": (dict,), "digits": (int, type(None)), "poor": (float, int, type(None))})
    _typed(values, {"remedies": (list,)})
    if not 0 <= (values.get("digits") or 0) <= MOST_DIGITS:
        raise TypeError(f"digits is {values['digits']}")
    known = {f.name: values[f.name] for f in fields(Measure) if f.name in values}
    known["remedies"] = tuple(text for text in values.get("remedies", ()) if isinstance(text, str))
    declared = declared_measures(str(values["check"])).get(str(values["name"]))
    if declared and "about" not in values:  # a file of a version that did not write these
        known |= {key: getattr(declared, key) for key in ("about", "changed_images", "poor", "remedies")}
    return Measure(**known | {"unit": Unit.__members__.get(str(values["unit"]).upper(), Unit.NUMBER)})


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    text = json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    # A lone surrogate, as in a file name that is not UTF-8, is escaped: it has no encoding.
    write_atomic(Path(path), text.encode("utf-8", "backslashreplace") + b"\n")


def read_findings(path: str | Path) -> FindingsFile:
    path = Path(path)
    again = "measure again to make a new one"
    if not exists(path):
        raise HoldfastError(f"no findings file at {path}; measure the model first")
    try:
        with reading():
            content = json.loads(path.read_bytes(), parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets inside brackets without an end
        raise HoldfastError(f"{path} is truncated or not JSON ({error}); {again}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise HoldfastError(f'{path} is not a findings file: it lacks \'"format": "{FORMAT}"\'; {again}')
    if content.get("version") != VERSION:
        raise HoldfastError(
            f"{path} has findings version {content.get('version')!r}, this holdfast reads version {VERSION}; {again}, "
            "or use the holdfast that wrote it"
        )
    try:
        return FindingsFile(
            findings=tuple(finding(values) for values in content["findings"]),
            model=_checked(content, "model", dict),
            data=_checked(content, "data", dict),
            run=_checked({"run": {}, **content}, "run", dict),
            checks=tuple(map(_check_record, _records(content, "checks", "name", "state"))),
            measures={
                (values["check"], measure.name): measure
                for values in _records(content, "measures", "check", "name", "unit")
                for measure in (_measure(values),)
            },
            gates=tuple(map(_gate, _records(content, "gates", "name", "passed"))),
        )
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} is damaged ({cut(str(error))}); {again}") from None


def is_as_written(path: str | Path) -> bool:
    """Whether a findings file is what :func:`write_findings` left, by the digest in it."""
    try:
        content = json.loads(Path(path).read_bytes())
        return bool(content.pop("digest") == _digest(content))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a number")
    return value


def _whole(text: str) -> int:
    if not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError(f"{text[:20]}... has more than 64 bits")
    return value


def _gate(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("value", "low", "high", "threshold", "n"):
        _checked({key: None, **values}, key, float, int, type(None))
    return values


def finding(values: Any) -> Finding:
    """A finding from its JSON; a KeyError or TypeError names what is wrong with it."""
    kinds: dict[str, tuple[type, ...]] = dict.fromkeys(("value", "low", "high"), (float, int, type(None)))
    kinds |= dict.fromkeys(("check", "name"), (str,)) | dict.fromkeys(("where", "settings", "evidence"), (dict,))
    for key, allowed in (kinds | {"n": (int,)}).items():
        _checked(values, key, *allowed)
    return Finding.from_json({**values, "where": {k: str(v) for k, v in values["where"].items()}})


def _records(content: Mapping[str, Any], key: str, *needed: str) -> list[Mapping[str, Any]]:
    """A list of mappings that have these keys, the first of them text; none where the file has no such list."""
    found: list[Mapping[str, Any]] = _checked({key: [], **content}, key, list)
    for record in found:
        _checked(record, needed[0], str)
        for name in needed:
            record[name]
    return found


def _checked(values: Any, key: str, *kinds: type) -> Any:
    value = values[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{key} is {brief(value)}")
    return value


def _typed(values: Any, kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse values of other kinds; what is not there is as it is by default."""
    for key, allowed in kinds.items():
        if key in values:
            _checked(values, key, *allowed)


def without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): without_nan(v) for k, v in value.items()}
    return [without_nan(v) for v in value] if isinstance(value, (list, tuple)) else value
