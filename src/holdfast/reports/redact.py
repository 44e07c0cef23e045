"""Runs without the folders they name, for a report that is passed on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.reports.runfiles import RunFiles

HIDDEN = "(hidden)"
FOLDERS = re.compile(r"(?<![\w.:/\\…])(?:~?/|~?\\\\|[A-Za-z]:[\\/])(?:[^/\\\s\"'<>|:]+[/\\])+")
"""The folders of a path that starts at a root or at home."""
PICTURES = frozenset({"png", "overlay"})


def redacted(run: RunFiles) -> RunFiles:
    """The run with the names of files but not where they lie; where a picture comes from is left out altogether.

    >>> _hidden("holdfast audit /home/me/runs/a --data ~/photos/cats at 8/255")
    'holdfast audit …/a --data …/cats at 8/255'
    """
    findings = tuple(replace(f, evidence=_hidden(f.evidence), settings=_hidden(f.settings)) for f in run.findings)
    plain = {key: _hidden(getattr(run, key)) for key in ("settings", "environment", "model", "data")}
    checks = tuple(_hidden(record) for record in run.checks)
    return replace(run, findings=findings, checks=checks, **plain)


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return FOLDERS.sub("…/", value)
    if isinstance(value, Mapping):
        return {k: _kept(k, v, value) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(v) for v in value]
    return value


def _kept(key: str, value: Any, around: Mapping[str, Any]) -> Any:
    if key == "source" and "label" in around:
        return HIDDEN
    return value if key in PICTURES else _hidden(value)
