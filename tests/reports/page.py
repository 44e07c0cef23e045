"""A report as a browser's parser sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br"}


@dataclass
class Cell:
    text: str = ""
    value: float | None = None


@dataclass
class Page(HTMLParser):
    """Tables by caption, and every element with its attributes and the text directly in it.

    all_tables: in the order of the page; captions may repeat.
    """

    source: str
    tables: dict[str, list[list[Cell]]] = field(default_factory=dict)
    all_tables: list[list[list[Cell]]] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[Cell]] = []
        self.caption = ""
        self.feed(self.source)
        self.close()
        assert self.open == [], f"unclosed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.elements.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows, self.caption = [], ""
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            value = values.get("data-value")
            self.rows[-1].append(Cell(value=None if value is None else float(value)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[self.caption] = self.rows
            self.all_tables.append(self.rows)

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        self.texts.append((self.open[-1], data))
        if self.open[-1] == "caption":
            self.caption += data
        elif "table" in self.open and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1].text += data.strip()

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [values for name, values in self.elements if name == tag]

    def text(self, tag: str) -> list[str]:
        return [data for name, data in self.texts if name == tag]

    def column(self, caption: str, title: str) -> list[Cell]:
        header, *rows = self.tables[caption]
        index = [cell.text for cell in header].index(title)
        return [row[index] for row in rows]
