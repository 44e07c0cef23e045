"""Every tutorial is run as it stands: its commands and its Python, in order, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.test_docs import ROOT, text_of

PAGES = sorted(page for page in (ROOT / "docs/tutorials").glob("*.md") if page.stem != "index")
BLOCK = re.compile(r"(?:^<!-- exits with (\d+) -->\n)?^```(python|console)\n(.*?)^```$", re.M | re.S)


def typed(block: str) -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_runs_as_it_stands(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = 0
    for code, language, block in BLOCK.findall(text_of(page)):
        if language == "python":
            exec(compile(block, str(page), "exec"), names)
        else:
            for program, *words in typed(block):
                assert program == "holdfast"
                assert main(words) == int(code or 0), (words, capsys.readouterr())
        ran += 1
    assert ran > 3


def test_every_tutorial_is_in_the_index() -> None:
    named = re.findall(r"\(([\w-]+)\.md\)", text_of(ROOT / "docs/tutorials/index.md"))
    assert sorted(named) == [page.stem for page in PAGES]
