"""The chapters of a report. A new one is a file here and a row in the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.reports.blocks import Section
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.sections import ascent, clean, comparison, curvature, curves, samples, settings

SECTIONS: tuple[Callable[[Sequence[RunFiles]], Section | None], ...] = (
    comparison.comparison,
    clean.clean,
    curvature.curvature,
    curves.curves,
    ascent.ascent,
    samples.samples,
    settings.settings,
)
"""In reading order. Each looks at the runs and returns None where it has nothing to say."""
