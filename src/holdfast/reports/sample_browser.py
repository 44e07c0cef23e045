"""Answers to thousands of samples as JSON for the page's filters. Open it to change what they can search.

What stands in a findings file is checked here: columns of equal length with whole numbers in range, and a sheet that is
a PNG. What is not so is left out, and the page shows the pictures that it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from holdfast.printable import one_line
from holdfast.reports.blocks import png_picture
from holdfast.reports.run_files import RunFiles, group_attribute

MOST_SAMPLES = 10_000
MOST_NAME = 60
MOST_TEXT = 20 * MOST_SAMPLES
COLUMN = re.compile(r"-?\d{1,16}( -?\d{1,16})*", re.ASCII)


def browser_data(run: RunFiles) -> Mapping[str, Any] | None:
    """The answers of a run's test samples, as the check ``accuracy`` leaves them; None where there are none."""
    found = (f.evidence.get("listed") for f in run.findings if (f.check, f.name) == ("accuracy", "samples"))
    given: Any = next((a for a in found if isinstance(a, Mapping)), None)
    if given is None:
        return None
    classes, groups = _names(given.get("classes")), _names(given.get("groups"))
    label = _column(given.get("label"), len(classes) - 1)
    n = len(label)
    if not 0 < n <= MOST_SAMPLES:
        return None
    prediction = _column(given.get("prediction"), len(classes) - 1, n)
    if not prediction:
        return None
    made: dict[str, Any] = {"classes": classes, "label": label, "prediction": prediction, "of": n}
    made["word"] = group_attribute(run) or "group"
    if confidence := _column(given.get("confidence"), 1000, n):
        made["confidence"] = confidence
    if group := _column(given.get("group"), len(groups) - 1, n, least=-1):
        made |= {"groups": groups, "group": group}
    if positions := _column(given.get("positions"), 2**53, n):
        of = given.get("of")
        made |= {"positions": positions, "of": max(n, of) if type(of) is int else n}
    return made | _sheet(given.get("sheet"), n)


def _sheet(given: Any, n: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {}
    side, columns = (v if type(v := given.get(key)) is int and 0 < v <= 512 else 0 for key in ("side", "columns"))
    places = _column(given.get("places"), n - 1)
    picture = png_picture(given.get("png"), "", "")
    if picture is None or not side or not columns or not places:
        return {}
    return {"sheet": {"source": picture.source, "side": side, "columns": columns, "places": places}}


def _names(given: Any) -> list[str]:
    return [one_line(str(name))[:MOST_NAME] for name in given] if isinstance(given, (list, tuple)) else []


def _column(given: Any, most: int, length: int | None = None, least: int = 0) -> list[int]:
    """Whole numbers within bounds from a text of them, as many as there must be; empty where it is anything else."""
    if not isinstance(given, str) or len(given) > MOST_TEXT or not COLUMN.fullmatch(given):
        return []
    values = [int(word) for word in given.split(" ")]
    fits = length in (None, len(values)) and least <= min(values) and max(values) <= most
    return values if fits else []


def as_script(values: Mapping[str, Any]) -> Markup:
    """JSON that no name can end."""
    text = json.dumps(values, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def within(found: Sequence[Mapping[str, Any] | None], room: int) -> list[Mapping[str, Any] | None]:
    """The same, with no more bytes in all than there is room for: pictures go first, then answers."""
    kept: list[Mapping[str, Any] | None] = []
    for values in found:
        own = values
        if own is not None and len(as_script(own)) > room:
            own = {key: value for key, value in own.items() if key != "sheet"}
            own = own if len(as_script(own)) <= room else None
        room -= len(as_script(own)) if own is not None else 0
        kept.append(own)
    return kept
