"""The page of a data check in a real Chromium: it fits desk and phone, says what was found, and axe finds nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from holdfast.data.data_check import scan_data
from holdfast.quality.label_errors import JudgedLabels, SuspectLabel
from holdfast.quality.quality_check import PAGE, findings_of, write_check
from holdfast.settings.command_settings import QualitySettings
from tests.data.pictures import noise, truncated_jpeg, write
from tests.reports.test_browser import overflow, serious_problems

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

LONG = "Ochlodes_sylvanoides_(W._H._Edwards_1862)_variety_without_a_space"


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with groups, duplicates, a leak, an unreadable file, a class of a long name, and suspect labels."""
    root = tmp_path_factory.mktemp("checked")
    lines = ["path,label,group,split"]
    for i in range(60):
        name, label = f"{'site_a' if i % 3 else 'site_b'}/{LONG if i == 7 else i}.png", (LONG, "ant", "bee")[i % 3]
        picture = noise(40, 48, seed=i % 54)  # the last six are copies
        if i % 2:
            picture = np.clip(picture.astype(int) + (i >= 54), 0, 255).astype(np.uint8)
        write(root / name, picture)
        lines.append(
            f"{name},{label},{('wood', 'meadow', 'roadside')[i % 5 % 3]},{('train', 'val', 'test')[i // 4 % 3]}"
        )
    truncated_jpeg(root / "half.jpg")
    lines.append("half.jpg,ant,wood,train")
    (root / "set.csv").write_text("\n".join(lines))
    scan = scan_data(root / "set.csv", near=0.3)
    assert scan.data is not None
    assert scan.leaks
    own = QualitySettings(label_errors=True)
    judged = {
        split: JudgedLabels(
            tuple(
                SuspectLabel(sample, 0.004, "bee", 0.991, 0.97)
                for group in scan.duplicates
                for sample in group.samples
                if sample.split == split
            ),
            noise=0.125,
            accuracy=0.41,
            n=len(scan.data.splits[split]),
            least_precision=0.97,
            skill=0.12,
        )
        for split in ("train", "test")
    }
    write_check(scan, judged, findings_of(scan, judged, own), root / "out")
    return root / "out" / PAGE


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_data_check_fits_and_shows_what_was_found(
    show: Callable[..., Page], checked: Path, width: int, tmp_path: Path
) -> None:
    page = show(checked, width=width)
    shots = Path(os.environ.get("HOLDFAST_SHOTS") or tmp_path)
    page.screenshot(path=shots / f"data-check-{width}.png", full_page=True)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert overflow(page) <= 0
    text = page.locator("main").inner_text()
    for words in ("Leakage: test images", "Labels that are probably wrong (train)", "Files that cannot be read", LONG):
        assert words in text
    assert "agree with 41% of the train labels: too few to tell" in page.inner_text("body")
    lost = page.evaluate("[...document.querySelectorAll('main img')].filter(i => !i.naturalWidth || !i.alt).length")
    assert (lost, page.locator("main img").count() > 10) == (0, True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_data_check(show: Callable[..., Page], checked: Path, scheme: str) -> None:
    assert serious_problems(show(checked, scheme=scheme)) == []
