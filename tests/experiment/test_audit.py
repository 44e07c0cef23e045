"""The audit command from one end to the other, on a model whose answers can be computed by hand."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from holdfast.cli import main
from holdfast.data import load
from holdfast.experiment.audit_files import Redaction, without_pictures
from holdfast.experiment.budget import Clock, passes
from holdfast.fronts import FRONTS, Subject
from holdfast.reports import read_findings
from holdfast.reports.overview import shown
from holdfast.reports.text import part
from holdfast.types import Finding
from tests.reports.page import Cell, Page

SOURCE = '''
import torch
from torch import nn
from holdfast.data import load


def make(shift=0.0):
    """Nearest class mean, as a linear layer: 2 x.m - m.m is the highest for the nearest mean m."""
    data = load("coloured-digits")
    x = data.train.read(torch.arange(len(data.train))).float().flatten(1) / 255
    means = torch.stack([x[data.train.labels == c].mean(0) for c in range(10)])
    layer = nn.Linear(means.shape[1], 10)
    with torch.no_grad():
        layer.weight.copy_(2 * means)
        layer.bias.copy_(-means.square().sum(1) + shift * torch.arange(10))
    model = nn.Sequential(nn.Flatten(), layer)
    model.classes = list(data.classes)
    return model.eval()


def other():
    return make(0.5)


class Blind(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make()
        self.classes = self.inner.classes

    def forward(self, x):
        return self.inner(x.detach()).detach()


def wide():
    """Two more classes than the data has; one of them always beats the class 0."""
    model = make()
    old = model[1]
    layer = nn.Linear(old.in_features, 12)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([old.weight, old.weight[:1], 0 * old.weight[:1]]))
        layer.bias.copy_(torch.cat([old.bias, old.bias[:1] + 1, old.bias[:1] - 1e4]))
    model[1] = layer
    model.classes = [*model.classes, "wolf", "lynx"]
    return model
'''
MODEL, OTHER = "python:nearest:make", "python:nearest:other"
QUICK = ["--data", "coloured-digits", "--device", "cpu", "--workers", "0"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nearest.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    yield tmp_path
    sys.modules.pop("nearest", None)


def answers() -> tuple[Tensor, Tensor]:
    """(predictions, labels) of the nearest mean, by distances."""
    data = load("coloured-digits")
    assert data.test is not None
    x, t = (s.read(torch.arange(len(s))).double().flatten(1) / 255 for s in (data.train, data.test))
    means = torch.stack([x[data.train.labels == c].mean(0) for c in range(10)])
    return torch.cdist(t, means).argmin(1), data.test.labels


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "samples.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_what_was_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", MODEL, *QUICK, "--only", "clean", "groups", "slices", "--out", "out"]) == 0
    files = {p.name for p in Path("out").iterdir()}
    assert files == {"findings.json", "report.html", "summary.md", "junit.xml", "samples.csv", "fronts"}
    predicted, labels = answers()
    right = predicted == labels
    read = read_findings("out/findings.json")
    (overall,) = [f for f in read.findings if (f.front, f.name, dict(f.where)) == ("clean", "accuracy", {})]
    assert overall.value == pytest.approx(right.double().mean().item())
    assert overall.n == len(right)
    assert {r["name"]: r["state"] for r in read.fronts} == {
        name: "measured" if name in ("clean", "groups", "slices") else "skipped" for name in FRONTS
    }
    assert len(read.model["hash"]) == len(read.data["hash"]) == 64
    assert read.model["preprocessing"]["name"] == "stated"
    assert read.run["seed"] == 0
    assert read.run["torch"] == torch.__version__.partition("+")[0] or read.run["torch"] == torch.__version__
    assert read.run["command"].startswith("holdfast audit python:nearest:make --data coloured-digits")
    rows = table(Path("out"))
    assert [row["clean"] == "right" for row in rows] == right.tolist()
    assert [row["prediction"] for row in rows] == [str(p) for p in predicted.tolist()]
    worst = next(f for f in read.findings if f.name == "worst-group")
    marked = [row for row in rows if row["groups"] == "worst"]
    assert sum(row["clean"] == "right" for row in marked) / len(marked) == pytest.approx(worst.value)
    out, err = capsys.readouterr()
    assert "3 of 8 fronts measured" in out
    assert "clean: measured" in err
    assert "clean: measured" not in out


@dataclass
class Rows(Page):
    """The rows of every table of a page, also of those with the same caption."""

    every: list[list[Cell]] = field(default_factory=list)

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        if tag == "table":
            self.every += self.rows


def test_every_rendering_has_the_same_digits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Console, Markdown, JUnit and HTML against findings.json, number by number."""
    assert main(["audit", MODEL, *QUICK, "--only", "clean", "groups", "--quiet", "--out", "out"]) == 0
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
        value, interval = shown(f)
        written = f"{100 * f.value:.1f} %" if value.endswith("%") else f"{f.value:.4g}"  # type: ignore[operator]
        assert value == written
        line = f"| {f.name} | {part(f.where)} | {value} | {interval} | {f.n:,} |"
        assert line in summary
        spread = f" ({interval})" if interval else ""
        assert properties[f.front, f"{f.name}, {part(f.where)}"] == f"{value}{spread}, n {f.n:,}"
    full = {cell.value for row in page.every for cell in row}
    for f in numbers:
        value, interval = shown(f)
        if (f.front, f.name) == ("clean", "accuracy"):
            assert [f.name, part(f.where), value, interval, f"{f.n:,}"] in rows, f
        elif f.name != "ece-adaptive":  # the page draws it, as a curve
            assert f.value in full, f
    for name in ("accuracy", "worst-group", "balanced-accuracy"):
        f = next(f for f in numbers if f.name == name)
        value, interval = shown(f)
        assert any(line.endswith(f"{name} {value} {interval} {f.n:,}") for line in console), name


