"""Charts: numbers are where they should be, and names are only names."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.reports.svg import linear_ticks, log_ticks
from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.svg.lines import Line, line_chart

HOSTILE = "</title></svg><script>alert(1)</script>\"'&\x1b[31m\u202e"


def bars(*values: float | None, **changes: float) -> ET.Element:
    rows = [
        BarRow(f"row {i}", (Bar(v, changes.get("low"), changes.get("high"), "empty" if v is None else f"{v}", "note"),))
        for i, v in enumerate(values)
    ]
    return ET.fromstring(bar_chart(rows, id="b", title="Accuracy"))


def classed(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def test_bars_are_as_long_as_their_share() -> None:
    widths = [float(rect.get("width", "")) for rect in classed(bars(1.0, 0.5, 0.0), "bar")]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.01)
    assert widths[2] == 0


def test_whiskers_span_the_interval_and_stay_on_the_axis() -> None:
    root = bars(0.5, low=-0.5, high=0.75)
    (rect,), (whisker,) = classed(root, "bar"), classed(root, "whisker")
    start, half = float(rect.get("x", "")), float(rect.get("width", ""))
    low, high = re.match(r"M([\d.]+) [\d.]+H([\d.]+)", whisker.get("d", "")).groups()  # type: ignore[union-attr]
    assert float(low) == pytest.approx(start, abs=0.06)
    assert float(high) == pytest.approx(start + 1.5 * half, abs=0.06)


def test_a_long_name_has_two_lines_beside_its_bar() -> None:
    names = ["relative-mahalanobis", "msp", "harmonic mean of bias-aligned and bias-conflicting"]
    rows = [BarRow(name, (Bar(0.5, None, None, "50.0", "note"),)) for name in names]
    root = ET.fromstring(bar_chart(rows, id="b", title="Accuracy", longest=29))
    narrow = ET.fromstring(bar_chart(rows[:2], id="b", title="Accuracy"))
    assert [e.text for e in classed(narrow, "label")] == ["relative-", "mahalanobis", "msp"]
    first, short, *two = classed(root, "label")
    assert [e.text for e in (first, short, *two)] == [
        *names[:2],
        "harmonic mean of bias-aligned",
        "and bias-conflicting",
    ]
    heights = [float(e.get("y", "")) for e in (first, short, *two)]
    assert min(b - a for a, b in pairwise(heights)) >= 14, "no line lies on another"
    middles = [float(e.get("y", "")) + float(e.get("height", "")) / 2 for e in classed(root, "bar")]
    assert middles[2] + 4 == pytest.approx((heights[2] + heights[3]) / 2, abs=0.02)


def test_an_empty_part_is_a_word_and_not_a_bar_of_length_zero() -> None:
    root = bars(0.5, None)
    assert len(classed(root, "bar")) == 1
    assert [e.text for e in classed(root, "none")] == ["empty"]


def test_what_no_model_has_is_said_once_and_different_reasons_each() -> None:
    def words(*texts: str) -> list[str | None]:
        row = BarRow("row", tuple(Bar(None, None, None, text, "note", i) for i, text in enumerate(texts)))
        return [e.text for e in classed(ET.fromstring(bar_chart([row], id="b", title="Accuracy")), "none")]

    assert words("not measured", "not measured") == ["not measured"]
    assert words("not measured", "no groups") == ["not measured", "no groups"]


def line(*points: tuple[float, float], label: str = "erm", thin: bool = False) -> Line:
    return Line(label, (points,), 0, thin)


def chart(*lines: Line, log: bool = False, y_range: tuple[float, float] = (0.01, 1.0)) -> ET.Element:
    return ET.fromstring(line_chart(lines, id="c", title="Loss", x_label="epoch", y_range=y_range, log=log))


def places(root: ET.Element, name: str = "line") -> list[tuple[float, float]]:
    (path,) = (e for e in classed(root, name) if "thin" not in e.get("class", ""))
    pairs = re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))
    return [(float(x), float(y)) for x, y in pairs]


def test_a_logarithmic_axis_gives_each_decade_the_same_room() -> None:
    (_, top), (_, middle), (_, bottom) = places(chart(line((1, 1.0), (2, 0.1), (3, 0.01)), log=True))
    assert middle - top == pytest.approx(bottom - middle, abs=0.11)
    (_, top), (_, middle), (_, bottom) = places(chart(line((1, 1.0), (2, 0.1), (3, 0.01))))
    assert middle - top > 5 * (bottom - middle)


def test_higher_is_further_up_and_later_further_right() -> None:
    (x1, y1), (x2, y2) = places(chart(line((1, 0.2), (5, 0.8))))
    assert x1 < x2
    assert y1 > y2


def test_only_thick_lines_are_named_and_names_do_not_overlap() -> None:
    ends = [line((1, 0.1), (2, 0.5 + i / 1000), label=f"m{i}") for i in range(5)]
    root = chart(*ends, line((1, 0.2), (2, 0.3), label="seed", thin=True))
    names = classed(root, "name")
    assert sorted(e.text or "" for e in names) == [f"m{i}" for i in range(5)]
    heights = sorted(float(e.get("y", "")) for e in names)
    assert all(b - a >= 14.9 for a, b in pairwise(heights))


def test_tooltips_hold_the_numbers() -> None:
    root = chart(line((1, 0.2), (2, 0.25)), line((1, 0.5), (2, 0.625), label="lff"))
    titles = [band.findtext("title") for band in classed(root, "band")]
    assert titles == ["epoch 1\nerm 0.2\nlff 0.5", "epoch 2\nerm 0.25\nlff 0.625"]


def test_segments_are_not_joined_and_a_lone_point_is_a_dot() -> None:
    root = chart(Line("erm", (((1, 0.1), (2, 0.2)), ((3, 0.3),)), 0))
    assert len(classed(root, "line")) == 1
    assert len(classed(root, "dot")) == 2


@pytest.mark.parametrize("root", [bars(0.5), chart(line((1, 0.2), (2, 0.4))), chart()], ids=["bars", "lines", "none"])
def test_charts_speak_to_screen_readers(root: ET.Element) -> None:
    assert root.get("role") == "img"
    title, desc = root[0], root[1]
    assert (title.tag, title.get("id")) == ("title", root.get("aria-labelledby"))
    assert (desc.tag, desc.get("id")) == ("desc", root.get("aria-describedby"))
    assert title.text


def test_hostile_names_are_only_text() -> None:
    rows = [BarRow(HOSTILE, (Bar(0.5, None, None, "50.0", HOSTILE),))]
    for source in (
        bar_chart(rows, id="b", title=HOSTILE),
        line_chart([line((1, 0.2), (2, 0.4), label=HOSTILE)], id="c", title="t", x_label=HOSTILE, y_range=(0, 1)),
    ):
        root = ET.fromstring(source)
        assert not [e for e in root.iter() if e.tag == "script"]
        assert "\x1b" not in source
        assert "\u202e" not in source
        assert "<script>alert(1)</script>" in "".join(root.itertext())


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 9))
def test_linear_ticks_are_inside_rising_and_few(low: float, width: float, most: int) -> None:
    high = low + width
    ticks = linear_ticks(low, high, most=most)
    slack = 1e-6 * max(1.0, abs(low), width)
    assert len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(low - slack <= tick <= high + slack for tick in ticks)


@given(st.floats(1e-8, 1e8), st.floats(1.0, 1e12))
def test_log_ticks_are_inside_and_few(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert len(ticks) <= 6
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in ticks)
