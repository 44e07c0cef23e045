"""Fake runs, as files and as read; and a browser to open their report in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.reports import RunFiles, write_report
from tests.reports.fake_runs import write_run, write_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFiles]:
    """Two methods, three seeds each."""
    return [RunFiles.read(folder) for folder in write_runs(tmp_path / "runs")]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "erm-0", "erm", 0)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFiles]:
    """A run made of a name, findings and settings; what is not given is as in every other."""

    def make(name: str, method: str = "erm", seed: int = 0, **changes: Any) -> RunFiles:
        return RunFiles.read(write_run(tmp_path / "made" / name, method, seed, **changes))

    return make


@pytest.fixture(scope="session")
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
    """Opens a report of runs, or a page. At the end: no error was logged, no dialog shown, only the file was read."""
    problems: list[str] = []
    asked: set[str] = set()
    pages = []

    def opened(runs: list[RunFiles] | Path, *, width: int = 1280, scheme: str = "light", listen: bool = True) -> Page:
        path = runs if isinstance(runs, Path) else write_report(runs, tmp_path / "report.html")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        if listen:
            page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []
    assert asked <= {"file", "data", "blob"}