def test_a_gate_passes_fails_and_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["audit", MODEL, *QUICK, "--only", "clean", "groups", "--quiet", "--out", "out"]
    assert main([*words, "--fail-under", "clean=0.2", "--fail-under", "worst-group=0.0"]) == 0
    assert main([*words, "--fail-under", "clean=0.999"]) == 1
    assert main([*words, "--fail-under", "attacks@8/255=0"]) == 1  # never measured
    failed = ElementTree.parse("out/junit.xml").getroot().findall(".//failure")
    assert len(failed) == 1
    assert "was not measured" in failed[0].attrib["message"]

    def bad(_: Subject) -> tuple[Finding, ...]:
        raise RuntimeError("on purpose")

    monkeypatch.setitem(FRONTS, "slices", bad)
    assert main(["audit", MODEL, *QUICK, "--only", "clean", "slices", "--quiet", "--out", "crash"]) == 3
    read = read_findings("crash/findings.json")
    states = {r["name"]: (r["state"], r["reason"]) for r in read.fronts}
    assert states["slices"] == ("crashed", "RuntimeError: on purpose")
    assert states["clean"][0] == "measured"
    assert ElementTree.parse("crash/junit.xml").getroot().find(".//error") is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([MODEL, "--data", "coloured-digits", "--fail-under", "cleen=0.9"], "unknown gate 'cleen'"),
        ([MODEL, "--data", "coloured-digits", "--max-drop", "clean=0.1"], "name it with --against"),
        ([MODEL, "--data", "coloured-digits", "--only", "clen"], "unknown front 'clen'; did you mean 'clean'"),
        ([MODEL, "--data", "coloured-digits", "--budget", "soon"], "such as 90s, 5m or 1h, got 'soon'"),
        ([MODEL, "--data", "colored-digit"], "did you mean 'coloured-digits'"),
        ([MODEL], "no data was given"),
        (["--data", "digits"], "give either MODEL or --predictions FILE"),
        ([MODEL, "--predictions", "x.csv"], "not both"),
        (["python:nearest:nothing", *QUICK], "nothing"),
        ([MODEL, *QUICK, "--class-map", "none.json"], "cannot read class map none.json"),
        ([MODEL, *QUICK, "--out", "nearest.py"], "cannot write"),
        (["--predictions", "none.csv"], "none.csv"),
    ],
)
def test_bad_input_exits_with_2_and_leaves_nothing(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert {p.name for p in folder.iterdir()} <= {"nearest.py", "__pycache__"}


@pytest.mark.parametrize(
    "gate", [["--fail-under", "cleen=0.9"], ["--max-drop", "clean=0.1"], ["--fail-under", "clean"]]
)
def test_a_gate_that_cannot_be_is_refused_before_anything_runs(folder: Path, gate: list[str]) -> None:
    assert main(["audit", MODEL, *QUICK, *gate]) == 2
    assert "nearest" not in sys.modules


def test_an_interrupted_audit_goes_on_with_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    originals = dict(FRONTS)

    def watched(name: str, stop: bool) -> Any:
        def front(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
            ran.append(name)
            if stop:
                raise KeyboardInterrupt
            return originals[name](subject, **settings)

        return front

    words = ["audit", MODEL, *QUICK, "--only", "clean", "groups", "slices", "--out", "out"]
    for name in ("clean", "groups", "slices"):
        monkeypatch.setitem(FRONTS, name, watched(name, name == "groups"))
    assert main(words) == 130
    assert "goes on with the fronts that are missing" in capsys.readouterr().err
    assert ran == ["clean", "groups"]
    assert not Path("out/findings.json").exists()
    monkeypatch.setitem(FRONTS, "groups", watched("groups", False))
    ran.clear()
    assert main(words) == 0
    assert ran == ["groups", "slices"]
    first = read_findings("out/findings.json").findings
    ran.clear()
    assert main(words) == 0
    assert ran == []
    assert read_findings("out/findings.json").findings == first
    assert main([*words, "--seed", "1"]) == 0
    assert ran == ["clean", "groups", "slices"]  # other settings: nothing of the old is taken
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
    assert ran == ["clean", "groups", "slices"]  # the same weights behind other code are another model


def test_models_are_compared_on_the_same_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", MODEL, *QUICK, "--against", OTHER, "--only", "clean", "--quiet", "--out", "out"]
    assert main([*words, "--max-drop", "clean=0.0"]) in (0, 1)
    sides = {}
    for name in ("python-nearest-make", "python-nearest-other"):
        sides[name] = [row["clean"] == "right" for row in table(Path("out") / name)]
    mine, theirs = sides.values()
    read = read_findings("out/python-nearest-make/findings.json")
    lead = next(f for f in read.findings if f.name == "lead")
    assert lead.value == pytest.approx((sum(mine) - sum(theirs)) / len(mine))
    assert lead.value is not None
    assert lead.low is not None
    assert lead.high is not None
    assert lead.low < lead.value < lead.high
    assert lead.evidence["only_this"] == sum(a and not b for a, b in zip(mine, theirs, strict=True))
    (gate,) = read.gates
    assert gate["value"] == pytest.approx(-lead.value)
    assert gate["passed"] == (lead.value >= 0)
    both = Path("out/report.html").read_text(encoding="utf-8")
    assert "python-nearest-other" in both
    before = Path("out/report.html").read_bytes()
    assert main(["report", "out"]) == 0
    assert Path("out/report.html").read_bytes() == before


def test_json_goes_to_stdout_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", MODEL, *QUICK, "--only", "clean", "--json", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(Path("out/findings.json").read_bytes())
    assert "clean: measured" in err


def test_a_workflow_gets_its_summary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "steps.md"))
    (folder / "steps.md").write_text("before\n")
    assert main(["audit", MODEL, *QUICK, "--only", "clean", "--quiet", "--out", "out"]) == 0
    assert (folder / "steps.md").read_text() == "before\n" + Path("out/summary.md").read_text()


