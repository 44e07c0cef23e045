"""The audit command from one end to the other, on a model whose answers can be computed by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from holdfast.audits.subject import Subject
from holdfast.cli import main
from holdfast.parts import CHECKS
from holdfast.reports import read_findings
from holdfast.reports.overview import shown
from holdfast.reports.run_files import read_runs
from holdfast.reports.text import part
from holdfast.types import Finding
from tests.audits.checks.run_checks import put
from tests.audits.nearest import MODEL, QUICK, answers, table
from tests.reports.page import Cell, Page


def test_the_folder_holds_what_was_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "slices", "--out", "out"]) == 0
    files = {p.name for p in Path("out").iterdir()}
    assert files == {"findings.json", "report.html", "summary.md", "junit.xml", "samples.csv", "checks"}
    predicted, labels = answers()
    right = predicted == labels
    read = read_findings("out/findings.json")
    (overall,) = [f for f in read.findings if (f.check, f.name, dict(f.where)) == ("accuracy", "accuracy", {})]
    assert overall.value == pytest.approx(right.double().mean().item())
    assert overall.n == len(right)
    assert {r.name: r.state for r in read.checks} == {
        name: "measured" if name in ("accuracy", "groups", "slices") else "skipped" for name in CHECKS
    }
    assert len(read.model["hash"]) == len(read.data["hash"]) == 64
    assert read.model["preprocessing"]["name"] == "stated"
    assert read.run["seed"] == 0
    assert read.run["torch"] == torch.__version__.partition("+")[0] or read.run["torch"] == torch.__version__
    assert read.run["command"].startswith("holdfast audit python:nearest:make --data coloured-digits")
    rows = table(Path("out"))
    assert [row["accuracy"] == "right" for row in rows] == right.tolist()
    assert [row["prediction"] for row in rows] == [str(p) for p in predicted.tolist()]
    worst = next(f for f in read.findings if f.name == "worst_group_accuracy")
    marked = [row for row in rows if row["groups"] == "worst"]
    assert sum(row["accuracy"] == "right" for row in marked) / len(marked) == pytest.approx(worst.value)
    out, err = capsys.readouterr()
    assert "3 of 3 checks measured" in out
    assert "accuracy: measured" in err
    assert "accuracy: measured" not in out


def test_a_report_is_headed_by_what_was_audited_on_what(folder: Path) -> None:
    for out, words in (("a", ["accuracy"]), ("b", ["groups"])):
        assert main(["audit", MODEL, *QUICK, "--checks", *words, "--quiet", "--out", out]) == 0
        page = Page(Path(out, "report.html").read_text(encoding="utf-8"))
        assert ("title", "python-nearest-make on coloured-digits – holdfast") in page.texts
        (heading,) = [text for tag, text in page.texts if tag == "h1"]
        assert heading.startswith("python-nearest-make")
    assert [run.name for run in read_runs(["a", "b"])] == ["a", "b"]


@dataclass
class Rows(Page):
    """The rows of every table of a page, also of those with the same caption."""

    every: list[list[Cell]] = field(default_factory=list)

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        if tag == "table":
            self.every += self.rows


@pytest.mark.parametrize("size", [1, 3])
def test_small_batches_give_the_same_answers(folder: Path, size: int) -> None:
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "--quiet", "--out", "out", "--batch-size", str(size)]
    assert main(words) == 0
    predicted, labels = answers()
    (overall,) = [f for f in read_findings("out/findings.json").findings if f.name == "accuracy" and not f.where]
    assert overall.value == pytest.approx((predicted == labels).double().mean().item())


def test_every_rendering_has_the_same_digits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Console, Markdown, JUnit and HTML against findings.json, number by number."""
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "--quiet", "--out", "out"]) == 0
    console = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    read = read_findings("out/findings.json")
    numbers = [f for f in read.findings if f.value is not None]
    assert len(numbers) > 50
    summary = Path("out/summary.md").read_text(encoding="utf-8").splitlines()
    cases = ElementTree.parse("out/junit.xml").getroot().iter("testcase")
    properties = {
        (case.attrib["name"], p.attrib["name"]): p.attrib["value"] for case in cases for p in case.iter("property")
    }
    page = Rows(Path("out/report.html").read_text(encoding="utf-8"))
    rows = [[cell.text.strip() for cell in row] for row in page.every]
    for f in numbers:
        value, interval = shown(f, {})
        percent, loss = f"{100 * f.value:.1f}", f"{f.value:.3f}"  # type: ignore[operator]
        unit = "points" if f.name.endswith(("gap", "drop")) else "%"
        assert value == (loss if f.name in ("nll", "brier") else f"{percent} {unit}")
        line = f"| {f.name.replace('_', chr(92) + '_')} | {part(f.where)} | {value} | {interval} | {f.n:,} |"
        assert line in summary
        spread = f" ({interval})" if interval else ""
        assert properties[f.check, f"{f.name}, {part(f.where)}"] == f"{value}{spread}, n {f.n:,}"
    full = {cell.value for row in page.every for cell in row}
    for f in numbers:
        value, interval = shown(f, {})
        if (f.check, f.name) == ("accuracy", "accuracy"):
            assert [f.name, part(f.where), value, interval, f"{f.n:,}"] in rows, f
        elif f.name != "ece_adaptive":  # the page draws it, as a curve
            assert f.value in full, f
    for name in ("accuracy", "worst_group_accuracy", "group_balanced_accuracy"):
        f = next(f for f in numbers if f.name == name)
        value, interval = shown(f, {})
        told = [line for line in console if line.startswith(f"{f.check} measured")]
        assert any(line.endswith(f" {value} {interval} {f.n:,}") for line in told), name


def test_a_gate_passes_fails_and_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "--quiet", "--out", "out"]
    assert main([*words, "--fail-under", "accuracy=0.2", "--fail-under", "worst_group_accuracy=0.0"]) == 0
    assert main([*words, "--fail-under", "accuracy=0.999"]) == 1
    assert main([*words, "--fail-under", "robust_accuracy@8/255=0"]) == 1  # never measured
    failed = ElementTree.parse("out/junit.xml").getroot().findall(".//failure")
    assert len(failed) == 1
    assert "was not measured" in failed[0].attrib["message"]

    def bad(_: Subject) -> tuple[Finding, ...]:
        raise RuntimeError("on purpose")

    put(monkeypatch, "slices", bad)
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "slices", "--quiet", "--out", "crash"]) == 3
    read = read_findings("crash/findings.json")
    states = {r.name: (r.state, r.reason) for r in read.checks}
    assert states["slices"] == ("crashed", "RuntimeError: on purpose")
    assert states["accuracy"][0] == "measured"
    assert ElementTree.parse("crash/junit.xml").getroot().find(".//error") is not None


def test_json_goes_to_stdout_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "--json", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(Path("out/findings.json").read_bytes())
    assert "accuracy: measured" in err


def test_a_workflow_gets_its_summary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "steps.md"))
    (folder / "steps.md").write_text("before\n")
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "--quiet", "--out", "out"]) == 0
    assert (folder / "steps.md").read_text() == "before\n" + Path("out/summary.md").read_text()
