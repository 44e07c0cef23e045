"""findings.json: what was measured, and all that a report is made from. Its schema: docs/reference/findings.md.

Keys may be added within a version, and readers leave those alone that they do not know; the version changes when a key
that is there changes its meaning. So files of older holdfasts stay readable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.files import write_atomic
from holdfast.types import Finding

FORMAT = "holdfast-findings"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FindingsFile:
    """The content of a findings file. Of what training writes, run, checks and gates are empty.

    model: which, its hash, and how it was aligned. data: which, its hash and classes. run: command, versions, seed.
    checks: name, state and reason of each. gates: what was demanded, and whether it holds.
    """

    findings: tuple[Finding, ...]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Mapping[str, Any], ...] = ()
    gates: tuple[Mapping[str, Any], ...] = ()

    def _repr_html_(self) -> str:
        """In a notebook: the report, in a frame of its own, so that neither's style or script meets the other's."""
        from markupsafe import escape

        from holdfast.reports.html import render
        from holdfast.reports.run_files import RunFiles

        page = escape(render([RunFiles.of(self)]))
        return (
            f'<iframe title="holdfast report" sandbox="allow-scripts allow-downloads" srcdoc="{page}" '
            'style="width: 100%; height: 40rem; border: 1px solid #8888; border-radius: 4px"></iframe>'
        )


def write_findings(
    path: str | Path,
    findings: Iterable[Finding],
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
    gates: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the file whole or not at all. JSON has no NaN and no infinity: they become null."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": model, "data": data}
    extra = {"run": run or {}, "checks": list(checks), "gates": list(gates)}
    content |= {key: value for key, value in extra.items() if value}
    content["findings"] = [finding.to_json() for finding in findings]
    write_json(path, content)


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    text = json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    # A lone surrogate, as in a file name that is not UTF-8, is escaped: it has no encoding.
    write_atomic(Path(path), text.encode("utf-8", "backslashreplace") + b"\n")


def read_findings(path: str | Path) -> FindingsFile:
    """What :func:`write_findings` wrote."""
    path = Path(path)
    again = "measure again to make a new one"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise HoldfastError(f"no findings file at {path}; measure the model first") from None
    except OSError as error:
        raise HoldfastError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise HoldfastError(f"{path} is truncated or not JSON ({error}); {again}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise HoldfastError(f'{path} is no findings file: it lacks \'"format": "{FORMAT}"\'; {again}')
    if content.get("version") != VERSION:
        raise HoldfastError(
            f"{path} has findings version {content.get('version')!r}, this holdfast reads {VERSION}; "
            f"use the holdfast that wrote it, or {again}"
        )
    try:
        return FindingsFile(
            findings=tuple(finding(values) for values in content["findings"]),
            model=_checked(content, "model", dict),
            data=_checked(content, "data", dict),
            run=_checked({"run": {}, **content}, "run", dict),
            checks=_records(content, "checks", "state"),
            gates=_records(content, "gates", "passed"),
        )
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} is damaged ({error}); {again}") from None


def finding(values: Any) -> Finding:
    """A finding from its JSON; a KeyError or TypeError names what is wrong with it."""
    for key in ("check", "name"):
        _checked(values, key, str)
    for key in ("where", "settings", "evidence"):
        _checked(values, key, dict)
    for key in ("value", "low", "high"):
        _checked(values, key, float, int, type(None))
    _checked(values, "n", int)
    return Finding.from_json({**values, "where": {k: str(v) for k, v in values["where"].items()}})


def _records(content: Mapping[str, Any], key: str, needed: str) -> tuple[Mapping[str, Any], ...]:
    """A list of mappings with a name and one more key; none in files that are older than the key."""
    found = _checked({key: [], **content}, key, list)
    for record in found:
        _checked(record, "name", str)
        record[needed]
    return tuple(found)


def _checked(values: Any, key: str, *kinds: type) -> Any:
    value = values[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{key} is {value!r}")
    return value


def without_nan(value: Any) -> Any:
    """Plain values as JSON can hold them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return value