def test_predictions_alone_are_enough_for_accuracy_and_groups(folder: Path) -> None:
    predicted, labels = answers()
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["label", "prediction", "site"])
    for i, (p, y) in enumerate(zip(predicted.tolist(), labels.tolist(), strict=True)):
        writer.writerow([y, p, "ab"[i % 2]])
    Path("p.csv").write_text(file.getvalue())
    assert main(["audit", "--predictions", "p.csv", "--group", "site", "--device", "cpu", "--quiet", "--out", "o"]) == 0
    read = read_findings("o/findings.json")
    value = {(f.front, f.name, *f.where.values()): f.value for f in read.findings}
    assert value["clean", "accuracy"] == pytest.approx((predicted == labels).double().mean().item())
    assert value["groups", "accuracy", "site", "a"] == pytest.approx((predicted == labels)[::2].double().mean().item())
    assert value["clean", "ece"] is None  # there are no scores to be calibrated
    assert all(not f.evidence.get("pictures") for f in read.findings)
    states = {r["name"]: r["state"] for r in read.fronts}
    assert {name for name, state in states.items() if state == "measured"} == {"clean", "groups"}
    assert set(states.values()) == {"measured", "not applicable"}


def test_nothing_private_is_written_where_it_was_asked_not_to(folder: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (folder / "secret-place" / label).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), (200 * (label == "cat"), 10 * i, 0)).save(
                folder / "secret-place" / label / f"{i}.png"
            )
    Path("nearest.py").write_text(
        "import torch\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))\n"
    )
    words = ["audit", MODEL, "--data", str(folder / "secret-place"), "--device", "cpu", "--workers", "0", "--quiet"]
    assert main([*words, "--only", "clean", "--out", "open"]) == 0
    assert main([*words, "--only", "clean", "--out", "shut", "--no-images", "--redact-paths"]) == 0

    def everything(out: str) -> str:
        return "".join(p.read_text(encoding="utf-8") for p in sorted(Path(out).rglob("*")) if p.is_file())

    assert str(folder) in everything("open")
    assert "iVBORw0KGgo" in everything("open")
    assert str(folder) not in everything("shut")
    assert "iVBORw0KGgo" not in everything("shut")
    first, second = (read_findings(f"{out}/findings.json") for out in ("open", "shut"))
    assert [f.value for f in first.findings] == [f.value for f in second.findings]


