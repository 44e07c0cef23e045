"""One source, five renderings: every number of the findings is written alike in all of them, digit for digit."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from holdfast.reports import read_findings, read_runs
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.html import render
from holdfast.reports.overview import gates, overview, side_by_side
from holdfast.reports.renderings import findings_table, junit, markdown, rich_table
from holdfast.types import Finding
from tests.reports.page import Cell, Page

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"
MODELS = ("erm", "lff")
LISTED = ["measure", "part", "value", "95 % interval", "n"]
POINTS = {
    "attack_drop", "bias_gap", "cell_gap", "corruption_drop", "group_gap", "lead", "mean_corruption_drop", "slice_gap",
    "worst_group_drop",
}  # fmt: skip
FLAGS = {"trust_check", "trusted"}
FIXED = {"nll", "brier", "saliency_entropy", "saliency_agreement"}
CHANCES = {"delong_p", "mcnemar_p"}
PLAIN = {"top_eigenvalue", "fifth_eigenvalue", "eigenvalue_ratio", "confirmed_slices"}
Row = tuple[str, ...]


@pytest.fixture(scope="module")
def files() -> list[FindingsFile]:
    return [read_findings(SAMPLE / name / "findings.json") for name in MODELS]


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    """The report of both models together, and of each alone."""
    both = Page(render(read_runs([SAMPLE])))
    return {"both": both, **{name: Page(render(read_runs([SAMPLE / name]))) for name in MODELS}}


def written(name: str, value: float) -> str:
    """A number as the manual says, without its unit; not the package's own way of doing it."""
    if name in FLAGS:
        return {1.0: "yes", 0.0: "no"}[value]
    if name in CHANCES:
        return f"{value:.2g}"
    if name in FIXED:
        return f"{value:.3f}"
    return f"{value:.4g}" if name in PLAIN else f"{100 * value + 0.0:.1f}".replace("-0.0", "0.0")


def expected(f: Finding) -> Row:
    assert f.value is not None
    no_unit = name_has_no_unit(f.name)
    unit = "" if no_unit else " points" if f.name in POINTS else " %"
    where = ", ".join({"bias": f"bias-{v}", "slice": v}.get(k, f"{k} {v}") for k, v in f.where.items()) or "all"
    span = "" if f.low is None or f.high is None else f"{written(f.name, f.low)} to {written(f.name, f.high)}{unit}"
    return f.name, where, written(f.name, f.value) + unit, span, f"{f.n:,}"


def name_has_no_unit(name: str) -> bool:
    return name in PLAIN | FLAGS | FIXED | CHANCES


def numbers(file: FindingsFile) -> list[Finding]:
    return [f for f in file.findings if f.value is not None]


def texts(rows: Iterable[Iterable[Cell]]) -> list[Row]:
    return [tuple("" if c.text == "–" else c.text for c in row) for row in rows]


def in_terminal(table: Any) -> list[Row]:
    file = io.StringIO()
    Console(file=file, width=400).print(table)
    rows = [[cell.strip() for cell in re.split(r"\s{2,}", line.strip())] for line in file.getvalue().splitlines()]
    return [tuple("" if cell == "-" else cell for cell in row) for row in rows]


def in_markdown(text: str) -> list[list[Row]]:
    """Every table as a parser sees it."""
    tables: list[list[list[str]]] = []
    cell = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("td_open", "th_open"):
            cell = True
        elif token.type == "inline" and cell:
            tables[-1][-1].append("".join(child.content for child in token.children or ()))
            cell = False
    return [[tuple(c.replace("\u200b", "") for c in row) for row in table] for table in tables]


def test_every_finding_is_in_markdown(files: list[FindingsFile]) -> None:
    for file in files:
        rows = [row for table in in_markdown(markdown([file])) if list(table[0]) == LISTED for row in table[1:]]
        assert Counter(rows) == Counter(expected(f) for f in numbers(file))


def test_every_finding_is_in_junit(files: list[FindingsFile]) -> None:
    for file in files:
        made = ElementTree.fromstring(junit([file]).encode())
        found = Counter((p.attrib["name"], p.attrib["value"]) for p in made.iter("property"))
        told = Counter()
        for f in numbers(file):
            if f.check != "against":
                name, where, value, span, n = expected(f)
                told[f"{name}, {where}", f"{value} ({span}), n {n}" if span else f"{value}, n {n}"] += 1
        assert found == told


def test_every_finding_is_in_the_terminal(files: list[FindingsFile]) -> None:
    for file in files:
        rows = in_terminal(findings_table(numbers(file)))
        assert not Counter(expected(f) for f in numbers(file)) - Counter(rows)


