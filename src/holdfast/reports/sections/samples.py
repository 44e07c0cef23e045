"""Pictures from the test set, misclassified ones first."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Gallery, Picture, Section
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.summary import Arm, arms
from holdfast.reports.text import finite, percent

MOST_AN_ARM = 24
PNG = b"\x89PNG\r\n\x1a\n"


def samples(runs: Sequence[RunFiles]) -> Section | None:
    shown = [(arm, run, found) for arm in arms(runs) for run, found in [_first(arm)] if run and found]
    galleries = tuple(_gallery(arm, run, found) for arm, run, found in shown)
    if not galleries:
        return None
    lead = "Misclassified pictures come first: 7 → 3 is a 7 that the model takes for a 3."
    if any(len(arm.runs) > 1 for arm, _, _ in shown):
        lead += " Of several seeds, the first is shown."
    return Section("samples", "Samples", lead, galleries)


def _first(arm: Arm) -> tuple[RunFiles | None, list[Mapping[str, Any]]]:
    for run in arm.runs:
        found = [p for f in run.findings for p in f.evidence.get("pictures") or () if isinstance(p, Mapping)]
        if found:
            return run, found
    return None, []


def _gallery(arm: Arm, run: RunFiles, found: Sequence[Mapping[str, Any]]) -> Gallery:
    pictures: list[Picture] = []
    unreadable = 0
    for values in found:
        png = str(values.get("png", ""))
        if not is_png(png):
            unreadable += 1
        elif len(pictures) < MOST_AN_ARM:
            pictures.append(_picture(values, png))
    left_out = len(found) - len(pictures) - unreadable
    notes = [f"{left_out} more in findings.json of {run.name}."] if left_out else []
    notes += [f"{unreadable} could not be read."] if unreadable else []
    return Gallery(arm.label, tuple(pictures), " ".join(notes))


def _picture(values: Mapping[str, Any], png: str) -> Picture:
    label, prediction = str(values.get("label", "?")), str(values.get("prediction", "?"))
    wrong = label != prediction
    confidence = values.get("confidence")
    sure = finite(confidence) if isinstance(confidence, (int, float)) else None
    title = f"{label} → {prediction}" if wrong else label
    details = [f"{percent(sure)} % sure"] if sure is not None else []
    if values.get("group") is not None:
        details.append(f"group {values['group']}")
    where = values.get("source") or (f"sample {values['position']}" if "position" in values else "")
    words = f"{label}, taken for {prediction}" if wrong else f"{label}, recognised"
    alt = "; ".join(filter(None, [words, *details, str(where)]))
    return Picture(f"data:image/png;base64,{png}", alt, title, ", ".join(details), wrong)


def is_png(text: str) -> bool:
    try:
        return base64.b64decode(text, validate=True).startswith(PNG)
    except (binascii.Error, ValueError):
        return False