def test_a_picture_takes_along_what_describes_it() -> None:
    picture = {"png": "iVBORw0KGgoAAA", "label": "cat"}
    found = Finding(
        "clean", "samples", None, 0, evidence={"pictures": [picture], "curve": [1, 2], "grid": "iVBORw0KGgo"}
    )
    assert without_pictures(found).evidence == {"pictures": [], "curve": [1, 2]}


def test_redaction_leaves_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    redaction = Redaction([tmp_path / "data"])
    assert redaction.value({"spec": f"{tmp_path}/data/x.png", "n": 3}) == {"spec": "…/x.png", "n": 3}


def test_a_training_run_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/run.yaml").write_text("epochs: 1\n")
    assert main(["audit", MODEL, *QUICK, "--out", "run"]) == 2
    assert "holds a training run" in capsys.readouterr().err
    assert [p.name for p in Path("run").iterdir()] == ["run.yaml"]


def test_a_budget_gives_each_front_the_images_its_time_allows() -> None:
    clock = Clock(100.0, "cpu", now=lambda: 0.0)
    clock.forward = 1e-3
    chosen, text = clock.settings("corruptions", ["corruptions", "attacks"], 5000)
    share = 100.0 * 0.25 / 0.75
    assert chosen == {"images": int(share / (1e-3 * passes("corruptions", "cpu")))}
    assert text == f"corruptions: {chosen['images']} images instead of 1000, to stay within the budget"
    clock.forward = 1e-9
    assert clock.settings("corruptions", ["corruptions"], 5000) == ({}, "")
    clock.forward = 10.0
    assert clock.settings("attacks", ["attacks"], 5000)[0] == {"images": 16, "black_box": False}


