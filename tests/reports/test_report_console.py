"""The terminal shows the report's numbers, and names cannot steer it."""

from __future__ import annotations

import io
from collections.abc import Callable
from statistics import fmean

from rich.console import Console, RenderableType

from holdfast.reports import RunFiles, comparison_table, findings_table
from holdfast.reports.arms import ALIGNED, Spread, arms
from holdfast.reports.html import render
from holdfast.reports.renderings import paired_console
from holdfast.reports.report_tables import paired_table
from tests.reports.fake_runs import finding
from tests.reports.page import Page

Make = Callable[..., RunFiles]


def printed(table: RenderableType, *, encoding: str = "utf-8", terminal: bool = False, width: int = 160) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None).print(table)
    file.flush()
    return raw.getvalue().decode(encoding)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_the_comparison_equals_the_page(runs: list[RunFiles]) -> None:
    in_terminal = rows(printed(comparison_table(runs)))
    for row in Page(render(runs)).tables["Accuracy by method"]:
        assert [cell.text for cell in row] in in_terminal


def test_the_findings_equal_the_page(runs: list[RunFiles]) -> None:
    in_terminal = rows(printed(findings_table(runs[0].findings)))
    for row in Page(render(runs)).tables["Findings of erm-0 (erm)"]:
        assert [cell.text.replace("–", "-") for cell in row] in in_terminal


def test_a_narrow_terminal_cuts_nothing_off(runs: list[RunFiles]) -> None:
    for table in (comparison_table(runs), findings_table(runs[0].findings), paired_console(arms(runs), arms(runs)[0])):
        for width in (80, 50):
            narrow, wide = (sorted("".join(printed(table, width=w).split()).replace("─", "")) for w in (width, 200))
            assert narrow == wide


def test_a_comparison_shows_what_a_gain_costs(runs: list[RunFiles]) -> None:
    erm, lff = arms(runs)
    table = paired_table([erm, lff], erm)
    titles = [column.title for column in table.columns]
    assert titles[1:4] == ["clean accuracy, %", "bias-aligned, %", "bias-conflicting, %"]
    assert table.rows[1][2].value == fmean(Spread.of(lff.found[ALIGNED]).values)
    assert "bias-aligned, %" in printed(paired_console([erm, lff], erm))


def test_markup_and_escapes_in_names_do_nothing() -> None:
    names = ["[red]x[/red]", "\x1b[31mx", "[link=http://a.b]x", "\x07\x9b31m", "a\nb", "[/]"]
    text = printed(findings_table([finding(0.5, 8, class_=name) for name in names]))
    shown = [row[1] for row in rows(text) if row and row[0] == "accuracy"]
    assert shown == [
        "class [red]x[/red]", r"class \x1b[31mx", "class [link=http://a.b]x", r"class \x07\x9b31m",
        "class a b", "class [/]",
    ]  # fmt: skip


def test_only_our_own_escapes_reach_a_terminal(make_run: Make) -> None:
    plain, hostile = (comparison_table([make_run(n, m) for n, m in ((f"{i}a", name), (f"{i}b", "lff"))])
                      for i, name in enumerate(("name", "\x1b[2Jx")))  # fmt: skip
    clean, risky = printed(plain, terminal=True), printed(hostile, terminal=True)
    assert "\x1b[2J" not in risky
    assert risky.count("\x1b") == clean.count("\x1b") > 0


def test_a_terminal_without_unicode(runs: list[RunFiles]) -> None:
    assert "±" in printed(comparison_table(runs), encoding="latin-1")
    assert "harmonic_mean" in printed(findings_table(runs[0].findings), encoding="ascii")
