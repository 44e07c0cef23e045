"""The report in a real Chromium: it works, fits, and keeps to itself."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from holdfast.reports import RunFiles, read_runs
from tests.reports.test_report_html import hostile_runs

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

WIDTHS = {"desk": 1280, "tablet": 768, "phone": 375}
SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"


@pytest.fixture(scope="module")
def audited() -> list[RunFiles]:
    """Two models under every check, as an audit left them, with the curves of their training."""
    return read_runs([SAMPLE])


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go: $HOLDFAST_SHOTS, to look at them, or nowhere that lasts."""
    folder = Path(os.environ.get("HOLDFAST_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def paper(page: Page) -> int:
    """Brightness of the background, 0 to 765."""
    return int(
        page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
        )
    )


CUT_OFF = """[...document.querySelectorAll('svg text')].filter(t => {
    const whole = t.ownerSVGElement.getBoundingClientRect(), own = t.getBoundingClientRect();
    return own.left < whole.left - 0.5 || own.right > whole.right + 0.5;
}).map(t => t.textContent)"""
"""Names and numbers that reach beyond their chart, where nobody sees them."""


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_with_everything_open(
    show: Callable[..., Page], audited: list[RunFiles], width: int, scheme: str, shots: Path
) -> None:
    page = show(audited, width=width, scheme=scheme)
    # on a phone the page is 50,000 pixels long, which Chromium cannot always capture at once
    page.screenshot(path=shots / f"{width}-{scheme}.png", full_page=width != WIDTHS["phone"])
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert overflow(page) <= 0
    assert page.evaluate(CUT_OFF) == []
    assert (paper(page) > 600) is (scheme == "light")
    own = "[...document.querySelectorAll('.gallery img')]"
    boxes = page.evaluate(f"{own}.map(i => [i.clientWidth, i.clientHeight, i.naturalWidth])")
    assert len(boxes) > 50
    assert all(0 < width <= 128 and 0 < height <= 128 and 0 < pixels <= 96 for width, height, pixels in boxes)
    with_pictures = Image.open(shots / f"{width}-{scheme}.png")
    assert with_pictures.width == width
    colours = with_pictures.convert("RGB").resize((64, 64)).getcolors(4096)
    assert colours is not None
    assert len(colours) > 50, "an empty page has one colour"


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_classes_stay_within_their_chart(show: Callable[..., Page], width: int) -> None:
    """Those of garments are long and stand aslant above a map."""
    page = show(read_runs([SAMPLE.parents[1] / "gallery" / "fashion"]), width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate(CUT_OFF) == []


def test_every_chapter_of_an_audit_is_there(show: Callable[..., Page], audited: list[RunFiles]) -> None:
    page = show(audited)
    chapters = page.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert chapters == [
        "glance", "comparison", "accuracy", "groups", "slices", "corruptions", "attacks", "ood", "curvature",
        "saliency", "training", "samples", "settings", "glossary",
    ]  # fmt: skip
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert links == [f"#{chapter}" for chapter in chapters]
    page.emulate_media(reduced_motion="reduce")
    page.locator("nav a[href='#attacks']").click()
    assert 0 <= page.evaluate("document.getElementById('attacks').getBoundingClientRect().top") < 100
    page.wait_for_function("document.querySelector('nav a[aria-current]')?.hash === '#attacks'")
    page.locator("nav a[href='#settings']").click()
    top = page.evaluate("document.querySelector('.top').getBoundingClientRect().top")
    assert top == 0, "the navigation stays in sight"


def test_the_navigation_cuts_off_no_name_on_a_desk_and_shows_no_scrollbar(
    show: Callable[..., Page], audited: list[RunFiles]
) -> None:
    page = show(audited, width=WIDTHS["desk"])
    assert page.evaluate("(nav => nav.scrollWidth - nav.clientWidth)(document.querySelector('nav'))") == 0
    narrow = show(audited, width=420)
    bar = "(nav => [nav.scrollWidth > nav.clientWidth, nav.offsetHeight - nav.clientHeight])"
    assert narrow.evaluate(f"{bar}(document.querySelector('nav'))") == [True, 0]
    assert narrow.evaluate("getComputedStyle(document.querySelector('nav')).scrollbarWidth") == "none"


OUT_OF_SIGHT = """[...document.querySelectorAll('td, tbody th')].filter((cell) => {
    const box = cell.getBoundingClientRect();
    return cell.checkVisibility() && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((cell) => cell.textContent)"""


def test_no_table_loses_a_value_on_a_phone(show: Callable[..., Page], audited: list[RunFiles]) -> None:
    page = show(audited, width=390)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait_for_function("document.querySelectorAll('table.cards').length > 20")
    assert page.evaluate(OUT_OF_SIGHT) == []
    hidden = page.evaluate(
        "[...document.querySelectorAll('td')].filter(c => !c.checkVisibility() && c.textContent.trim() !== '–').length"
    )
    assert hidden == 0
    first = page.locator("#glance td[data-head]").first
    assert first.evaluate("e => getComputedStyle(e, '::before').content") == f'"{first.get_attribute("data-head")}"'
    assert page.get_by_role("columnheader", name="value, %").count() > 0, "a table still, for those who hear it"


SHOWN = "all => all.filter(e => e.checkVisibility()).map(e => e.querySelector('span').textContent)"


def test_samples_are_filtered_and_enlarged(show: Callable[..., Page], audited: list[RunFiles]) -> None:
    """The filters count and show what the answers to all test samples say."""
    page = show(audited)
    gallery = page.locator("#samples .gallery").first
    listed = next(f.evidence["listed"] for f in audited[0].findings if f.name == "samples")
    columns = ([int(word) for word in listed[key].split()] for key in ("label", "prediction", "confidence"))
    names = listed["classes"]
    rows = [(names[label], names[said], sure / 1000) for label, said, sure in zip(*columns, strict=True)]
    total = len(rows)
    items, count = gallery.locator("li"), gallery.locator("output")
    assert len(items.evaluate_all(SHOWN)) == 24, "the surest mistakes, until somebody asks for more"
    assert count.inner_text() == f"{total} of {total} samples"
    gallery.get_by_label("class").select_option("5")
    fives = [row for row in rows if row[0] == "5"]
    shown = items.evaluate_all(SHOWN)
    assert all(title.split(" → ")[0] == "5" for title in shown)
    assert 24 < len(shown) <= len(fives)
    assert count.inner_text() == f"{len(fives)} of {total} samples"
    gallery.get_by_label("prediction").select_option("9")
    wanted = sum(said == "9" for _, said, _ in fives)
    assert wanted > 0
    assert items.evaluate_all(SHOWN) == ["5 → 9"] * wanted
    gallery.get_by_label("confidence").select_option("0 0.5")
    unsure = sum(said == "9" and sure < 0.5 for _, said, sure in fives)
    assert len(items.evaluate_all(SHOWN)) == unsure
    gallery.get_by_label("confidence").select_option("0 1")
    gallery.get_by_label("prediction").select_option("")
    gallery.get_by_label("class").select_option("")
    gallery.get_by_role("button", name="Show 48 more").click()
    assert len(items.evaluate_all(SHOWN)) == 24 + 48
    page.wait_for_function("[...document.querySelectorAll('#samples li.more img')].every(i => i.naturalWidth === 16)")
    for button in (gallery.locator("button.enlarge").first, gallery.locator("li.more button.enlarge").first):
        button.press("Enter")
        assert page.locator("dialog img").bounding_box()["width"] > 300  # type: ignore[index]
        assert page.locator("dialog p").inner_text() == button.locator("img").get_attribute("alt")
        page.keyboard.press("Escape")
        assert page.locator("dialog").is_hidden()


def test_ten_thousand_samples_are_filtered_without_a_pause(show: Callable[..., Page]) -> None:
    page = show(read_runs([SAMPLE.parents[1] / "gallery" / "fashion"]))
    slowest = page.evaluate("""() => {
        const gallery = document.querySelector("#samples .gallery"), times = [];
        for (const select of gallery.querySelectorAll("select")) {
            for (const option of [...select.options].reverse()) {
                const started = performance.now();
                select.value = option.value;
                select.dispatchEvent(new Event("change", { bubbles: true }));
                gallery.getBoundingClientRect();
                times.push(performance.now() - started);
            }
        }
        times.sort((a, b) => a - b);
        return times[Math.floor(times.length / 2)];
    }""")
    assert "of 10,000 samples" in page.locator("#samples output").first.inner_text()
    assert slowest < 100, "the median of all choices, in milliseconds; a reader notices 100"


def test_a_name_in_a_legend_hides_its_line_and_shows_it_again(
    show: Callable[..., Page], audited: list[RunFiles]
) -> None:
    page = show(audited[:1])
    figure = page.locator("#attacks figure").first
    lines = figure.locator("svg path.line")
    count = lines.count()
    assert count > 5
    button = figure.locator(".legend button").first
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.evaluate_all("all => all.filter(e => e.checkVisibility()).length") == count - 1
    button.click()
    assert lines.evaluate_all("all => all.filter(e => e.checkVisibility()).length") == count


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
    page.locator("#accuracy summary").click()
    table = page.locator("#accuracy table").filter(has=page.get_by_role("button", name="value")).first
    for _ in range(2):
        table.get_by_role("button", name="value").click()
        assert table.locator("tbody tr").last.locator("td").nth(1).inner_text() == "empty"


def test_hostile_names_run_nothing(show: Callable[..., Page], make_run: Callable[..., RunFiles]) -> None:
    page = show(hostile_runs(make_run), width=375)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.title().endswith("– holdfast")
    assert page.evaluate("[...document.scripts].map(s => s.type)") == ["application/json", ""]
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


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(
    show: Callable[..., Page], audited: list[RunFiles]
) -> None:
    page = show(audited)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") > 0, "seen once it has the focus"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    stops = page.evaluate(
        """() => {
            const all = [...document.querySelectorAll("a, button, summary, [tabindex]")];
            const seen = all.filter((e) => e.checkVisibility());
            return [all.filter((e) => e.tabIndex > 0).length, seen.every((e) => e.tabIndex === 0), seen.length];
        }"""
    )
    assert stops[:2] == [0, True], "no order of its own, nothing left out"
    page = show(audited)
    visited = []
    for _ in range(25):
        page.keyboard.press("Tab")
        visited.append(
            page.evaluate(
                """() => {
                    const all = [...document.querySelectorAll("a, button, summary, [tabindex]")];
                    const e = document.activeElement;
                    const outline = getComputedStyle(e);
                    const shown = outline.outlineStyle !== "none" && parseFloat(outline.outlineWidth) >= 2;
                    return [all.indexOf(e), shown];
                }"""
            )
        )
    assert [index for index, _ in visited] == sorted({index for index, _ in visited})
    assert all(shown for _, shown in visited)


def test_all_tables_of_an_audit_sort(show: Callable[..., Page], audited: list[RunFiles]) -> None:
    page = show(audited)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    wrong = page.evaluate(
        """() => {
            const wrong = [];
            for (const button of document.querySelectorAll("th > button")) {
                button.click();
                const header = button.parentNode;
                const rows = [...header.closest("table").tBodies[0].rows];
                const values = rows.map((row) => row.cells[header.cellIndex].dataset.value);
                const numbers = values.filter((v) => v !== undefined).map(Number);
                const sign = header.getAttribute("aria-sort") === "descending" ? -1 : 1;
                if (numbers.some((v, i) => i && sign * (v - numbers[i - 1]) < 0)) wrong.push(button.textContent);
            }
            return [document.querySelectorAll("th > button").length, wrong];
        }"""
    )
    assert wrong[0] > 100
    assert wrong[1] == []


def test_the_numbers_can_be_saved_and_are_the_findings(show: Callable[..., Page], audited: list[RunFiles]) -> None:
    page = show(audited)
    with page.expect_download() as waiting:
        page.locator("#save").click()
    saved = json.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
    assert [run["name"] for run in saved] == [run.name for run in audited]
    for given, run in zip(saved, audited, strict=True):
        told = [f for f in run.findings if f.value is not None]
        assert [(f["name"], f["value"], f["low"], f["n"], f["where"]) for f in given["findings"]] == [
            (f.name, f.value, f.low, f.n, dict(f.where)) for f in told
        ]


def axe() -> str:
    """The source of axe-core: a file named in $AXE, or the one that a package for Python brings along."""
    path = os.environ.get("AXE")
    if path is None:
        package = importlib.util.find_spec("axe_playwright_python")
        found = Path(package.origin or "").parent / "axe.min.js" if package else None
        path = str(found) if found is not None and found.is_file() else None
    if path is None:
        message = "no axe-core: install axe-playwright-python, or name axe.min.js of npm's axe-core in $AXE"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return Path(path).read_text(encoding="utf-8")


def serious_problems(page: Page) -> list[tuple[str, str, int, str]]:
    """What axe-core calls serious or critical, with everything open."""
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.evaluate(axe())  # what the browser's owner runs is not the page's own script: the policy stands
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert found["testEngine"]["name"] == "axe-core"
    assert len(found["passes"]) > 20, "it looked at the page"
    return [
        (rule["id"], rule["help"], len(rule["nodes"]), rule["nodes"][0]["html"])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["audit", "training"])
def test_axe_finds_nothing_serious(
    show: Callable[..., Page], audited: list[RunFiles], runs: list[RunFiles], scheme: str, which: str
) -> None:
    page = show(audited if which == "audit" else runs, scheme=scheme)
    assert serious_problems(page) == []
