"""The sample's findings with names that try to be something else, wherever a name can stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from holdfast.reports import read_findings
from holdfast.reports.findings_file import CheckRecord, FindingsFile, finding
from holdfast.reports.run_files import RunFiles

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"
NAMES = (
    "</script><script>document.title='owned';alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</title></svg><svg/onload=alert(1)>",
    "<!-- ]]> <details open ontoggle=alert(1)>",
    "a | b `c` *d* _e_ ~~f~~ ![x](http://evil.example/y.png) [x](javascript:alert(1))",
    "two\nlines\r\n\n# heading\n\tcode",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "\x1b[31m\x1b]0;owned\x07\x9b2J",
    "\u202edesrever\u2066\u200b\u00ad",
    "\x00\x08\x7f\ufffe",
    "&lt;b&gt; &amp; &#x3c;",
    "{{ 7 * 7 }}{% raw %}",
    "https://evil.example www.evil.example evil@evil.example",
    "\ud800",
    "[red]bold[/red] [link=http://evil.example]x",
)
NAMED = {
    "class", "group", "label", "prediction", "classes", "groups", "group_names", "source", "against", "reason", "says",
    "slice", "models", "command", "spec", "layer", "warnings", "notes", "attribute", "attributes", "cell", "ood",
}  # fmt: skip
"""Keys under which names stand that are not ours."""


def files(*, hostile: bool = True) -> tuple[FindingsFile, ...]:
    """The two audits of the sample; without hostile names, the same with harmless ones."""
    given = [read_findings(SAMPLE / name / "findings.json") for name in ("lff", "erm")]
    return tuple(_changed(file, f"{i}", hostile) for i, file in enumerate(given))


def runs(*, hostile: bool = True) -> list[RunFiles]:
    return [RunFiles.of(file) for file in files(hostile=hostile)]


def _changed(file: FindingsFile, number: str, hostile: bool) -> FindingsFile:
    names = cycle(NAMES if hostile else [f"name{i}" for i in range(len(NAMES))])
    known: dict[str, str] = {}
    own = next(names) + number
    checks = [*file.checks, CheckRecord("other", "crashed", next(names))]
    checks.append(CheckRecord("another", "skipped", "".join(NAMES) if hostile else "name"))
    gate = {**file.gates[0], "name": next(names), "reason": next(names), "passed": False} if file.gates else None
    return replace(
        file,
        findings=tuple(finding({**f.to_json(), **_renamed(_parts(f), known, names)}) for f in file.findings),
        model={**_renamed(file.model, known, names), "name": own, "warnings": [next(names), "".join(NAMES)]},
        data={**_renamed(file.data, known, names), "name": next(names)},
        run=_renamed(file.run, known, names),
        checks=tuple(checks),
        gates=(*file.gates, gate) if gate else (),
    )


def _parts(f: Any) -> dict[str, Any]:
    return {key: getattr(f, key) for key in ("where", "settings", "evidence")}


def _renamed(value: Any, known: dict[str, str], names: Iterator[str], key: str = "") -> Any:
    """Every name becomes another, the same one everywhere."""
    if isinstance(value, Mapping):
        return {k: _renamed(v, known, names, key if key == "cell" else str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(v, known, names, key) for v in value]
    if isinstance(value, str) and key in NAMED and value:
        return known.setdefault(value, f"{next(names)}{len(known)}")
    return value
