"""How much a setting matters: accuracy over each setting that was varied, with the baseline as a dashed line."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from holdfast.reports.arms import Arm, FindingKey, arms, flat, share, varying
from holdfast.reports.blocks import Chart, Section, Side, present
from holdfast.reports.report_tables import COMPARED, baseline_of, paired_table
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg.lines import Level, Spot, point_chart
from holdfast.reports.text import setting


@dataclass(frozen=True, slots=True)
class Sweep:
    """Arms that differ in one setting alone. fixed: the other varied settings, as far as sweeps differ in them."""

    method: str
    key: str
    points: tuple[tuple[Any, Arm], ...]
    fixed: tuple[tuple[str, Any], ...] = ()


@section("sensitivity", order=-1)
def sensitivity(runs: Sequence[RunFiles]) -> Section | None:
    groups = arms(runs)
    baseline = baseline_of(groups)
    measured = [m for m in COMPARED if any(arm.measured(m) for arm in groups)]
    found = [_charts(family, measured, baseline, f"sweep-{i}") for i, family in enumerate(sweeps(groups))]
    charts, table = tuple(chain.from_iterable(found)), None
    if baseline is not None and len(groups) > 1 and measured:
        table = paired_table([baseline, *(arm for arm in groups if arm is not baseline)], baseline)
    blocks = present(Side(charts) if charts else None, table)
    if not blocks:
        return None
    title, lead = "Against the baseline", "Each row minus the baseline, on the same seeds."
    if charts:
        title = "Sensitivity"
        lead = "What the settings that were varied do to the accuracy on the test set. Points are means over seeds, "
        lead += "whiskers one sample standard deviation; the values stand equally spaced."
        lead += f" Dashed: {baseline.label}, the baseline." if baseline is not None else ""
    lead += " The best of many rows by test accuracy looks better than it is: choose on held-out data."
    return Section("sensitivity", title, lead, blocks)


def sweeps(groups: Sequence[Arm]) -> list[tuple[Sweep, ...]]:
    """Every setting that was varied, by method: sweeps with the same key, one for each value of the others.

    Varying one setting at a time gives one sweep per setting; a grid gives several.
    """
    by_method: dict[str, list[tuple[Arm, dict[str, Any]]]] = defaultdict(list)
    for arm in groups:
        own = flat(arm.runs[0].settings)
        own.pop("seed", None)
        by_method[str(own.get("method", ""))].append((arm, own))
    families = []
    for method, members in by_method.items():
        keys = varying(own for _, own in members)[1]
        families += [_family(method, key, keys, members) for key in keys]
    return [family for family in families if family]


def _family(
    method: str, key: str, keys: Sequence[str], members: Sequence[tuple[Arm, dict[str, Any]]]
) -> tuple[Sweep, ...]:
    """Arms that share all settings but one, in the order of that one."""
    rest = [k for k in keys if k != key]
    alike: dict[str, list[tuple[Arm, dict[str, Any]]]] = defaultdict(list)
    for arm, own in members:
        alike[json.dumps([own.get(k) for k in rest], default=str)].append((arm, own))
    kept = [group for group in alike.values() if len({setting(own.get(key)) for _, own in group}) > 1]
    named = varying({k: group[0][1].get(k) for k in rest} for group in kept)[1] if len(kept) > 1 else []
    found = []
    for group in kept:
        points: dict[str, tuple[Any, Arm]] = {}
        for arm, own in group:
            points.setdefault(setting(own.get(key)), (own.get(key), arm))
        numeric = _ordered([value for value, _ in points.values()])
        ordered = sorted(points.values(), key=lambda point: float(point[0])) if numeric else points.values()
        found.append(Sweep(method, key, tuple(ordered), tuple((k, group[0][1].get(k)) for k in named)))
    if _ordered([value for sweep in found for _, value in sweep.fixed]):
        found.sort(key=lambda sweep: [float(value) for _, value in sweep.fixed])
    return tuple(found)


def _charts(family: Sequence[Sweep], measures: Sequence[FindingKey], baseline: Arm | None, id: str) -> list[Chart]:
    """One chart with all measures for one sweep; one chart per measure for those of a grid."""
    if len(family) == 1:
        kinds = [("", id, [(m.title, m, family[0]) for m in measures])]
    else:
        fixed = [", ".join(f"{k.removeprefix('method.')} {setting(v)}" for k, v in sweep.fixed) for sweep in family]
        named = list(zip(fixed, family, strict=True))
        kinds = [(f", {m.title}", f"{id}-{i}", [(f, m, s) for f, s in named]) for i, m in enumerate(measures)]
    return [
        _chart(kind, lines, baseline, own)
        for kind, own, lines in kinds
        if any(arm.measured(m) for _, m, sweep in lines for _, arm in sweep.points)
    ]


def _chart(kind: str, lines: Sequence[tuple[str, FindingKey, Sweep]], baseline: Arm | None, id: str) -> Chart:
    first = lines[0][2]
    values = {setting(v): v for _, _, sweep in lines for v, _ in sweep.points}
    joined = _ordered(list(values.values()))
    places = sorted(values, key=lambda text: float(values[text])) if joined else list(values)
    series = [_spots(sweep, m, places, label) for label, m, sweep in lines]
    levels = _levels(lines, baseline)
    reach = [v for own in series for spot in own for v in (spot.value, spot.low, spot.high) if v is not None]
    reach += [level.value for level in levels]
    title = f"{first.method}: {first.key}{kind}".removeprefix(": ")
    drawn = point_chart(
        series, levels, id=id, title=title, x_label=first.key, places=places, joined=joined, y_range=_y_range(reach)
    )
    return Chart(f"{title}, %", drawn, tuple((colour, label) for colour, (label, _, _) in enumerate(lines)))


def _levels(lines: Sequence[tuple[str, FindingKey, Sweep]], baseline: Arm | None) -> list[Level]:
    """The baseline once per measure: in the colour of the measure, or in grey where colours tell other things."""
    levels: dict[FindingKey, Level] = {}
    several = len({measure for _, measure, _ in lines}) == len(lines)
    for colour, (_, measure, sweep) in enumerate(lines):
        same = baseline is not None and all(arm.data == baseline.data for _, arm in sweep.points)
        spread = baseline.measured(measure) if baseline is not None and same else None
        if baseline is not None and spread is not None and spread.mean is not None:
            note = f"{baseline.label}, {measure.title}: {share(spread)} %"
            levels.setdefault(measure, Level(spread.mean, colour if several else 7, note))
    return list(levels.values())


def _spots(sweep: Sweep, measure: FindingKey, places: Sequence[str], label: str) -> tuple[Spot, ...]:
    spots = []
    for value, arm in sweep.points:
        spread = arm.measured(measure)
        if spread is None or spread.mean is None:
            continue
        text, sd = setting(value), spread.sd
        low, high = (None, None) if sd is None else (max(0.0, spread.mean - sd), min(1.0, spread.mean + sd))
        note = f"{label}, {sweep.key} {text}: {share(spread)} %"
        spots.append(Spot(places.index(text), spread.mean, low, high, note))
    return tuple(spots)


def _ordered(values: Sequence[Any]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _y_range(values: Sequence[float]) -> tuple[float, float]:
    """Whole steps of five percent around all that is drawn: small differences must be visible here."""
    low, high = math.floor(min(values) * 20 - 1e-9) / 20, math.ceil(max(values) * 20 + 1e-9) / 20
    low = min(max(0.0, low), 0.95)
    return low, min(1.0, max(high, low + 0.05))
