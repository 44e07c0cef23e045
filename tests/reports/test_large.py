"""A report on 1,000 classes and 50,000 images: small, made in little memory, quickly opened."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.reports.page import Page

CLASSES, IMAGES = 1000, 50_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real audit of made-up predictions."""
    folder = tmp_path_factory.mktemp("large")
    draw = random.Random(0)
    rows = ["id,label,prediction"]
    for i in range(IMAGES):
        label = i % CLASSES
        said = label if draw.random() < 0.76 else (label + draw.randrange(1, 40)) % CLASSES
        rows.append(f"val/{i:08d}.jpeg,a class with a name {label},a class with a name {said}")
    (folder / "predictions.csv").write_text("\n".join(rows))
    words = ["--predictions", str(folder / "predictions.csv"), "--checks", "accuracy", "--quiet"]
    assert main(["audit", *words, "--out", str(folder / "audit")]) == 0
    return folder / "audit"


def test_it_is_small_and_made_in_little_memory(audit: Path, tmp_path: Path) -> None:
    code = "import sys; from holdfast.cli import main; main(sys.argv[1:]); print(open('/proc/self/status').read())"
    words = ["report", str(audit), "--out", str(tmp_path / "r.html")]
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert int(re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)[0]) < 200_000
    source = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(source.encode()) < 5_000_000
    page = Page(source)
    assert len(page.tables["Findings of predictions.csv"]) > CLASSES
    assert len(page.tables["Most frequent confusions"]) == 21, "a header and the twenty largest"
    assert "The 20 weakest of 1000" in source


@pytest.mark.browser
def test_it_opens_in_two_seconds(audit: Path, browser: Any) -> None:
    page = browser.new_page()
    started = time.perf_counter()
    page.goto((audit / "report.html").as_uri(), wait_until="load")
    page.evaluate("document.documentElement.scrollHeight")
    assert time.perf_counter() - started < 2
    page.locator("#accuracy summary").click()
    assert page.locator("#accuracy details tbody tr").count() > CLASSES
    page.close()
