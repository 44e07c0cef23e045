"""The chapters on saliency and shortcuts: the grid of pictures and models, the numbers, and hostile findings."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from holdfast.errors import HoldfastError
from holdfast.reports import RunFiles
from holdfast.reports.blocks import Details, Gallery, Section, Side, Table
from holdfast.reports.html import render_shortcuts_page, write_shortcuts_page
from holdfast.reports.sections.saliency import saliency
from holdfast.reports.sections.shortcuts import shortcuts, summary
from holdfast.shortcuts.shortcut_files import MEASURES
from holdfast.types import Finding
from tests.reports.page import Page


def png(colour: int = 0) -> str:
    file = io.BytesIO()
    Image.new("L", (4, 4), colour).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def row(position: int, label: str, *said: str, shared: bool = True) -> dict[str, Any]:
    looks = [{"overlay": png(10 + i), "prediction": s, "confidence": 0.9} for i, s in enumerate(said)]
    where = f"set[{position}]"
    return {
        "png": png(), "label": label, "group": "red", "position": position, "source": where, "shared": shared,
        "looks": looks,
    }  # fmt: skip


def run(
    method: str, half: float, rows: list[dict[str, Any]], models: tuple[str, ...] = ("",), seed: int = 0
) -> RunFiles:
    found = (
        Finding("saliency", "saliency_half_area", half, 20, half - 0.1, half + 0.1),
        Finding("saliency", "saliency_half_area", None, 0, where={"bias": "conflicting"}),
        Finding("saliency", "saliency_agreement", 0.25, 20, where={"model": "other"}),
        Finding("saliency", "maps", None, 0, evidence={"maps": rows, "models": list(models)}),
    )
    settings = {"method": method, "seed": seed, "data": "digits"}
    return RunFiles(f"{method}-{seed}", settings=settings, findings=found)


def made(section: Section | None) -> Section:
    assert section is not None
    return section


def galleries(section: Section) -> list[Gallery]:
    sides = [block for block in section.blocks if isinstance(block, Side)]
    return [block for side in sides for block in side.blocks if isinstance(block, Gallery)]


def table(section: Section) -> Table:
    return next(block for block in section.blocks if isinstance(block, Table))


def test_both_stay_away_without_findings() -> None:
    assert saliency([RunFiles("bare")]) is None
    assert shortcuts([RunFiles("bare", findings=(Finding("accuracy", "accuracy", 0.5, 10),))]) is None


def test_rows_are_pictures_and_columns_are_models() -> None:
    runs = [
        run("erm", 0.3, [row(3, "7", "1"), row(9, "2", "5", shared=False)]),
        run("lff", 0.2, [row(3, "7", "7"), row(4, "8", "6", shared=False)]),
    ]
    grid = galleries(made(saliency(runs)))
    assert [[p.title for p in g.pictures] for g in grid] == [
        ["image", "erm", "lff"],
        ["image", "erm"],
        ["image", "lff"],
    ]
    first = grid[0].pictures
    assert [p.detail for p in first] == ["", "1, 90.0 %", "7, 90.0 %"]
    assert [p.wrong for p in first] == [False, True, False]
    assert "set[3]" in first[0].alt
    assert grid[0].title == "7, group red"


def test_models_that_one_run_compared() -> None:
    (gallery,) = galleries(made(saliency([run("erm", 0.3, [row(3, "7", "1", "7")], models=("", "lff"))])))
    assert [p.title for p in gallery.pictures] == ["image", "map", "lff"]


def test_numbers_over_seeds() -> None:
    rows = [row(3, "7", "1")]
    section = made(saliency([run("erm", 0.3, rows), run("erm", 0.4, rows, seed=1), run("lff", 0.2, rows)]))
    numbers = table(section)
    assert [c.title for c in numbers.columns] == ["measure", "part", "erm", "lff"]
    assert [[c.text for c in r] for r in numbers.rows] == [
        ["area that holds half of the map", "all", "35.0 ± 7.1 %", "20.0 %"],
        ["area that holds half of the map", "bias-conflicting", "empty", "empty"],
        ["agreement of maps", "model other", "0.250 ± 0.000", "0.250"],
    ]
    assert "standard deviation" in numbers.note
    assert isinstance(section.blocks[-1], Details)


def test_a_reason_is_told() -> None:
    findings = (Finding("saliency", "saliency_half_area", None, 0, evidence={"reason": "no layer keeps a plane"}),)
    assert "no layer keeps a plane." in table(made(saliency([RunFiles("m", findings=findings)]))).note


BROKEN: list[Any] = [
    "text", None, [], [None], [{"position": "x"}], [{"position": 1}], [{"position": 1, "looks": [7]}],
    [{"position": 1, "looks": [{"overlay": "no png", "confidence": "high"}], "png": "!"}],
]  # fmt: skip


@pytest.mark.parametrize("maps", BROKEN)
def test_damaged_maps_are_left_out(maps: Any) -> None:
    finding = Finding("saliency", "maps", None, 0, evidence={"maps": maps, "models": [""]})
    assert galleries(made(saliency([RunFiles("m", findings=(finding,))]))) == []


def shortcut_findings(name: str = "7") -> tuple[Finding, ...]:
    looks = {"biased": {"overlay": png(9), "prediction": "3", "confidence": 0.8}}
    rows = [{"png": png(), "label": name, "group": None, "score": 0.93, "position": 4, "source": "x", "looks": looks}]
    histogram = {"aligned": [90, 4, 1], "conflicting": [0, 1, 4]}
    evidence = {"label": [name, 0.5], "biased_prediction": ["3", 1.0], "group": ["red", 0.75], "rows": rows}
    return (
        Finding("shortcuts", "shortcut_p", 0.0021, 100, settings={"model": "convnet"}, evidence={
            "histogram": histogram, "notes": ["too few epochs"],
            "alarm": True, "level": 0.05, "mistakes": 9, "conflicting": 8,
        }),
        Finding("shortcuts", "average_precision", 0.9, 100, evidence={"lift": 18.0}),
        Finding("shortcuts", "base_rate", 0.05, 100),
        Finding("shortcuts", "cluster_size", 4.0, 4, where={"cluster": "0"}, evidence=evidence),
        Finding("shortcuts", "examples", None, 0, evidence={"top": rows, "bottom": "damaged"}),
    )  # fmt: skip


def test_shortcuts_in_numbers_and_pictures() -> None:
    measures = {("shortcuts", measure.name): measure for measure in MEASURES}
    page = Page(render_shortcuts_page(shortcut_findings(), name="digits", measures=measures))
    (verdict,) = page.text("h1")
    said = "A shortcut is likely (p = 0.0021): what comes first in the ranking is most likely bias-conflicting"
    assert verdict.replace("\u00a0", " ") == said
    numbers = [[c.text for c in r] for r in page.tables["What was found"][1:]]
    assert [r[1] for r in numbers] == ["0.0021", "90.0 %, 18.0 times the base rate", "5.0 %"]
    clusters = [[c.text for c in r] for r in page.tables["Clusters of suspected samples"][1:]]
    assert clusters == [["0", "4", "7 (50 %)", "3 (100 %)", "red (75 %)"]]
    lead = "".join(page.text("p"))
    assert "Caution: too few epochs." in lead
    note = page.source.replace("\u00a0", " ")
    assert "8 of 9 mistakes of biased models on held-out samples look bias-conflicting" in note
    assert "at most 5 % of such tests say that one is likely" in note
    assert len(page.attributes("img")) == 4
    assert page.text("h3") == ["Cluster 0: class 7 (50 %), predicted as 3 (100 %)", "Highest scores of all"]


@pytest.mark.parametrize(
    ("p", "alarm", "said"),
    [
        (0.4, False, "The test found no shortcut (p = 0.4), which does not rule one out: "),
        (None, None, "Ranked; whether there is a shortcut was not tested"),
    ],
)
def test_no_alarm_is_not_worded_as_a_shortcut(p: float | None, alarm: bool | None, said: str) -> None:
    test = Finding("shortcuts", "shortcut_p", p, 100 if p else 0, evidence={"alarm": alarm})
    assert summary([test]).startswith(said)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("the lower right quarter", "A shortcut in the lower right quarter is likely (p = 0.001)"),
        ("", "A shortcut is likely (p = 0.001)"),
        (["damaged"], "A shortcut is likely (p = 0.001)"),
    ],
)
def test_a_shortcut_is_placed_where_its_mistakes_hinge(place: Any, said: str) -> None:
    evidence = {"alarm": True, "level": 0.05, "mistakes": 34, "conflicting": 15, "hinging": 30, "place": place}
    found = [Finding("shortcuts", "shortcut_p", 0.001, 100, evidence=evidence)]
    assert summary(found).startswith(said)
    page = render_shortcuts_page(found, name="digits").replace("\u00a0", " ")
    assert "30 of the mistakes hinge on the part of the picture" in page


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    path = write_shortcuts_page(shortcut_findings(hostile), tmp_path / "shortcuts.html", name=hostile)
    text = path.read_text()
    assert hostile not in text
    assert len(Page(text).attributes("script")) == 1


def test_a_page_needs_findings() -> None:
    with pytest.raises(HoldfastError, match="no findings on shortcuts"):
        render_shortcuts_page([Finding("accuracy", "accuracy", 0.5, 10)], name="x")
    assert summary([]) == "Nothing was measured"
