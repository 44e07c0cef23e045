"""What an audit leaves on disk while it runs: one file a check, which is taken up again only where nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from holdfast.audits.checking import Outcome
from holdfast.reports.findings_file import finding, write_json
from holdfast.types import Finding

FORMAT: Final = "holdfast-check"
PNG: Final = "iVBORw0KGgo"
"""How a PNG file begins in base64."""
HIDDEN: Final = "(hidden)"
SOURCE: Final = "source"
"""Under this key, evidence says where a picture comes from."""


def key_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def write_check(folder: Path, outcome: Outcome, key: str) -> None:
    content = {"format": FORMAT, "key": key, **outcome.record(), "findings": [f.to_json() for f in outcome.findings]}
    write_json(folder / f"{outcome.check}.json", content)


def read_check(folder: Path, check: str, key: str) -> Outcome | None:
    """A check that was measured before under the same key; None where it was not, or crashed, or cannot be read."""
    try:
        content = json.loads((folder / f"{check}.json").read_bytes())
        if (content["format"], content["key"]) != (FORMAT, key) or content["state"] == "crashed":
            return None
        return Outcome(
            check,
            content["state"],
            tuple(finding(values) for values in content["findings"]),
            str(content["reason"]),
            content["settings"],
            float(content["seconds"]),
            tuple(content["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):  # half-written or of another version: measured again
        return None


def without_pictures(found: Finding) -> Finding:
    """A finding whose evidence has no picture left; what stood beside one in a list goes with it."""
    return replace(found, evidence=_bare(found.evidence))


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _bare(v) for k, v in value.items() if not _is_picture(v)}
    if isinstance(value, (list, tuple)):
        kept = [item for item in value if not _is_picture(item) and not _shows(item)]
        return [_bare(item) for item in kept]
    return value


def _is_picture(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(PNG)


def _shows(value: Any) -> bool:
    return isinstance(value, Mapping) and any(_is_picture(v) or _shows(v) for v in value.values())


class Redaction:
    """Takes folders out of everything that is written: the name of a file stays, where it lies does not."""

    def __init__(self, given: Iterable[str | Path | None] = ()) -> None:
        known = {Path.cwd(), Path.home(), *(Path(p).absolute() for p in given if p and os.path.exists(p))}
        folders = {str(p) for path in known for p in (path, path.parent, path.resolve()) if len(p.parts) > 1}
        folders |= {str(Path(p).parent) for p in given if p and os.path.exists(p) and len(Path(p).parts) > 1}
        self.pattern = re.compile("|".join(re.escape(f) + "/?" for f in sorted(folders, key=len, reverse=True)) or "$^")

    def text(self, text: str) -> str:
        return self.pattern.sub("…/", text).replace("…//", "…/")

    def value(self, value: Any) -> Any:
        """The same for plain values of any depth; where a picture comes from is left out altogether."""
        if isinstance(value, str):
            return value if _is_picture(value) else self.text(value)
        if isinstance(value, Mapping):
            return {k: HIDDEN if k == SOURCE and "label" in value else self.value(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v) for v in value]
        return value

    def finding(self, found: Finding) -> Finding:
        return replace(found, evidence=self.value(found.evidence), settings=self.value(found.settings))
