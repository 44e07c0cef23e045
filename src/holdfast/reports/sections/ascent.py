"""The ascent under way: what the batch gradient holds of the full one, as ``--diagnose`` saw it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.reports.blocks import Chart, Section, Side
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.sections.curves import lines_of
from holdfast.reports.summary import Arm, arms
from holdfast.reports.svg import LONGEST_LABEL, line_chart

CHARTS = {
    "full_gradient_share": ("Share of the batch gradient along the full gradient, %", True),
    "ema_cosine": ("Cosine of the gradient average and the full gradient", False),
    "gradient_norm": ("Norm of the batch gradient", False),
    "full_gradient_norm": ("Norm of the full gradient", False),
    "ascent_norm": ("Length of the ascent step", False),
}
"""What is drawn of each metric: its title, and whether it is a share."""


def ascent(runs: Sequence[RunFiles]) -> Section | None:
    groups = arms(runs)
    charts = [
        chart
        for key, (title, share) in CHARTS.items()
        if (chart := _chart(groups, key, title=title, share=share)) is not None
    ]
    if not charts:
        return None
    lead = (
        "A look at the gradient after some epochs, on one batch and on the whole training set without augmentation. "
        "The share is the squared cosine of the two: a friendly ascent takes this part away, and its running average "
        "stands for the full gradient as far as their cosine is near 1."
    )
    return Section("ascent", "Ascent", lead, (Side(tuple(charts)),))


def _chart(groups: Sequence[Arm], key: str, *, title: str, share: bool) -> Chart | None:
    lines = [line for arm in groups for line in lines_of(arm, key, arm.label, arm.number)]
    values = [y for line in lines for _, y in line.points]
    if not values:
        return None
    direct = all(len(arm.label) <= LONGEST_LABEL for arm in groups)
    y_range = (min(0.0, *values), 1.0 if share else 1.04 * max(values) or 1.0)
    drawn = line_chart(
        lines, id=key.replace("_", "-"), title=title, x_label="epoch", y_range=y_range, share=share, direct=direct
    )
    return Chart(title, drawn, () if direct else tuple((arm.number, arm.label) for arm in groups))
