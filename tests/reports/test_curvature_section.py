"""The chapter on curvature: its numbers, its charts, and what it does with what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Details, Section, Side, Table
from holdfast.reports.html import render
from holdfast.reports.sections import SECTIONS
from holdfast.reports.sections.curvature import curvature
from holdfast.types import Finding
from tests.reports.page import Page

GRID = [i / 10 for i in range(-10, 110)]
BELLS = [0.9 * math.exp(-((x / 0.2) ** 2)) + 1e-4 * math.exp(-(((x - 10) / 0.2) ** 2)) for x in GRID]


def found(values: Sequence[float] = (10.0, 8.0, 6.0, 5.0, 4.0), n: int = 1000, **evidence: Any) -> tuple[Finding, ...]:
    whole = {
        "eigenvalues": list(values),
        "residuals": [0.001 * abs(v) for v in values],
        "converged": [True] * (len(values) - 1) + [False],
        "density": {"grid": GRID, "density": BELLS},
        **evidence,
    }
    settings = {"parameters": 1000}
    return (
        Finding("curvature", "top_eigenvalue", values[0], n, settings=settings, evidence=whole),
        Finding("curvature", "fifth_eigenvalue", values[-1], n, settings=settings),
        Finding("curvature", "eigenvalue_ratio", values[0] / values[-1], n, settings=settings),
    )


def run(method: str, seed: int = 0, findings: Sequence[Finding] | None = None) -> RunFiles:
    settings = {"method": method, "seed": seed, "data": "digits"}
    return RunFiles(f"{method}-{seed}", settings=settings, findings=tuple(found() if findings is None else findings))


def made(runs: Sequence[RunFiles]) -> Section:
    section = curvature(runs)
    assert section is not None
    return section


def table(section: Section) -> Table:
    block = section.blocks[0]
    assert isinstance(block, Table)
    return block


def charts(section: Section) -> dict[str, Chart]:
    (side,) = [block for block in section.blocks if isinstance(block, Side)]
    return {block.title: block for block in side.blocks if isinstance(block, Chart)}


def texts(section: Section) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table(section).rows]


def widths(svg: str) -> list[float]:
    return [float(w) for w in re.findall(r'<rect class="bar[^>]* width="([\d.]+)"', svg)]


def test_is_a_chapter_and_stays_away_without_findings() -> None:
    assert SECTIONS["curvature"].made is curvature
    assert curvature([RunFiles("bare")]) is None
    assert curvature([run("erm", findings=[Finding("accuracy", "accuracy", 0.5, 10)])]) is None


def test_one_run() -> None:
    section = made([run("erm")])
    assert texts(section) == [["erm", "10", "4", "2.5", "1,000", "1"]]
    assert table(section).note == ""
    assert "flat" in section.lead
    assert "r²/2" in section.lead


def test_seeds_are_mean_and_sample_deviation() -> None:
    runs = [run("erm", s, found((10.0 + 2 * s, 1.0, 1.0, 1.0, 4.0))) for s in range(3)]
    section = made([*runs, run("sam")])
    assert texts(section)[0] == ["erm", "12.0 ± 2.0", "4 ± 0", "3.00 ± 0.50", "1,000", "3"]
    assert texts(section)[1] == ["sam", "10", "4", "2.5", "1,000", "1"]
    assert table(section).note == "Mean ± sample standard deviation over seeds."
    assert table(section).rows[0][1].value == pytest.approx(12.0)


def test_bars_are_as_long_as_eigenvalues_are_large() -> None:
    chart = charts(made([run("erm")]))["Largest eigenvalues"]
    lengths = widths(chart.svg)
    assert len(lengths) == 5
    assert [length / lengths[0] for length in lengths] == pytest.approx([1, 0.8, 0.6, 0.5, 0.4], abs=0.01)
    assert chart.svg.count('class="whisker"') == 5
    assert "λ5, erm: 4, residual 0.004" in chart.svg
    assert "residuals" in chart.note
    assert chart.legend == ()


def test_whiskers_are_deviations_over_seeds() -> None:
    runs = [run("erm", s, found((10.0 + 2 * s, 1.0, 1.0, 1.0, 4.0))) for s in range(3)]
    chart = charts(made(runs))["Largest eigenvalues"]
    assert "λ1, erm: 12.0 ± 2.0" in chart.svg
    assert "standard deviation" in chart.note
    (start, end), *_ = re.findall(r'class="whisker" d="M([\d.]+) [\d.]+H([\d.]+)', chart.svg)
    assert (float(end) - float(start)) / widths(chart.svg)[0] == pytest.approx(4 / 12, abs=0.01)


def test_negative_eigenvalues_go_the_other_way() -> None:
    svg = charts(made([run("erm", findings=found((2.0, 1.0, -1.0, -1.0, -2.0)))]))["Largest eigenvalues"].svg
    starts = [float(x) for x in re.findall(r'<rect class="bar[^>]* x="([\d.]+)"', svg)]
    assert starts[0] == starts[1] > starts[2] > starts[4]
    assert widths(svg)[0] == pytest.approx(widths(svg)[4], abs=0.2)


def test_methods_share_charts_and_have_their_colours() -> None:
    section = made([run("erm"), run("sam", findings=found((5.0, 4.0, 3.0, 2.5, 2.0)))])
    bars, density = charts(section).values()
    assert bars.legend == density.legend == ((0, "erm"), (1, "sam"))
    assert widths(bars.svg)[0] == pytest.approx(2 * widths(bars.svg)[1], abs=0.2)
    assert 'class="line s0"' in density.svg
    assert 'class="line s1"' in density.svg


def test_density_is_logarithmic_and_shows_single_eigenvalues_only() -> None:
    svg = charts(made([run("erm")]))["Density of eigenvalues, logarithmic"].svg
    segments = re.findall(r'class="line s0" d="M([^"]*)"', svg)
    assert len(segments) == 2  # the bulk, and the bell at 10; nothing between them
    assert ">0.001</text>" in svg
    assert ">10</text>" in svg


def test_small_eigenvalues_get_a_larger_unit() -> None:
    findings = found(density={"grid": [x / 100 for x in GRID], "density": BELLS})
    svg = charts(made([run("erm", findings=findings)]))["Density of eigenvalues, logarithmic"].svg
    assert "eigenvalue × 100" in svg
    assert ">10</text>" in svg


def test_seeds_are_averaged_on_one_grid() -> None:
    far = {"grid": [x + 5 for x in GRID], "density": BELLS}
    svg = charts(made([run("erm"), run("erm", 1, found(density=far))]))["Density of eigenvalues, logarithmic"].svg
    ys = [float(y) for part in re.findall(r'class="line s0" d="M([^"]*)"', svg) for y in re.findall(r" ([\d.]+)", part)]
    single = charts(made([run("erm")]))["Density of eigenvalues, logarithmic"].svg
    peak = min(float(y) for y in re.findall(r" ([\d.]+)", re.findall(r'class="line s0" d="M([^"]*)"', single)[0]))
    assert min(ys) > peak + 5  # half the height, on a logarithmic axis whose top is the peak of one run


def test_all_eigenvalues_are_listed() -> None:
    (details,) = [block for block in made([run("erm")]).blocks if isinstance(block, Details)]
    (listed,) = details.blocks
    assert isinstance(listed, Table)
    assert [cell.text for cell in listed.rows[0]] == ["λ1", "10", "0.01", "yes"]
    assert [cell.text for cell in listed.rows[4]] == ["λ5", "4", "0.004", "no"]


def test_different_numbers_of_images_are_pointed_out() -> None:
    section = made([run("erm"), run("sam", findings=found(n=250))])
    assert "same number" in table(section).note
    assert [row[4] for row in texts(section)] == ["1,000", "250"]


def test_a_reason_takes_the_place_of_numbers() -> None:
    failed = Finding("curvature", "top_eigenvalue", None, 0, evidence={"reason": "no gradient flows"})
    section = made([run("erm", findings=[failed])])
    assert texts(section) == [["erm", "not measured", "", "", "", "0 of 1"]]
    assert table(section).note == "erm: no gradient flows."
    assert len(section.blocks) == 1
    beside = made([run("erm", findings=[failed]), run("sam")])
    assert widths(charts(beside)["Largest eigenvalues"].svg)


def test_a_ratio_without_a_value_is_explained() -> None:
    findings = [*found()[:2], Finding("curvature", "eigenvalue_ratio", None, 0, evidence={"reason": "λ5 is zero"})]
    section = made([run("erm", findings=findings)])
    assert texts(section)[0][3] == "not measured"
    assert table(section).note == "erm: λ5 is zero."


@pytest.mark.parametrize(
    "damage",
    [
        {"eigenvalues": None},
        {"eigenvalues": [None, 1.0]},
        {"residuals": "none"},
        {"density": None},
        {"density": {"grid": [1.0], "density": [None]}},
        {"density": {"grid": [1.0], "density": [2.0]}},
        {"density": [1, 2]},
        {"converged": None},
        {"eigenvalues": [0.0] * 5, "residuals": [0.0] * 5},
        {"density": {"grid": GRID, "density": [0.0] * len(GRID)}},
        {"density": {"grid": [2.0, 1.0, 1.0], "density": [1.0, 2.0, 3.0]}},
    ],
    ids=range(11),
)
def test_damaged_evidence_does_not_stop_the_report(damage: dict[str, Any]) -> None:
    damaged = run("erm", findings=found(**damage))
    for runs in ([damaged], [damaged, run("sam")]):
        assert Page(render(runs)).column("Curvature by method", "λ1")[0].text == "10"


def test_names_are_escaped() -> None:
    failed = Finding("curvature", "top_eigenvalue", None, 0, evidence={"reason": "<script>alert(1)</script>"})
    text = render([run("<b>", findings=[failed]), run("<i>&")])
    assert "<script>alert" not in text
    assert "<i>&" not in text
