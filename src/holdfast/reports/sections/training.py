"""Training: loss and accuracy over epochs, what it cost, and what ``--diagnose`` recorded of the ascent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from holdfast.reports.arms import Arm, arms
from holdfast.reports.blocks import Cell, Chart, Column, Section, Side, Table, present
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg.lines import LONGEST_LABEL, Line, Point, line_chart
from holdfast.reports.text import finite

SPLITS = {
    "train": ("train", "the training set"),
    "val": ("val", "the held-out set"),
    "test": ("test", "the test set"),
    "val_bias_aligned": ("val, aligned", "bias-aligned images of the held-out set"),
    "val_bias_conflicting": ("val, conflicting", "bias-conflicting images of the held-out set"),
    "test_bias_aligned": ("test, aligned", "bias-aligned images of the test set"),
    "test_bias_conflicting": ("test, conflicting", "bias-conflicting images of the test set"),
}
"""Prefix of a metric: what its line is called beside others of the same run, and what it was measured on."""
LOG_FROM = 50
"""A loss whose largest value is so many times its smallest is drawn on a logarithmic axis."""

Place = tuple[int, float]
"""Stage and epoch, counted through all stages."""
Track = Mapping[Place, float]


@section("training", order=2)
def curves(runs: Sequence[RunFiles]) -> Section | None:
    groups = [arm for arm in arms(runs) if any(run.metrics for run in arm.runs)]
    charts = [*_charts(groups, "loss"), *_charts(groups, "accuracy")]
    if not charts:
        return None
    lead = "Loss and accuracy after each epoch."
    if any(len(arm.runs) > 1 for arm in groups):
        lead += " A thick line is the mean over seeds, as far as all of them got; thin lines are the seeds."
    if any(place[0] > 0 for run in runs for place in _places(run)):
        lead += " A gap is where a new stage of training begins."
    return Section("training", "Training", lead, present(Side(tuple(charts)), _cost(groups)))


def track(run: RunFiles, key: str) -> Track:
    """One metric over the epochs of a run; an epoch repeated after a resume counts once, as it ended."""
    found = zip(_places(run), (finite(record.get(key)) for record in run.metrics), strict=True)
    return {place: value for place, value in found if value is not None}


def _places(run: RunFiles) -> list[Place]:
    """Where each record lies. Stages that count their epochs from 1 are put one after the other."""
    stages: list[object] = []
    offset = last = 0.0
    places = []
    for record in run.metrics:
        epoch = record.get("epoch")
        epoch = float(epoch) if isinstance(epoch, (int, float)) else last - offset + 1
        if record.get("stage") not in stages:
            stages.append(record.get("stage"))
            offset = last if offset + epoch <= last else offset
        last = offset + epoch
        places.append((stages.index(record.get("stage")), last))
    return places


def _charts(groups: Sequence[Arm], quantity: str) -> list[Chart]:
    """One chart per split for several arms; all splits in one chart for a single arm."""
    series: dict[str, list[Line]] = {}
    for number, (split, (short, words)) in enumerate(SPLITS.items()):
        for arm in groups:
            title = f"{quantity.capitalize()} on {words}" if len(groups) > 1 else quantity.capitalize()
            label, colour = (arm.label, arm.number) if len(groups) > 1 else (short, number)
            series.setdefault(title, []).extend(lines_of(arm, f"{split}_{quantity}", label, colour))
    series = {title: lines for title, lines in series.items() if lines}
    values = [y for lines in series.values() for line in lines for _, y in line.points]
    if not values:
        return []
    share, low, high = quantity == "accuracy", min(values), max(values)
    log = not share and low > 0 and high / low >= LOG_FROM
    # One range for all charts of a quantity, so that they can be compared by eye.
    y_range = (max(0.0, math.floor(low * 10) / 10), 1.0) if share else (min(0.0, low), high * 1.04 or 1.0)
    how = {"share": share, "log": log, "y_range": (low, high) if log else y_range}
    kind, alone = ", %" if share else ", logarithmic" if log else "", len(groups) == 1
    named = enumerate(series.items())
    return [_drawn(groups, lines, title, kind, alone, id=f"{quantity}-{i}", **how) for i, (title, lines) in named]


def _drawn(
    groups: Sequence[Arm], lines: Sequence[Line], title: str, kind: str = "", direct: bool = False, **how: Any
) -> Chart:
    """Lines over the epochs; each is named where it ends if the names are short, else in a legend."""
    direct = direct or all(len(arm.label) <= LONGEST_LABEL for arm in groups)
    svg = line_chart(lines, title=title, x_label="epoch", direct=direct, **how)
    return Chart(title + kind, svg, () if direct else tuple((arm.number, arm.label) for arm in groups))


def lines_of(arm: Arm, key: str, label: str, colour: int) -> list[Line]:
    tracks = [t for t in (track(run, key) for run in arm.runs) if t]
    if not tracks:
        return []
    shared = [place for place in tracks[0] if all(place in t for t in tracks)]
    mean = {place: fmean(t[place] for t in tracks) for place in shared}
    seeds = [Line(label, _segments(t), colour, thin=True) for t in tracks] if len(tracks) > 1 else []
    return [*seeds, Line(label, _segments(mean), colour)]


def _segments(values: Track) -> tuple[tuple[Point, ...], ...]:
    stages = groupby(sorted(values.items()), key=lambda item: item[0][0])
    return tuple(tuple((x, y) for (_, x), y in points) for _, points in stages)


def _cost(groups: Sequence[Arm]) -> Table | None:
    rows = []
    for arm in groups:
        seconds = [sum(track(run, "seconds").values()) for run in arm.runs]
        speed = [v for run in arm.runs for v in track(run, "images_per_second").values()]
        if not any(seconds):
            continue
        epochs = [len(set(_places(run))) for run in arm.runs]
        span = f"{min(epochs)}" if len(set(epochs)) == 1 else f"{min(epochs)} to {max(epochs)}"
        time, rate = fmean(seconds), fmean(speed) if speed else None
        costs = Cell(f"{time:,.1f}", time), Cell("" if rate is None else f"{rate:,.0f}", rate)
        rows.append((Cell(arm.label), Cell(span, max(epochs)), *costs))
    columns = Column.texts("method") + Column.numbers("epochs", "seconds per run", "images per second")
    note = "Means over the runs of a method." if any(len(arm.runs) > 1 for arm in groups) else ""
    return Table("Cost of training", columns, tuple(rows), note) if rows else None


CHARTS = {
    "full_gradient_share": ("Share of the batch gradient along the full gradient, %", True),
    "ema_cosine": ("Cosine of the gradient average and the full gradient", False),
    "gradient_norm": ("Norm of the batch gradient", False),
    "full_gradient_norm": ("Norm of the full gradient", False),
    "ascent_norm": ("Length of the ascent step", False),
}
"""What is drawn of each metric: its title, and whether it is a share."""


@section("ascent", order=3)
def ascent(runs: Sequence[RunFiles]) -> Section | None:
    groups = arms(runs)
    charts = present(*(_chart(groups, key, title, share) for key, (title, share) in CHARTS.items()))
    if not charts:
        return None
    lead = (
        "A look at the gradient after some epochs, on one batch and on the whole training set without augmentation. "
        "The share is the squared cosine of the two: a friendly ascent takes this part away, and its running average "
        "stands for the full gradient as far as their cosine is near 1."
    )
    return Section("ascent", "Ascent", lead, (Side(charts),))


def _chart(groups: Sequence[Arm], key: str, title: str, share: bool) -> Chart | None:
    lines = [line for arm in groups for line in lines_of(arm, key, arm.label, arm.number)]
    values = [y for line in lines for _, y in line.points]
    if not values:
        return None
    y_range = (min(0.0, *values), 1.0 if share else 1.04 * max(values) or 1.0)
    return _drawn(groups, lines, title, id=key.replace("_", "-"), y_range=y_range, share=share)
