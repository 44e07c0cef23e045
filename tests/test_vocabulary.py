"""Retired words stay out of help texts, reports, docs and module names; docs/reference/glossary.md has the field's.

The left column is a pattern, the right one what to write instead.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout, suppress
from html import unescape
from pathlib import Path

import pytest

from holdfast.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "holdfast"
RETIRED = {
    r"(?<!in )\bfronts?\b": "check",
    r"\bvicinity\b": "attacks, corruptions, augment; vicinal risk minimisation for the idea",
    r"\b(?:images|test set|accuracy) as (?:it is|they are)\b|\| as it is\b|\bas it is:": "clean, unmodified",
    r"\bsides\b": "bias-aligned, bias-conflicting",
    r"\bcontradict(?:s|ing)?\b(?! each other)": "bias-conflicting",
    r"\bagainst the shortcut\b": "bias-conflicting",
    r"\beasy way\b": "shortcut, spurious correlation",
    r"\bevery cell alike\b": "group-balanced",
    r"\bforeign\b": "out-of-distribution",
    r"\bstrange(?:r|st)?\b": "anomalous",
    r"\bunknown (?:images?|inputs?)\b": "out-of-distribution",
    r"\bnudg\w+": "attack, perturb",
    r"\blooked at\b": "evaluated, held out, used",
    r"\bgo(?:es)? on\b": "continue, resume",
    r"\bheaps?\b": "unlabelled images",
    r"\btwins?\b(?! of)": "copy",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"(?<!there )\b(?:is|are|was) no(?= (?!longer|more|less|better|worse|different|other|larger|smaller|such)[a-z])": (
        "is not a"
    ),
    r"\ba (?:row|file|line|number|score|page|folder|card|pass) an? (?=[a-z])": "per",
    r"\bimages? a (?:pass|step|second)\b": "per",
}
PATTERN = {re.compile(pattern, re.I): instead for pattern, instead in RETIRED.items()}
METAPHORS = {
    "heaps",
    "twins",
    "bends",
    "stand",
    "told",
    "foreign",
    "borrow",
    "dialects",
    "raw",
    "rivals",
    "words",
    "holds",
    "seen",
    "climb",
    "refusals",
    "shards",
    "lists",
    "cells",
    "eight",
    "nineteen",
    "fronts",
    "front",
    "clean",
    "unknown",
    "vicinity",
    "spectrum",
    "experiment",
}


def found(text: str) -> list[str]:
    """Retired words in a text, each with its surroundings and what to write instead."""
    return [
        f"...{' '.join(text[max(0, match.start() - 30) : match.end() + 30].split())}... -> {instead}"
        for pattern, instead in PATTERN.items()
        for match in pattern.finditer(text)
    ]


def prose(markdown: str) -> str:
    """A page without its code and links."""
    text = re.sub(r"^```.*?^```$", " ", markdown, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", text)


def visible(page: str) -> str:
    """What a reader sees of an HTML page, and what is read out: text, titles and labels."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    attributes = " ".join(re.findall(r'(?:aria-label|title|alt)="([^"]*)"', body))
    return unescape(f"{re.sub(r'<[^>]*>', ' ', body)} {attributes}")


PAGES = sorted(p for folder in ("docs", "papers") for p in (ROOT / folder).rglob("*.md") if "_build" not in p.parts)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda p: str(p.relative_to(ROOT))
)
def test_docs(page: Path) -> None:
    assert found(prose(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "4000")  # so that no phrase is broken over two lines
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main([*command.split(), "--help"])
    assert text.getvalue().startswith("usage")
    assert found(text.getvalue()) == []


REPORTS = sorted(page for page in (ROOT / "docs").rglob("*.html") if "_build" not in page.parts)


@pytest.mark.parametrize("page", REPORTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_reports(page: Path) -> None:
    assert found(visible(page.read_text(encoding="utf-8"))) == []


def test_names_of_modules() -> None:
    names = {part for path in PACKAGE.rglob("*.py") for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert names & METAPHORS == set()


def test_a_file_name_means_one_thing() -> None:
    """A check and its chapter of the report share a name, and so do a command and what it runs."""
    mirrored = ("cli", "reports/sections")
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    names = [path.name for path in files if not str(path.parent).startswith(mirrored)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert found("accuracy on every front, a row an image") != []
    assert found("this is no model") != []
    assert found("this is no longer a model; normalisation in front of the network; one row per image") == []
    assert found("there is no test split") == []
