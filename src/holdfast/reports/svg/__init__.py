"""Charts as inline SVG, without a plotting library: :func:`line_chart` and :func:`bar_chart`."""

from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.svg.lines import LONGEST_LABEL, Line, Point, histogram_lines, line_chart, share_lines

__all__ = [
    "LONGEST_LABEL", "Bar", "BarRow", "Line", "Point", "bar_chart", "histogram_lines", "line_chart", "share_lines",
]  # fmt: skip
