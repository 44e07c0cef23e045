"""Locales, terminals, names and wishes for privacy."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.cli import main
from holdfast.reports import read_findings
from tests.audits.nearest import MODEL, QUICK, table


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
    assert main([*words, "--checks", "accuracy", "--out", "open"]) == 0
    assert main([*words, "--checks", "accuracy", "--out", "shut", "--no-images", "--redact-paths"]) == 0

    def everything(out: str) -> str:
        return "".join(p.read_text(encoding="utf-8") for p in sorted(Path(out).rglob("*")) if p.is_file())

    assert str(folder) in everything("open")
    assert "iVBORw0KGgo" in everything("open")
    assert str(folder) not in everything("shut")
    assert "iVBORw0KGgo" not in everything("shut")
    first, second = (read_findings(f"{out}/findings.json") for out in ("open", "shut"))
    assert [f.value for f in first.findings] == [f.value for f in second.findings]


@pytest.mark.slow
def test_a_locale_without_utf8_and_a_wish_for_no_colour_are_respected(folder: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "audit", MODEL, *QUICK, "--checks", "accuracy", "--out", "größe"]
    surroundings = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
        "NO_COLOR": "1",
        "FORCE_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(words, capture_output=True, env=surroundings, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b[3" not in done.stdout + done.stderr
    assert b"1 check measured" in done.stdout
    assert re.match(rb"\d\d:\d\d:\d\d ", done.stderr)


def test_names_between_colons_are_no_pictures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("smile.py").write_text(Path("nearest.py").read_text())
    assert main(["audit", "python:smile:make", *QUICK, "--checks", "accuracy", "--out", "out"]) == 0
    assert "python:smile:make ran code of yours" in capsys.readouterr().err


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
    assert page.count("<script>") == 1
    assert page.count("<script") == 2, "the page's own, and its numbers"
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
