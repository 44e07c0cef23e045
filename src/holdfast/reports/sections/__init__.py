"""The chapters of a report. A new one is a file here and a row in the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.reports.blocks import Section
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.sections import (
    accuracy,
    ascent,
    attacks,
    comparison,
    corruptions,
    curvature,
    curves,
    describe,
    glance,
    groups,
    ood,
    saliency,
    samples,
    sensitivity,
    settings,
    shortcuts,
    slices,
)

SECTIONS: tuple[Callable[[Sequence[RunFiles]], Section | None], ...] = (
    glance.glance,
    comparison.comparison,
    sensitivity.sensitivity,
    accuracy.accuracy,
    groups.groups,
    slices.slices,
    corruptions.corruptions,
    attacks.attacks,
    ood.ood,
    ood.detect,
    describe.describe,
    curvature.curvature,
    saliency.saliency,
    shortcuts.shortcuts,
    curves.curves,
    ascent.ascent,
    samples.samples,
    settings.settings,
)
"""In reading order. Each looks at the runs and returns None where it has nothing to say."""
