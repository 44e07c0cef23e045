"""The map of a set: every class can be told from every other."""

from __future__ import annotations

import re

from holdfast.reports.blocks import Chart, Section
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections.describe import describe
from holdfast.types import Finding


def drawn(classes: int, **settings: object) -> Section:
    """Three images a class in a triangle around (its number, 0), the last class far away."""
    points = [[k + x, y] for k in range(classes) for x, y in ((-0.1, -0.1), (0.0, 0.2), (0.1, -0.1))]
    evidence = {
        "points": points,
        "labels": [k for k in range(classes) for _ in range(3)],
        "classes": [f"kind {k}" for k in range(classes)],
    }
    found = (
        Finding("describe", "map", None, len(points), settings={"latent": 2}, evidence=evidence),
        Finding("describe", "silhouette", 0.5, len(points), settings={"latent": 2, **settings}),
    )
    section = describe([RunFiles("run", findings=found)])
    assert section is not None
    return section


def chart(section: Section) -> Chart:
    return next(block for block in section.blocks if isinstance(block, Chart))


def test_no_two_classes_look_the_same_though_colours_are_eight() -> None:
    dots = re.findall(r'<circle class="dot ([^"]*)"', str(chart(drawn(16)).svg))
    assert [dots.count(style) for style in dict.fromkeys(dots)] == [3] * 16


def test_a_class_is_named_in_its_middle() -> None:
    svg = str(chart(drawn(3)).svg)
    circles = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    names = re.findall(r'<text class="place" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', svg)
    assert [name for *_, name in names] == ["kind 0", "kind 1", "kind 2"]
    for number, (x, y, _) in enumerate(names):
        own = circles[3 * number : 3 * number + 3]
        assert float(x) == sorted(own)[1][0]
        assert float(y) == sorted(y for _, y in own)[1] + 4  # the text's middle, not its foot
    assert 'class="place"' not in str(chart(drawn(21)).svg), "too many names to read"


def test_classes_left_out_of_the_numbers_are_named() -> None:
    assert "left out of the numbers: eel, <b>." in drawn(2, too_few_to_probe=["eel", "<b>"]).lead
    assert "left out" not in drawn(2).lead
