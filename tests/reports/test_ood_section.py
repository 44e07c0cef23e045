"""The chapter on unknown inputs: the curves of every model, and of the scores that tell most."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Block, Chart, Details, Section, Side, Table
from holdfast.reports.html import render
from holdfast.reports.sections.ood import ood as unknown
from holdfast.types import Finding

HIGHEST = {"msp": 0.7, "energy": 0.9, "knn": 0.8, "vim": 0.6, "mahalanobis": 0.5}


def run(name: str, corner: float, best: str = "energy") -> RunFiles:
    """Every ROC goes over one corner, whose height tells the models apart; the best score is as named."""
    curves = {"roc": [[0.0, 0.0], [0.1, corner], [1.0, 1.0]], "pr": [[0.0, 1.0], [1.0, corner]]}
    evidence = {"curves": curves, "histogram": {"low": 0.0, "high": 1.0, "normal": [3, 1], "ood": [1, 3]}}
    found = [
        Finding("ood", "ood_auroc", 0.95 if score == best else value, 100, 0.4, 1.0, {"score": score}, {}, evidence)
        for score, value in HIGHEST.items()
    ]
    return RunFiles(name, settings={"method": name}, findings=tuple(found))


def charts(blocks: Sequence[Block]) -> dict[str, Chart]:
    flat = [b for block in blocks for b in (block.blocks if isinstance(block, Side) else (block,))]
    return {b.title: b for b in flat if isinstance(b, Chart)}


def made(*runs: RunFiles) -> Section:
    section = unknown(runs)
    assert section is not None
    return section


def corners(chart: Chart) -> list[float]:
    """Heights of the second point of every line."""
    return [float(y) for y in re.findall(r' d="M[\d.]+ [\d.]+L[\d.]+ ([\d.]+)L', chart.svg)]


def test_one_model_shows_its_best_scores() -> None:
    section = made(run("erm", 0.8))
    shown = charts(section.blocks)
    assert list(shown) == ["AUROC", "ROC", "Precision and recall", "Distribution of energy"]
    assert len(corners(shown["ROC"])) == 4
    assert "mahalanobis" not in shown["ROC"].svg
    assert not [b for b in section.blocks if isinstance(b, Details) and b.summary == "Curves of each"]


def test_every_model_is_in_the_curves_by_its_best_score() -> None:
    section = made(run("erm", 0.4), run("lff", 0.8, best="knn"), run("jtt", 0.6))
    shown = charts(section.blocks)
    assert list(shown) == ["AUROC", "ROC, best score of each", "Precision and recall, best score of each"]
    roc = shown["ROC, best score of each"]
    assert all(f"{name} ends at" in roc.svg for name in ("erm, energy", "lff, knn", "jtt, energy"))
    low, high, middle = corners(roc)
    assert high < middle < low  # further up is less
    assert middle - high == pytest.approx((low - high) / 2, abs=0.1)


def test_all_scores_of_each_model_are_there_on_demand() -> None:
    runs = [run("erm", 0.4), run("lff", 0.8, best="knn")]
    (each,) = [b for b in made(*runs).blocks if isinstance(b, Details) and b.summary == "Curves of each"]
    shown = charts(each.blocks)
    assert list(shown) == [
        "ROC, erm", "Precision and recall, erm", "Distribution of energy, erm",
        "ROC, lff", "Precision and recall, lff", "Distribution of knn, lff",
    ]  # fmt: skip
    assert len(set(corners(shown["ROC, erm"]))) == 1
    assert corners(shown["ROC, erm"])[0] > corners(shown["ROC, lff"])[0]
    ids = re.findall(r'<svg id="([^"]+)"', render(runs))
    assert len(ids) == len(set(ids))


def test_long_names_are_in_a_legend() -> None:
    section = made(run("a-method-with-a-very-long-name", 0.4), run("lff", 0.8))
    roc = charts(section.blocks)["ROC, best score of each"]
    assert [label for _, label in roc.legend] == ["a-method-with-a-very-long-name, energy", "lff, energy"]


def test_scores_and_sets_are_told_in_words() -> None:
    """A reader who does not know the letters, or the set, learns what they stand for."""
    found = [
        Finding("ood", "ood_auroc", 0.9, 100, 0.8, 0.95, {"score": score, **of})
        for score in ("msp", "energy")
        for of in ({}, {"ood": "digits"}, {"ood": "mine"})
    ]
    section = unknown([RunFiles("net", findings=tuple(found))])
    assert section is not None
    tables = {block.caption: block for block in section.blocks if isinstance(block, Table)}
    assert tables["By score"].note == ("msp: 1 − the classifier's confidence. energy: −log Σ exp of the logits.")
    assert [row[1].text for row in tables["AUROC by OOD set"].rows] == [
        "1,797 grey handwritten digits", "images that the audit was given",
    ]  # fmt: skip
