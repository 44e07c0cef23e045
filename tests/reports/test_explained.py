"""Charts that are counted again from single answers, sets with a word on each, and what every number is."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from holdfast.reports import RunFiles, read_runs
from holdfast.reports.arms import arms
from holdfast.reports.blocks import Chart, Section, Table
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.sections.accuracy import accuracy
from holdfast.reports.sections.ood import ood
from holdfast.types import Finding
from tests.reports.page import Page
from tests.reports.test_proof_pictures import SAMPLE

CLEAN = Finding("accuracy", "accuracy", 0.7, 10, 0.4, 0.9)


def blocks(section: Section | None, kind: type) -> dict[str, object]:
    assert section is not None
    every = [inner for block in section.blocks for inner in getattr(block, "blocks", (block,))]
    return {getattr(b, "title", "") or getattr(b, "caption", ""): b for b in every if isinstance(b, kind)}


def points(chart: object) -> list[tuple[float, float]]:
    """What the tooltips say: the place on the axis, and the number of the first line there."""
    assert isinstance(chart, Chart)
    titles = re.findall(r"<title>[^<\n]*, %[^<\n]* ([\d.]+)\n[^<\n]* ([\d.]+)", str(chart.svg))
    return [(float(x), float(y)) for x, y in titles]


def test_risk_and_coverage_are_those_of_the_surest_images() -> None:
    """Against the errors among the k surest of 60 answers, in bins of 12."""
    draw = np.random.default_rng(0)
    confidence = np.sort(draw.uniform(0.2, 1.0, 60))
    right = draw.uniform(size=60) < confidence
    bins = [slice(i, i + 12) for i in range(0, 60, 12)]
    reliability = {
        "low": [float(confidence[b].min()) for b in bins], "high": [float(confidence[b].max()) for b in bins],
        "n": [12] * 5, "accuracy": [float(right[b].mean()) for b in bins],
    }  # fmt: skip
    found = Finding("accuracy", "ece_adaptive", 0.1, 60, evidence={"reliability": reliability})
    made = accuracy([RunFiles("net", findings=(CLEAN, found))])
    expected = [(20.0 * k, 100 * float((~right[60 - 12 * k :]).mean())) for k in range(1, 6)]
    shown = points(blocks(made, Chart)["Risk and coverage: wrong answers, %"])
    assert shown == [(x, pytest.approx(y, abs=0.051)) for x, y in expected]


def test_confidences_are_shares_of_the_whole_test_set() -> None:
    reliability = {"low": [0.0, 0.5], "high": [0.5, 1.0], "n": [4, 6], "accuracy": [0.25, 1.0]}
    found = Finding("accuracy", "ece", 0.1, 10, evidence={"reliability": reliability})
    chart = blocks(accuracy([RunFiles("net", findings=(CLEAN, found))]), Chart)[
        "Confidence when right and when wrong, %"
    ]
    assert points(chart) == [(25.0, 10.0), (75.0, 60.0)], "right: 1 and 6 of 10"
    assert isinstance(chart, Chart)
    assert "wrong 30.0" in chart.svg
    assert "wrong 0.0" in chart.svg


def test_each_of_several_models_has_a_chart_of_its_own_on_one_scale() -> None:
    """Right and wrong of four models would be eight lines."""
    runs = []
    for name, share in (("a", 0.25), ("b", 0.5), ("c", 0.75), ("d", 1.0)):
        reliability = {"low": [0.0, 0.5], "high": [0.5, 1.0], "n": [4, 6], "accuracy": [share, 1.0]}
        found = Finding("accuracy", "ece", 0.1, 10, evidence={"reliability": reliability})
        runs.append(RunFiles(name, settings={"method": name}, findings=(CLEAN, found)))
    charts = blocks(accuracy(runs), Chart)
    own = [charts[f"Confidence when right and when wrong, %: {name}"] for name in "abcd"]
    assert [points(chart)[0] for chart in own] == [(25.0, 10.0), (25.0, 20.0), (25.0, 30.0), (25.0, 40.0)]
    scales = [re.findall(r'class="tick"[^>]*>([^<]+)<', str(chart.svg)) for chart in own if isinstance(chart, Chart)]
    assert scales == [scales[0]] * 4


def test_damaged_bins_are_not_drawn() -> None:
    for given in ({"low": "x", "n": [1]}, 3, {"low": [0.1], "high": [0.2], "n": [None], "accuracy": [1.0]}):
        found = Finding("accuracy", "ece", 0.1, 10, evidence={"reliability": given})
        made = accuracy([RunFiles("net", findings=(CLEAN, found))])
        assert "Confidence when right and when wrong, %" not in blocks(made, Chart)


def test_every_ood_set_has_its_auroc_and_a_word() -> None:
    told = {"data": {"x-rays": "folder/of/x-rays"}}
    found = [Finding("ood", "ood_auroc", 0.8, 200, 0.7, 0.9, {"score": "msp"}, told)]
    found += [
        Finding("ood", "ood_auroc", value, 100, where={"score": "msp", "ood": name}, settings=told)
        for name, value in (("noise", 0.223), ("x-rays", 0.913))
    ]
    table = blocks(ood([RunFiles("net", findings=tuple(found))]), Table)["AUROC by OOD set"]
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["noise", "random pixels in the size of the test images", "22.3"],
        ["x-rays", "folder/of/x-rays", "91.3"],
    ]


def test_maps_say_how_to_read_them_with_the_classes_of_the_data() -> None:
    page = render([RunFiles("net", findings=(replace(CLEAN, evidence={
        "confusion": {"classes": ["cat", "dog"], "matrix": [[5, 3], [1, 7]]},
    }),))])  # fmt: skip
    assert "How to read it: row cat, column dog: 38\u00a0% of class cat are taken for dog (3 of 8 images)." in page


def test_every_measure_of_the_sample_is_explained_and_linked_to() -> None:
    runs = read_runs([SAMPLE])
    page = Page(render(runs))
    _, *rows = page.tables["Measures"]
    explained = {row[0].text: row[1].text for row in rows}
    numbers = {key for arm in arms(runs) for key, found in arm.found.items() if any(f.value is not None for f in found)}
    titles = {arms(runs)[0].measure(key).title for key in numbers if key.check != "against"}
    assert set(explained) == titles
    assert all(text.endswith(".") and len(text) > 20 for text in explained.values())
    links = [a["href"] for a in page.attributes("a") if a.get("class") == "term"]
    ids = {values.get("id") for _, values in page.elements}
    assert len(set(links)) > 8
    assert {(link or "")[1:] for link in links} <= ids


def test_what_nobody_asked_for_has_no_row() -> None:
    checks = (
        CheckRecord("accuracy", "measured"), CheckRecord("ood", "skipped", "the time is up"),
        CheckRecord("saliency", "skipped", "it was not asked for", asked=False),
    )  # fmt: skip
    page = Page(render([RunFiles("net", findings=(CLEAN,), checks=checks)]))
    assert [row[0].text for row in page.tables["net on data"][1:]] == ["accuracy", "ood"]