def test_every_finding_is_in_the_page(files: list[FindingsFile], pages: dict[str, Page]) -> None:
    """In the lists of all numbers, but for eigenvalues and trust checks, which have tables of their own."""
    for name, file in zip(MODELS, files, strict=True):
        listed = [table for table in pages[name].all_tables if [c.text for c in table[0]] == LISTED]
        rows = Counter(row for table in listed for row in texts(table[1:]))
        apart = {"against", "curvature"}
        told = [f for f in numbers(file) if f.check not in apart and f.name not in FLAGS]
        assert len(told) > 200
        assert not Counter(map(expected, told)) - rows
        (curvature,) = texts(pages[name].tables["Curvature by method"][1:])
        values = {f.name: expected(f)[2] for f in numbers(file) if f.check == "curvature"}
        assert curvature[1:4] == (values["top_eigenvalue"], values["fifth_eigenvalue"], values["eigenvalue_ratio"])


@pytest.mark.slow
def test_the_tables_on_top_are_the_same_everywhere(files: list[FindingsFile], pages: dict[str, Page]) -> None:
    for name, file in zip(MODELS, files, strict=True):
        for table, caption in ((overview(file), f"{name} on coloured-digits"), (gates(file), "Gates")):
            if table is None:
                continue
            rows = [tuple(cell.text for cell in row) for row in table.rows]
            assert texts(pages[name].tables[caption][1:]) == rows
            assert rows in [made[1:] for made in in_markdown(markdown([file]))]
            shown = in_terminal(rich_table(table))
            assert all(row in shown or tuple(filter(None, row)) in shown for row in rows)
    together = [tuple(cell.text for cell in row) for row in side_by_side(files, MODELS).rows]
    assert texts(pages["both"].tables["Every check"][1:]) == together
    assert together in [made[1:] for made in in_markdown(markdown(files))]
    for caption in ("Drops: lff", "Paired differences: lff − erm"):
        rows = texts(pages["both"].tables[caption][1:])
        assert rows in [made[1:] for made in in_markdown(markdown(files))]


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.(\d+))?(?:e([-+]\d+))?")


@pytest.mark.parametrize("which", ["both", *MODELS])
def test_every_cell_is_its_number_rounded(pages: dict[str, Page], which: str) -> None:
    """Whatever a cell of any table shows is the number it is sorted by, to the last digit shown."""
    checked = 0
    for table in pages[which].all_tables:
        header = [cell.text for cell in table[0]]
        for row in table[1:]:
            for title, cell in zip(header, row, strict=True):
                found = NUMBER.search(cell.text) if cell.value is not None else None
                if cell.value is None or found is None:
                    continue
                share = any(word in title + cell.text for word in ("%", "points")) and title not in ("95 % interval",)
                share = share or (title == "95 % interval" and ("%" in cell.text or "points" in cell.text))
                share = share or title.endswith("/255")
                value = cell.value * (100 if share else 1)
                unit = 10.0 ** (int(found[2] or 0) - len(found[1] or ""))
                assert abs(float(found[0].replace(",", "")) - value) <= unit / 2 * (1 + 1e-6), (header, title, cell)
                checked += 1
    assert checked > (1000 if which == "both" else 500)


def floats(value: Any) -> Iterable[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from floats(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def test_every_number_of_the_page_is_in_the_findings(files: list[FindingsFile], pages: dict[str, Page]) -> None:
    """Each is a number of findings.json, 1 minus one of them, or what the epochs of the training add up to."""
    known = {v for file in files for f in file.findings for v in floats(f.to_json())}
    known |= {float(v) for file in files for g in file.gates for v in floats(g)}
    known |= {1 - v for v in known}
    known |= {v for file in files for v in floats([file.model, file.data, file.run])}
    for run in read_runs([SAMPLE]):
        known |= {sum(m["seconds"] for m in run.metrics), fmean(m["images_per_second"] for m in run.metrics)}
        known |= {float(len(run.metrics))}
    near = sorted(known)
    unknown = []
    for table in pages["both"].all_tables:
        for row in table[1:]:
            for title, cell in zip([c.text for c in table[0]], row, strict=True):
                if cell.value is not None and not _has(near, cell.value):
                    unknown.append((title, cell))
    assert unknown == []


def _has(near: Sequence[float], value: float) -> bool:
    from bisect import bisect_left

    i = bisect_left(near, value - 1e-12)
    return i < len(near) and near[i] <= value + 1e-12
