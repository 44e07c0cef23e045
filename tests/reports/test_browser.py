"""The report in a real Chromium: it works, fits, and keeps to itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.reports import RunFiles, write_report
from tests.reports.test_report_html import hostile_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
WIDTHS = {"desk": 1280, "tablet": 768, "phone": 375}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        message = "no Chromium: install it or name it in $CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a report. At the end: no error was logged, and nothing but the file was asked for."""
    problems: list[str] = []
    asked: set[str] = set()
    pages = []

    def opened(runs: list[RunFiles], *, width: int = 1280, scheme: str = "light", listen: bool = True) -> Page:
        path = write_report(runs, tmp_path / "report.html")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        if listen:
            page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []
    assert asked <= {"file", "data"}


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def paper(page: Page) -> int:
    """Brightness of the background, 0 to 765."""
    return int(
        page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
        )
    )


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_with_everything_open(
    show: Callable[..., Page], runs: list[RunFiles], width: int, scheme: str
) -> None:
    page = show(runs, width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert overflow(page) <= 0
    assert (paper(page) > 600) is (scheme == "light")
    for picture in page.locator("img").all():
        box = picture.bounding_box()
        assert box is not None
        assert 0 < box["width"] <= 96
        assert 0 < box["height"] <= 96
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


def test_a_wide_table_scrolls_in_its_box_on_a_phone(show: Callable[..., Page], runs: list[RunFiles]) -> None:
    box = show(runs, width=375).locator("#comparison .scroll").first
    assert box.evaluate("e => e.scrollWidth - e.clientWidth") > 0
    box.focus()
    assert box.evaluate("e => document.activeElement === e")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_turns_the_theme_and_back(show: Callable[..., Page], runs: list[RunFiles], scheme: str) -> None:
    page = show(runs, scheme=scheme)
    before = paper(page)
    button = page.locator("#theme")
    assert button.inner_text() == ("Dark" if scheme == "light" else "Light")
    button.click()
    assert abs(paper(page) - before) > 500
    button.press("Enter")
    assert paper(page) == before


def test_headers_sort_by_click_and_by_key(show: Callable[..., Page], runs: list[RunFiles]) -> None:
    page = show(runs)
    table = page.locator("#comparison table").first

    def names() -> list[str]:
        return table.locator("tbody th").all_inner_texts()

    def sorts() -> list[str | None]:
        return [header.get_attribute("aria-sort") for header in table.locator("thead th").all()]

    assert names() == ["erm", "lff"]
    assert set(sorts()) == {"none"}
    table.get_by_role("button", name="conflicting, %").click()
    assert names() == ["lff", "erm"]
    assert sorts()[3] == "descending"
    table.get_by_role("button", name="conflicting, %").press("Enter")
    assert names() == ["erm", "lff"]
    assert sorts()[3] == "ascending"
    table.get_by_role("button", name="method").press("Space")
    table.get_by_role("button", name="method").press("Space")
    assert names() == ["lff", "erm"]
    assert sorts().count("none") == len(sorts()) - 1


def test_what_was_not_measured_is_sorted_last_both_ways(show: Callable[..., Page], runs: list[RunFiles]) -> None:
    page = show(runs[:1])
    page.locator("#clean summary").click()
    table = page.locator("#clean table").first
    for _ in range(2):
        table.get_by_role("button", name="value").click()
        assert table.locator("tbody tr").last.locator("td").nth(1).inner_text() == "empty"


def test_hostile_names_run_nothing(show: Callable[..., Page], make_run: Callable[..., RunFiles]) -> None:
    page = show(hostile_runs(make_run), width=375)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.title().endswith("– holdfast")
    assert page.locator("script").count() == 1
    assert overflow(page) <= 0


def test_the_policy_stops_what_is_not_ours(show: Callable[..., Page], runs: list[RunFiles]) -> None:
    page = show(runs, listen=False)
    stopped = page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.owned = true";
            document.body.append(script);
            setTimeout(() => resolve("nothing"), 2000);
        })"""
    )
    assert stopped == "script-src-elem"
    assert page.evaluate("window.owned") is None


def test_print_is_light_in_the_dark(show: Callable[..., Page], runs: list[RunFiles]) -> None:
    page = show(runs, scheme="dark")
    page.emulate_media(media="print")
    assert paper(page) == 765
    assert page.locator("#theme").is_hidden()
