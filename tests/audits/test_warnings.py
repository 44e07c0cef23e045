"""What changes how to read a number is never hidden: not by --quiet, in no rendering, not by resuming an audit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import holdfast
from holdfast.audits.subject import Subject
from holdfast.cli import main
from holdfast.reports.findings_file import read_findings
from holdfast.types import Finding
from tests.audits.checks.run_checks import put
from tests.audits.nearest import MODEL, QUICK
from tests.reports.page import Page

WIDE = ["audit", "python:nearest:wide", *QUICK, "--checks", "accuracy", "--out", "out"]
PARTIAL = "10 of the data's 10 classes are among the model's 12"


def renderings(out: Path) -> dict[str, str]:
    """What a reader of each file sees without opening anything further."""
    cases = ElementTree.parse(out / "junit.xml").getroot().iter("skipped")
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    return {
        "findings.json": "\n".join(read_findings(out / "findings.json").warnings),
        "summary.md": (out / "summary.md").read_text(encoding="utf-8").partition("###")[0],
        "junit.xml": "\n".join(case.attrib["message"] for case in cases),
        "report.html": "\n".join([*page.text("h1"), *page.text("span")]),
    }


@pytest.mark.parametrize("more", [[], ["--quiet"], ["--quiet", "--json"]])
def test_a_warning_is_on_stderr_in_every_rendering_and_in_the_closing_line(
    folder: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main([*WIDE, *more]) == 0
    shown = capfd.readouterr()
    assert PARTIAL in shown.err
    if "--json" in more:
        assert PARTIAL in "\n".join(json.loads(shown.out)["model"]["warnings"])
    else:
        *_, closing, where = shown.out.strip().splitlines()
        assert PARTIAL in closing
        assert where.startswith("report: ")
    for name, text in renderings(folder / "out").items():
        assert PARTIAL in text, name
    assert "Read the warning first" in renderings(folder / "out")["report.html"]


def test_without_a_warning_nothing_is_said_of_one(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "--out", "out", "--quiet", "--fail-on-warning"]
    assert main(words) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert "arning" not in shown.out.replace("no warnings", "")
    assert "the gate passed" in shown.out


def test_a_pipeline_can_fail_on_a_warning(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*WIDE, "--quiet", "--fail-on-warning", "--fail-under", "accuracy=0"]) == 1
    assert "1 of 2 gates failed" in capfd.readouterr().out
    gate = json.loads((folder / "out" / "findings.json").read_text())["gates"][-1]
    assert (gate["name"], gate["kind"], gate["passed"]) == ("no warnings", "fail-on-warning", False)
    assert PARTIAL in gate["reason"]
    (failure,) = ElementTree.parse(folder / "out" / "junit.xml").getroot().iter("failure")
    assert PARTIAL in failure.attrib["message"]


def test_predictions_of_a_part_of_the_data_say_so_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """299 answers to 800 images."""
    monkeypatch.chdir(tmp_path)
    labels = np.arange(800) % 2
    pixels = np.zeros((800, 4, 4), np.uint8)
    np.savez("eyes.npz", x_train=pixels[:20], y_train=labels[:20], x_test=pixels, y_test=labels)
    rows = [f"{i},{labels[i] if i % 4 else 1 - labels[i]}" for i in range(299)]
    Path("answers.csv").write_text("\n".join(["position,prediction", *rows]))
    words = ["audit", "--predictions", "answers.csv", "--data", "eyes.npz", "--device", "cpu", "--out", "out"]
    assert main([*words, "--quiet"]) == 0
    shown = capfd.readouterr()
    said = "covers 299 of 800 test images"
    for name, text in {"stderr": shown.err, "stdout": shown.out, **renderings(tmp_path / "out")}.items():
        assert said in text, name
    assert main([*words, "--quiet", "--fail-on-warning"]) == 1


def test_what_a_check_warns_of_is_said_again_when_its_result_is_taken_from_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    doubt = "gradients masked: do not trust"

    def attacks(subject: Subject) -> tuple[Finding, ...]:
        evidence = {"trusted": False, "warning": doubt}
        return (Finding("attacks", "robust_accuracy", 0.9, 10, 0.6, 1.0, {"radius": "8/255"}, evidence=evidence),)

    put(monkeypatch, "attacks", attacks)
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "attacks", "--out", "out", "--quiet"]
    for _ in range(2):
        assert main(words) == 0
        shown = capfd.readouterr()
        assert f"warning: {doubt}" in shown.err
        assert f"Warning: attacks: {doubt}" in shown.out
        for name, text in renderings(folder / "out").items():
            assert f"attacks: {doubt}" in text, name
    with pytest.warns(RuntimeWarning, match=doubt):
        made = holdfast.audit(MODEL, "coloured-digits", checks=["attacks"], device="cpu", fail_on_warning=True)
    assert (made.passed, made.exit_code) == (False, 1)
