"""The walks of docs/architecture.md are true: a step and an audit pass through the functions that they name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.cli import main

PACKAGE = Path(holdfast.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
STOP = re.compile(r"`([\w/]+\.py)`: `([\w.]+)`")


def walk(title: str) -> list[tuple[str, str]]:
    """(file, function) of every numbered stop below a heading."""
    (section,) = re.findall(rf"^## {title}.*?$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return STOP.findall(section)


@contextmanager
def calls() -> Iterator[list[tuple[str, str]]]:
    """(file, qualified name) of every function of the package that is called inside, in the order of first calls."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            seen.setdefault((str(Path(path).relative_to(PACKAGE)), frame.f_code.co_qualname))

    found: list[tuple[str, str]] = []
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        found += seen


def test_a_training_step() -> None:
    stops = walk("One training step")
    assert 5 <= len({file for file, _ in stops}) <= 8
    with calls() as made:
        holdfast.fit(
            "coloured-digits",
            epochs=1,
            batch_size=100,
            labels=100,
            method="lff+biasadv",
            ascent="fsam",
            device="cpu",
            progress=False,
        )
    assert [stop for stop in made if stop in stops] == stops


def test_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = walk("One audit")
    assert 10 <= len({file for file, _ in stops}) <= 15
    monkeypatch.chdir(tmp_path)
    holdfast.fit("digits", epochs=1, batch_size=1200, device="cpu", progress=False, out="run")
    words = ["--checks", "accuracy", "corruptions", "--set", "corruptions.images=20", "--fail-under", "accuracy=0"]
    with calls() as made:
        assert main(["audit", "run", "--data", "digits", *words, "--out", "audit", "--device", "cpu", "--quiet"]) == 0
    assert (tmp_path / "audit" / "report.html").is_file()
    assert [stop for stop in made if stop in stops] == stops
