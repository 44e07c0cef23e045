"""Names that are markup, formulas, commands or escapes do nothing in any of the renderings, in any chapter."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from holdfast.data.tables import table_text
from holdfast.printable import one_line
from holdfast.reports.html import render
from holdfast.reports.overview import gates, overview, side_by_side, verdict
from holdfast.reports.renderings import junit, markdown, rich_table
from tests.reports import hostile
from tests.reports.page import Page

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def test_the_names_are_really_there() -> None:
    """All of them, in every place: the other tests would prove nothing otherwise."""
    page = render(hostile.runs())
    shown = "".join(text for tag, text in Page(page).texts if tag not in ("style", "script"))
    for name in hostile.NAMES:
        assert one_line(name).strip()[:20] in shown


def test_html_has_no_element_or_attribute_more() -> None:
    source = render(hostile.runs())
    page, harmless = Page(source), Page(render(hostile.runs(hostile=False)))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in harmless.elements}
    attributes = {(tag, key) for tag, values in harmless.elements for key in values}
    assert {(tag, key) for tag, values in page.elements for key in values} == attributes
    *data, own = [v.get("type") for v in page.attributes("script")]
    assert (set(data), own) == ({"application/json"}, None)
    links = [v for _, values in page.elements for k, v in values.items() if k in ("href", "src")]
    assert all((link or "").startswith(("#", "data:")) for link in links)
    assert not STEERING.search(source)
    assert "{{ 7 * 7 }}" in source


def test_xml_has_the_same_cases() -> None:
    text = junit(hostile.files())
    made, plain_ = (ElementTree.fromstring(t.encode("utf-8")) for t in (text, junit(hostile.files(hostile=False))))
    assert [e.tag for e in made.iter()] == [e.tag for e in plain_.iter()]
    assert [sorted(e.attrib) for e in made.iter()] == [sorted(e.attrib) for e in plain_.iter()]
    assert not STEERING.search(text)


def tokens(text: str) -> Iterator[Any]:
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


@pytest.mark.slow
def test_markdown_has_no_markup_more() -> None:
    text, harmless = markdown(hostile.files()), markdown(hostile.files(hostile=False))
    allowed = {"text", "text_special", "softbreak"}
    kinds = [t.type for t in tokens(text) if t.type not in allowed]
    assert kinds == [t.type for t in tokens(harmless) if t.type not in allowed]
    assert "link_open" not in kinds
    assert "image" not in kinds
    assert "code_inline" not in kinds
    html = {t.content.strip() for t in tokens(text) if t.type in ("html_block", "html_inline")}
    assert all(re.fullmatch(r"<details><summary>[\w-]+: \d+ numbers</summary>|</details>", block) for block in html)
    assert not STEERING.search(text)
    prose = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("    "))  # code stays code
    assert not re.search(r"https?://|www\.|\w@\w", prose), "GitHub would make links of these"


def test_csv_has_neither_formulas_nor_lines_more() -> None:
    n = len(hostile.NAMES)
    columns: dict[str, list[Any]] = {key: list(hostile.NAMES) for key in ("path", "label", "prediction", "group")}
    columns |= {"id": list(range(n)), "confidence": [0.5] * n, **{name: list(hostile.NAMES) for name in hostile.NAMES}}
    text = table_text(columns)
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == n + 1
    assert {len(row) for row in rows} == {6 + n}
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@", "＝")) for row in rows for cell in row)
    assert not STEERING.search(text.replace("\r", "").replace("\n", ""))


def printed(found: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, width=4000, force_terminal=True, color_system="standard")
    for one in found:
        for table in (overview(one), gates(one), side_by_side(found, [str(f.model["name"]) for f in found])):
            if table is not None:
                console.print(rich_table(table))
    return file.getvalue()


def test_a_terminal_gets_no_escape_but_our_own() -> None:
    text = printed(hostile.files())
    own = re.compile(r"\x1b\[[\d;]*m")
    assert own.findall(text) == own.findall(printed(hostile.files(hostile=False)))
    assert not STEERING.search(own.sub("", text).replace("\n", ""))


def test_what_is_said_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.common import say

    for file in hostile.files():
        say(verdict(file))
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 2
    assert not STEERING.search(text.replace("\n", ""))


@pytest.mark.browser
def test_a_browser_runs_none_of_it(show: Callable[..., Any]) -> None:
    page = show(hostile.runs(), width=375)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait_for_timeout(200)
    assert page.title().endswith("– holdfast")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate("document.querySelectorAll('img[onerror], [ontoggle], [onload]').length") == 0
