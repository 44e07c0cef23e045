"""An audit as JUnit XML, which pipelines show as tests; made from findings files alone.

A gate is a test case that passes or fails. A check is one too: an error where it crashed, skipped where it
was not measured. Its numbers are properties of its case. A warning is a skipped case, so that viewers show its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from holdfast.printable import one_line
from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.reports.overview import title
from holdfast.reports.report_tables import shown
from holdfast.reports.text import EXACT, finite, number, part

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold even as an entity."""


def junit(files: Sequence[FindingsFile]) -> str:
    root = ElementTree.Element("testsuites", name="holdfast audit")
    for file in files:
        name, states = clean(title(file)), [record.state for record in file.checks]
        counts = {
            "tests": len(file.checks) + len(file.gates) + len(file.warnings),
            "failures": sum(not gate["passed"] for gate in file.gates),
            "errors": states.count("crashed"),
            "skipped": states.count("skipped") + states.count("not applicable") + len(file.warnings),
        }
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **{k: str(v) for k, v in counts.items()}})
        for i, text in enumerate(map(clean, file.warnings), start=1):
            case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.warnings", name=f"warning {i}")
            ElementTree.SubElement(case, "skipped", message=f"warning: {text}")
        for gate in file.gates:
            case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.gates", name=clean(str(gate["name"])))
            if not gate["passed"]:
                text = clean(str(gate.get("reason") or "failed"))
                ElementTree.SubElement(case, "failure", message=text).text = _gate_numbers(gate)
        for record in file.checks:
            _check(suite, file, name, record)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _check(suite: ElementTree.Element, file: FindingsFile, name: str, record: CheckRecord) -> None:
    check, reason, seconds = clean(record.name), clean(record.reason), f"{record.seconds:.3f}"
    case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.checks", name=check, time=seconds)
    own = [f for f in file.findings if f.check == record.name and f.value is not None]
    if own:
        properties = ElementTree.SubElement(case, "properties")
        for f in own:
            value, span = shown(f, file.measures)
            text = value + (f" ({span})" if span else "") + f", n {f.n:,}"
            ElementTree.SubElement(properties, "property", name=clean(f"{f.name}, {part(f.where)}"), value=text)
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


def clean(text: str) -> str:
    r"""Text that XML can hold.

    >>> clean("a\x00b\ufffe")
    'a\\x00b'
    """
    return FORBIDDEN.sub("", one_line(text))