def test_a_budget_is_said_and_what_it_leaves_no_time_for_is_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", MODEL, *QUICK, "--only", "clean", "corruptions", "saliency", "--out", "out"]
    assert main([*words, "--budget", "0.001s"]) == 0
    states = {r["name"]: (r["state"], r["reason"]) for r in read_findings("out/findings.json").fronts}
    assert states["clean"][0] == "measured"
    assert states["corruptions"] == ("skipped", "the budget of 0.001 s is spent")
    assert "the budget of 0.001 s is spent" in capsys.readouterr().err


def test_a_model_that_knows_more_classes_has_both_readings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "python:nearest:wide", *QUICK, "--only", "clean", "--out", "out"]) == 0
    assert "two readings" in capsys.readouterr().err
    found = {
        tuple(f.where.items()): f.value for f in read_findings("out/findings.json").findings if f.name == "accuracy"
    }
    predicted, labels = answers()
    right = predicted == labels
    assert found[()] == pytest.approx(right.double().mean().item())  # the classes of the data alone
    data = load("coloured-digits")
    assert data.test is not None
    x, t = (s.read(torch.arange(len(s))).double().flatten(1) / 255 for s in (data.train, data.test))
    means = torch.stack([x[data.train.labels == c].mean(0) for c in range(10)])
    scores = 2 * t @ means.T - means.square().sum(1)
    lost = scores[:, 0] + 1 > scores.max(1).values  # "wolf" wins, and no digit is one
    assert bool((lost & right).any())
    assert found[("reading", "all"),] == pytest.approx((right & ~lost).double().mean().item())


def test_fronts_that_need_gradients_say_so_where_there_are_none(folder: Path) -> None:
    words = ["audit", "python:nearest:Blind", *QUICK, "--only", "attacks", "saliency", "curvature", "--quiet"]
    assert main([*words, "--out", "out"]) == 0
    states = {r["name"]: (r["state"], r["reason"]) for r in read_findings("out/findings.json").fronts}
    for name in ("attacks", "saliency", "curvature"):
        assert states[name][0] == "not applicable"
        assert "no gradients reach the images" in states[name][1]


def test_a_locale_without_utf8_and_a_wish_for_no_colour_are_respected(folder: Path) -> None:
    words = [sys.executable, "-m", "holdfast.cli", "audit", MODEL, *QUICK, "--only", "clean", "--out", "größe"]
    surroundings = {
        **os.environ,
        "PYTHONIOENCODING": "ascii",
        "NO_COLOR": "1",
        "FORCE_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(words, capture_output=True, env=surroundings, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b[3" not in done.stdout + done.stderr
    assert b"1 of 8 fronts measured" in done.stdout
    assert re.match(rb"\d\d:\d\d:\d\d ", done.stderr)


def test_hostile_class_names_do_nothing_anywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["</script><script>alert(1)</script>", "=1+1", "a|b", 'quo"te', "\x1b[31mred", "[x](http://evil)"]
    with Path("p.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "prediction"])
        writer.writerows([name, names[0]] for name in names for _ in range(3))
    assert main(["audit", "--predictions", "p.csv", "--device", "cpu", "--out", "out"]) == 0
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1
    assert "\x1b" not in page
    ElementTree.parse("out/junit.xml")
    labels = [row["label"] for row in table(Path("out"))]
    assert labels[3] == "'=1+1"
    assert labels[12] == "\\x1b[31mred"
    summary = Path("out/summary.md").read_text(encoding="utf-8")
    assert "<script" not in summary
    assert not re.search(r"(?<!\\)\]\(", summary)
    found = read_findings("out/findings.json")
    assert {f.where["class"] for f in found.findings if f.name == "accuracy" and f.where} == set(names)
