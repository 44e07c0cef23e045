"""An audit goes on where it was stopped, and keeps to its time."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.audits.measuring import Clock
from holdfast.audits.subject import Subject
from holdfast.cli import main
from holdfast.parts import CHECKS
from holdfast.reports import read_findings
from holdfast.train import Interrupted
from holdfast.types import Finding
from tests.audits.checks.run_checks import put
from tests.audits.nearest import MODEL, QUICK


@pytest.mark.slow
def test_an_interrupted_audit_goes_on_with_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    originals = {name: (CHECKS[name].made, CHECKS[name].made.run) for name in CHECKS}

    def watched(name: str, stop: bool) -> Any:
        def check(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
            ran.append(name)
            if stop:
                raise KeyboardInterrupt
            made, run = originals[name]
            return tuple(run(made(**settings), subject))

        return check

    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "slices", "--out", "out"]
    for name in ("accuracy", "groups", "slices"):
        put(monkeypatch, name, watched(name, name == "groups"))
    assert main(words) == 130
    assert "continues with the checks that are missing" in capsys.readouterr().err
    assert ran == ["accuracy", "groups"]
    assert not Path("out/findings.json").exists()
    put(monkeypatch, "groups", watched("groups", False))
    ran.clear()
    assert main(words) == 0
    assert ran == ["groups", "slices"]
    first = read_findings("out/findings.json").findings
    ran.clear()
    assert main(words) == 0
    assert ran == []
    assert read_findings("out/findings.json").findings == first
    assert main([*words, "--seed", "1"]) == 0
    assert ran == ["accuracy", "groups", "slices"]  # other settings: nothing of the old is taken
    ran.clear()
    text = (folder / "nearest.py").read_text()
    (folder / "nearest.py").write_text(
        text.replace(
            "model = nn.Sequential(nn.Flatten()",
            "model = nn.Sequential(nn.ReLU6(), nn.Threshold(0.5, 0.0), nn.Flatten()",
        )
    )
    sys.modules.pop("nearest", None)
    assert main([*words, "--seed", "1"]) == 0
    assert ran == ["accuracy", "groups", "slices"]  # the same weights behind other code are another model


@pytest.mark.parametrize(("end", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("training", 130), ("import", 143)])
def test_every_way_to_stop_keeps_what_was_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    def stopped(subject: Subject) -> tuple[Finding, ...]:
        if end == "import":  # what an extension in C makes of a signal while it is imported
            raise ImportError("initialization failed") from Interrupted(signal.SIGTERM)
        try:
            if end == "training":  # what the engine raises where a check trains a model of its own
                raise Interrupted(signal.SIGINT, "stopped at step 3")
            os.kill(os.getpid(), getattr(signal, end))
            time.sleep(10)
        except Exception as error:
            pytest.fail(f"the code of a model could swallow {error!r}")
        return ()

    groups = CHECKS["groups"].made.run
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started deaf to it
    before = signal.getsignal(signal.SIGTERM)
    put(monkeypatch, "groups", stopped)
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "--out", "out"]
    assert main(words) == code
    assert signal.getsignal(signal.SIGTERM) == before
    assert "continues with the checks that are missing" in capsys.readouterr().err
    assert [p.name for p in Path("out/checks").iterdir()] == ["accuracy.json"]
    monkeypatch.setattr(CHECKS["groups"].made, "run", groups)
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "accuracy: measured before" in said
    assert "groups: measured," in said


def test_a_budget_is_said_and_what_it_leaves_no_time_for_is_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "corruptions", "saliency", "--out", "out"]
    assert main([*words, "--budget", "0.001s"]) == 0
    states = {r.name: (r.state, r.reason) for r in read_findings("out/findings.json").checks}
    assert states["accuracy"][0] == "measured"
    assert states["corruptions"] == ("skipped", "the time of --budget is spent")
    assert "the time of --budget is spent" in capsys.readouterr().err


class Paced:
    """A check that takes a while for every image, and writes down how it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, []

    def __call__(self, subject: Subject, *, images: int | None = None, **others: Any) -> tuple[Finding, ...]:
        n = len(subject.split) if images is None else images
        self.asked.append({"images": n, **others})
        time.sleep(self.seconds * n)
        return (Finding("attacks", "attack_error", 0.5, n, 0.4, 0.6, settings={"images": n}),)


def attacked(check: Paced, budget: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Finding]:
    put(monkeypatch, "attacks", check)
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "attacks", "--out", "out", "--budget", budget]) == 0
    found = read_findings("out/findings.json")
    return next(asdict(r) for r in found.checks if r.name == "attacks"), found.findings[-1]


@pytest.mark.usefixtures("folder")
def test_a_costly_check_looks_at_as_many_images_as_its_time_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Clock, "share", lambda *_: 2.0)  # however long it took to come here
    check = Paced(seconds=0.02)
    record, finding = attacked(check, "1m", monkeypatch)
    tried, *_, last = (asked["images"] for asked in check.asked)
    assert tried == 16
    assert 16 < last < 2.0 / 0.02
    assert sum(asked["images"] for asked in check.asked) * 0.02 <= 2.0
    assert finding.n == last
    assert record["state"] == "measured"
    said = capsys.readouterr().err
    assert f"{last} images instead of" in said
    assert "there is no time to train a surrogate model" in said
    assert all(asked["transfer"] is False for asked in check.asked)


@pytest.mark.usefixtures("folder")
def test_with_time_enough_a_check_is_measured_as_without_a_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Paced(seconds=0.0)
    attacked(check, "30m", monkeypatch)
    assert "transfer" not in check.asked[-1]
    assert check.asked[-1]["images"] > 16
    said = capsys.readouterr().err
    assert "instead of" not in said
    assert "surrogate" not in said
