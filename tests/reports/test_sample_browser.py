"""What the filters of the page search: answers to all samples, and a sheet of small pictures."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.audits.checks.accuracy import shown_samples
from holdfast.audits.checks.accuracy.shown_samples import answers, examples
from holdfast.audits.subject import Subject
from holdfast.data import load
from holdfast.models import build_model
from holdfast.reports import RunFiles
from holdfast.reports.html import render
from holdfast.reports.sample_browser import as_script, browser_data, within
from holdfast.types import Finding
from tests.reports.page import Page


@pytest.fixture(scope="module")
def subject() -> Subject:
    data = load("coloured-digits")
    torch.manual_seed(0)
    model = build_model("convnet", num_classes=10, in_channels=3, image_size=data.shape[1:]).model
    return Subject(model, data, torch.device("cpu"))


def numbers(column: str) -> list[int]:
    return [int(word) for word in column.split()]


def run_of(evidence: Any) -> RunFiles:
    data = {"name": "digits", "group_attribute": "colour"}
    return RunFiles("net", findings=(Finding("accuracy", "samples", None, 0, evidence=evidence),), data=data)


def test_answers_are_those_of_the_model_and_the_sheet_shows_their_images(subject: Subject) -> None:
    found = answers(subject)
    seen = subject.predictions
    assert numbers(found["label"]) == seen.labels.tolist()
    assert numbers(found["prediction"]) == seen.logits.argmax(1).tolist()
    assert "positions" not in found, "all are listed"
    sheet = found["sheet"]
    places = numbers(sheet["places"])
    image = Image.open(io.BytesIO(base64.b64decode(sheet["png"]))).convert("RGB")
    side = sheet["side"]
    assert side == 16
    for k in (0, 7, len(places) - 1):
        x, y = k % sheet["columns"] * side, k // sheet["columns"] * side
        shown = torch.from_numpy(np.array(image.crop((x, y, x + side, y + side)))).reshape(-1, 3).float()
        own = subject.split.read(torch.tensor([places[k]]))[0].permute(1, 2, 0).reshape(-1, 3).float()
        assert (shown - own).abs().mean() < 12, "256 colours, but the same image"


def test_of_more_samples_a_draw_is_kept_with_its_positions(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_samples, "MOST_ANSWERS", 100)
    monkeypatch.setattr(shown_samples, "SHEET_BYTES", 20_000)
    found = answers(subject)
    assert found["of"] == len(subject.split)
    assert len(numbers(found["label"])) == 100
    assert numbers(found["label"]) == subject.split.labels[numbers(found["positions"])].tolist()
    assert len(found["sheet"]["png"]) <= 20_000
    made = browser_data(run_of({"listed": found}))
    assert made is not None
    assert made["of"] == len(subject.split)


def test_examples_are_aligned_first_and_of_one_class_each(subject: Subject) -> None:
    rows = examples(subject)
    assert [row["bias"] for row in rows] == ["aligned"] * 6 + ["conflicting"] * 6
    assert [row["label"] for row in rows] == [*"012345", *"012345"]
    for row in rows:
        assert bool(subject.sides[row["bias"]][row["position"]])


GOOD: dict[str, Any] = {
    "of": 3, "classes": ["a", "b"], "groups": ["red"], "label": "0 1 1", "prediction": "0 0 1",
    "confidence": "900 1000 0", "group": "0 -1 0",
}  # fmt: skip
BAD: dict[str, Any] = {
    "label out of range": {"label": "0 1 2"},
    "label not whole": {"label": "0 1 0.5"},
    "other digits": {"label": "0 1 ²"},
    "labels a list": {"label": [0, 0, 1]},
    "too long": {"label": "0 " * 1_000_000 + "0"},
    "predictions too few": {"prediction": "0 0"},
    "predictions of words": {"prediction": "a b c"},
    "no samples": {"label": "", "prediction": ""},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_answers_is_left_out(name: str) -> None:
    assert browser_data(run_of({"listed": GOOD})) is not None
    assert browser_data(run_of({"listed": {**GOOD, **BAD[name]}})) is None


def test_a_part_that_is_wrong_is_left_out_alone() -> None:
    bad = {
        "confidence": [2000, 0, 0],
        "group": [5, 0, 0],
        "sheet": {"png": "x", "side": 16, "columns": 2, "places": "0"},
    }
    made = browser_data(run_of({"listed": {**GOOD, **bad}}))
    assert made is not None
    assert not {"confidence", "group", "sheet"} & {*made}
    assert made["word"] == "colour"


def test_names_cannot_end_the_script_and_bytes_are_limited() -> None:
    evil = browser_data(run_of({"listed": {**GOOD, "classes": ["</script><b>", "&"]}}))
    assert evil is not None
    text = as_script(evil)
    assert "<" not in text
    assert json.loads(text)["classes"] == ["</script><b>", "&"]
    turned = browser_data(run_of({"listed": {**GOOD, "classes": ["a\u202eb", "c\x1b[31m"]}}))
    assert turned is not None
    assert not set("\u202e\x1b") & set("".join(turned["classes"]))
    pictured = {**evil, "sheet": {"source": "x" * 5000}}
    assert [None if one is None else "sheet" in one for one in within([pictured, pictured, evil, evil], 6000)] == [
        True, False, False, False,
    ]  # fmt: skip
    assert within([pictured], 10) == [None]


def test_without_images_the_page_has_neither_sheet_nor_examples(subject: Subject) -> None:
    run = run_of(shown_samples.shown_samples(subject))
    assert len(Page(render([run])).attributes("img")) > 24
    bare = render([run], images=False)
    assert "data:image" not in bare
    assert 'class="answers"' not in bare
