"""What stands below the first sentence: pictures that show the failure, and commands that fit what was found."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.parts import CHECKS
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.next_steps import next_steps
from holdfast.reports.proof_pictures import proof_pictures
from holdfast.types import Finding
from tests.commands import require_understood
from tests.reports.fake_runs import COLOURS, png
from tests.reports.page import Page

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"
CLEAN = Finding("accuracy", "accuracy", 0.93, 1000, 0.91, 0.95)
REMEDIES = sorted({command for part in CHECKS.values() for m in part.measures for command in m.remedies})


@pytest.mark.parametrize("command", REMEDIES)
def test_every_declared_remedy_is_a_command_that_is_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"RUN": "runs/a", "MODEL": "runs/a", "DATA": "digits"}
    program, *words = (values.get(word, word) for word in command.split())
    assert program == "holdfast"
    monkeypatch.chdir(tmp_path)
    require_understood(words, monkeypatch)


def audit(*found: Finding, spec: str = "runs/net", source: str = "run", **more: Any) -> RunFiles:
    checks = tuple(CheckRecord(name, "measured") for name in dict.fromkeys(f.check for f in found))
    model, data = {"name": "net", "spec": spec, "source": source}, {"name": "birds"}
    return replace(RunFiles("net", findings=found, checks=checks, model=model, data=data), **more)


def commands(run: RunFiles) -> list[str]:
    return [command for step in next_steps([run]) for command in step.commands]


CONFLICTING = (
    Finding("groups", "bias_conflicting_accuracy", 0.4, 500, 0.36, 0.44),
    Finding("groups", "bias_gap", 0.55, 1000, 0.5, 0.6),
)


def test_commands_fit_what_was_found() -> None:
    shortcut = ["shortcuts runs/net", "repair runs/net", "train --data birds --method logit-correction"]
    assert commands(audit(CLEAN, *CONFLICTING)) == [f"holdfast {words}" for words in shortcut]
    auroc = Finding("ood", "ood_auroc", 0.6, 300, 0.5, 0.7, {"score": "msp"})
    assert commands(audit(CLEAN, auroc)) == ["holdfast detect fit --data birds --run runs/net"]
    good = replace(auroc, value=0.97)
    unsure = Finding("accuracy", "ece", 0.09, 1000, evidence={"chance_high": 0.05})
    assert commands(audit(CLEAN, unsure, good)) == ["holdfast repair runs/net --by none"]
    masked = Finding("attacks", "trusted", 0.0, 100)
    assert commands(audit(CLEAN, masked)) == [
        "holdfast audit runs/net --data birds --checks attacks --set attacks.images=1000"
    ]


def test_where_nothing_is_bad_gates_are_proposed_unless_there_are_some() -> None:
    calibrated = Finding("accuracy", "ece", 0.04, 1000, evidence={"chance_high": 0.05})
    fine = audit(CLEAN, calibrated)
    assert commands(fine) == ["holdfast audit runs/net --data birds --fail-under accuracy=0.91"]
    assert commands(replace(fine, gates=({"name": "accuracy >= 0.9", "passed": True},))) == []
    assert next_steps([RunFiles("training")]) == []


def test_a_crashed_check_is_tried_again_first() -> None:
    run = audit(CLEAN, *CONFLICTING)
    run = replace(run, checks=(*run.checks, CheckRecord("attacks", "crashed", "no memory")))
    assert commands(run)[0] == "holdfast audit runs/net --data birds --checks attacks"


def test_names_are_one_word_of_a_command_and_a_file_is_not_taken_for_a_run() -> None:
    evil = "a b; rm -rf ~ $(x) `y` 'z'"
    run = audit(CLEAN, *CONFLICTING, spec=evil, source="run")
    assert [shlex.split(command)[2] for command in commands(run)[:2]] == [evil, evil]
    assert commands(audit(CLEAN, *CONFLICTING, source="file")) == [
        "holdfast train --data birds --method logit-correction"
    ]


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
