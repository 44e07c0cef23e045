"""Charts as inline SVG, without a plotting library: :func:`line_chart` and :func:`bar_chart`."""

from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.svg.lines import LONGEST_LABEL, Line, Point, line_chart

__all__ = ["LONGEST_LABEL", "Bar", "BarRow", "Line", "Point", "bar_chart", "line_chart"]
