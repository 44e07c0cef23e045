"""A report that is passed on: few pictures or none, no folders, in a notebook, on paper, from findings alone."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from holdfast.cli import main
from holdfast.reports import RunFiles, read_findings, read_runs
from holdfast.reports.blocks import MOST_BYTES, Details, Gallery, Picture, Section, Side, fitted
from holdfast.reports.html import notebook_frame, render
from holdfast.reports.run_files import redacted
from holdfast.types import Finding
from tests.reports.page import Page

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"


def gallery(name: str, *sizes: int) -> Gallery:
    return Gallery(name, tuple(Picture("x" * size, "", "", "", wrong=False) for size in sizes), "Note.")


def test_small_galleries_stay_whole_and_large_ones_say_what_they_lack() -> None:
    blocks = (gallery("small", 10), Side((gallery("large", 30, 30, 30),)), Details("more", (gallery("other", 50, 20),)))
    (section,) = fitted([Section("a", "A", "", blocks)], 130)  # 10, and 60 for each of the two others
    small, side, details = section.blocks
    assert isinstance(side, Side)
    assert isinstance(details, Details)
    assert small == gallery("small", 10)
    large, other = side.blocks[0], details.blocks[0]
    assert isinstance(large, Gallery)
    assert isinstance(other, Gallery)
    assert [len(p.source) for p in large.pictures] == [30, 30]
    assert large.note == "Note. 1 of 3 pictures left out to keep the page small; they are in findings.json."
    assert [len(p.source) for p in other.pictures] == [50]
    assert fitted([Section("a", "A", "", blocks)], 170)[0].blocks == blocks


def noisy_png(draw: random.Random) -> str:
    """As many bytes as 96 pixels can take."""
    file = io.BytesIO()
    Image.frombytes("RGB", (96, 96), draw.randbytes(96 * 96 * 3)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_a_page_full_of_pictures_stays_under_its_budget() -> None:
    draw = random.Random(0)
    pngs = [noisy_png(draw) for _ in range(24)]
    shown = [{"png": png, "label": "a", "prediction": "b"} for png in pngs]
    looks = [{"png": png, "label": "a", "position": i, "looks": [{"overlay": png}]} for i, png in enumerate(pngs)]
    found = (
        Finding("accuracy", "accuracy", 0.5, 10),
        Finding("accuracy", "samples", None, 0, evidence={"pictures": shown}),
        Finding("ood", "ood_auroc", 0.5, 10, where={"score": "msp"}),
        Finding("ood", "misses", None, 0, evidence={"misses": shown}),
        Finding("saliency", "maps", None, 0, evidence={"maps": looks, "models": [""]}),
    )
    assert 3 * sum(map(len, pngs)) > MOST_BYTES, "or nothing is tested"
    source = render([RunFiles("a", findings=found), RunFiles("b", findings=found)])
    pictures = [values["src"] or "" for values in Page(source).attributes("img")]
    assert MOST_BYTES / 2 < sum(map(len, pictures)) <= MOST_BYTES
    assert len(source) < MOST_BYTES + 500_000
    assert "pictures left out to keep the page small" in source


def test_report_rebuilds_an_audit_from_its_findings_alone(tmp_path: Path) -> None:
    for name in ("erm", "lff"):
        (tmp_path / "audit" / name).mkdir(parents=True)
        for file in ("findings.json", "metrics.jsonl"):
            shutil.copy(SAMPLE / name / file, tmp_path / "audit" / name)
    assert main(["report", str(tmp_path / "audit"), "--out", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_bytes() == render(read_runs([SAMPLE])).encode("utf-8")


def test_no_images_leaves_none_and_says_so(tmp_path: Path) -> None:
    assert main(["report", str(SAMPLE), "--no-images", "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "base64" not in text
    assert "24 of 24 pictures left out." in text


def test_redact_paths_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "secret folder"
    folder.mkdir()
    content = json.loads((SAMPLE / "lff" / "findings.json").read_text(encoding="utf-8"))
    content["run"]["command"] = "holdfast audit /home/ann/runs/lff --data ~/private/photos"
    content["model"]["spec"] = "/home/ann/runs/lff"
    content["model"]["notes"] = ["read from C:\\Users\\ann\\model.pth"]
    content["checks"][0] = {"name": "accuracy", "state": "crashed", "reason": "OSError: cannot read '/data/ann/x.png'"}
    for found in content["findings"]:
        for picture in found["evidence"].get("pictures", []):
            picture["source"] = "ann/cat.png"
    (folder / "findings.json").write_text(json.dumps(content), encoding="utf-8")
    (run,) = read_runs([folder])
    assert len(re.findall("ann|private", render([run]))) > 10
    assert main(["report", str(folder), "--redact-paths", "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert not re.findall(r"\bann\b|private", text)
    assert "holdfast audit …/lff --data …/photos" in text
    assert "8/255" in text, "what is no path stays"
    numbers = [f.value for f in run.findings]
    assert [f.value for f in redacted(run).findings] == numbers


@pytest.mark.browser
def test_findings_show_themselves_in_a_notebook(browser: Any) -> None:
    file = read_findings(SAMPLE / "lff" / "findings.json")
    html = notebook_frame(file)
    clean = next(f.value for f in file.findings if (f.check, f.name, f.where) == ("accuracy", "accuracy", {}))
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_content(f"<!doctype html><title>notebook</title><h1 id=own>mine</h1>{html}")
    frame = page.frame_locator("iframe")
    assert frame.locator("h1").inner_text().startswith(f"lff on coloured-digits: {100 * clean:.1f}")
    first = frame.locator("#glance table").first
    first.get_by_role("button", name="value, %").click()
    assert first.locator("tbody tr").first.locator("th").inner_text() == "group-balanced accuracy"
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "none", "the notebook keeps its own style"
    assert problems == []
    page.close()


@pytest.mark.browser
def test_on_paper_nothing_is_cut_off(show: Callable[..., Any]) -> None:
    page = show(read_runs([SAMPLE]), scheme="dark", width=718)  # A4 without its margins
    page.emulate_media(media="print")
    beyond = page.evaluate(
        """() => {
            const edge = document.documentElement.clientWidth + 1;
            return [...document.querySelectorAll("table, svg, img, p, h1, h2, li")]
                .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > edge)
                .map((e) => e.tagName + " " + e.textContent.slice(0, 80));
        }"""
    )
    assert beyond == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    assert len(page.pdf(format="A4")) > 50_000
