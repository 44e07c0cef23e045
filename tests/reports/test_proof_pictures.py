"""The pictures below the first sentence: they show the failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.reports import RunFiles, read_runs
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.proof_pictures import proof_pictures
from holdfast.types import Finding
from tests.reports.fake_runs import COLOURS, png
from tests.reports.page import Page

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"
CLEAN = Finding("accuracy", "accuracy", 0.93, 1000, 0.91, 0.95)


def audit(*found: Finding, spec: str = "runs/net", source: str = "run", **more: Any) -> RunFiles:
    checks = tuple(CheckRecord(name, "measured") for name in dict.fromkeys(f.check for f in found))
    model, data = {"name": "net", "spec": spec, "source": source}, {"name": "birds"}
    return replace(RunFiles("net", findings=found, checks=checks, model=model, data=data), **more)


def test_the_sample_shows_one_failure_of_each_kind() -> None:
    """The same image for both models, one that the first gets wrong and the second right."""
    erm, lff = read_runs([SAMPLE])
    gallery = proof_pictures([erm, lff])
    assert gallery is not None
    assert [p.title for p in gallery.pictures] == [
        "5 taken for 9", "where erm looks", "where lff looks", "9 recognised", "9 taken for 1", "noise taken for 9",
    ]  # fmt: skip
    assert [p.wrong for p in gallery.pictures] == [True, True, False, False, True, True]
    alone = proof_pictures([erm])
    assert alone is not None
    cell = next(f.evidence["cell"] for f in erm.findings if f.name == "worst_group_accuracy")
    assert alone.pictures[0].title.startswith(f"{cell['class']} taken for ")
    assert f"colour {cell['group']}" in alone.pictures[0].detail, "of the worst cell, where there is one"


def test_without_saliency_the_mistakes_of_the_worst_group_come_first() -> None:
    shown = [
        {"png": png("7", COLOURS[g]), "label": "7", "prediction": said, "confidence": c, "group": g}
        for g, said, c in (("red", "1", 0.99), ("blue", "1", 0.5), ("blue", "7", 0.9), ("green", "2", 0.7))
    ]
    worst = Finding("groups", "worst_group_accuracy", 0.0, 9, evidence={"cell": {"class": "7", "group": "blue"}})
    run = audit(CLEAN, worst, Finding("accuracy", "samples", None, 0, evidence={"pictures": shown}))
    gallery = proof_pictures([run])
    assert gallery is not None
    assert [p.detail.split(",")[0] for p in gallery.pictures] == ["group blue", "group red", "group green"]
    assert Page(render([run], images=False)).attributes("img") == []


def test_what_is_not_a_picture_is_not_shown() -> None:
    rows = [{"png": "x", "label": "1", "prediction": "2", "looks": [{"prediction": "2"}], "position": [1]}, 7, None]
    found = [
        Finding(check, name, None, 0, evidence={key: given})
        for check, name, key in (
            ("saliency", "maps", "maps"), ("corruptions", "examples", "examples"), ("ood", "misses", "misses"),
            ("attacks", "examples", "examples"), ("accuracy", "samples", "pictures"),
        )
        for given in (rows, "no list", {"a": 1})
    ]  # fmt: skip
    assert proof_pictures([audit(CLEAN, *found)]) is None
