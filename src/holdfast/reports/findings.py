"""findings.json: what was measured, and all that a report is made from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.files import write_atomic
from holdfast.types import Finding

FORMAT = "holdfast-findings"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FindingsFile:
    """The content of a findings file."""

    findings: tuple[Finding, ...]
    model: Mapping[str, Any]
    data: Mapping[str, Any]


def write_findings(
    path: str | Path, findings: Iterable[Finding], *, model: Mapping[str, Any], data: Mapping[str, Any]
) -> None:
    """Write the file whole or not at all. JSON has no NaN and no infinity: they become null."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "data": data,
        "findings": [finding.to_json() for finding in findings],
    }
    text = json.dumps(_without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
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
            findings=tuple(_finding(values) for values in content["findings"]),
            model=_checked(content, "model", dict),
            data=_checked(content, "data", dict),
        )
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} is damaged ({error}); {again}") from None


def _finding(values: Any) -> Finding:
    for key in ("front", "name"):
        _checked(values, key, str)
    for key in ("where", "settings", "evidence"):
        _checked(values, key, dict)
    for key in ("value", "low", "high"):
        _checked(values, key, float, int, type(None))
    _checked(values, "n", int)
    return Finding.from_json({**values, "where": {k: str(v) for k, v in values["where"].items()}})


def _checked(values: Any, key: str, *kinds: type) -> Any:
    value = values[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{key} is {value!r}")
    return value


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    return value
