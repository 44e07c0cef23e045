"""A report on 1,000 classes and 50,000 images: its size, the time to make and to open it, and the memory it needs.

    python benchmarks/report.py --out benchmarks/results/report.json [--chromium PATH]

The findings are those of real audits of made-up predictions, a file with a score a class and 20 groups; two models side
by side, each with 24 pictures of 96 pixels that do not compress and a sheet of 200 small
ones, as an audit of photographs would keep. Making the report is timed in a process of its own.

Then the gallery's report of two models on Fashion-MNIST's 10,000 test images with all checks: its size, the time to
open it, and how long its filters take, from the change of a choice to the page laid out anew.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from record import write_result

GALLERY = Path(__file__).parents[1] / "docs" / "gallery" / "fashion"
CLASSES, IMAGES, GROUPS, PICTURES, LISTED = 1000, 50_000, 20, 24, 10_000


def predictions(path: Path, seed: int, accuracy: float) -> None:
    draw = np.random.default_rng(seed)
    labels = np.arange(IMAGES) % CLASSES
    wrong = (labels + draw.integers(1, 40, IMAGES)) % CLASSES
    said = np.where(draw.random(IMAGES) < accuracy, labels, wrong)
    scores = draw.normal(size=(IMAGES, CLASSES)).astype(np.float32)
    scores[np.arange(IMAGES), said] += 6
    names = [f"a class with a name {i}" for i in range(CLASSES)]
    columns = {
        "id": [f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(IMAGES)],
        "label": [names[i] for i in labels],
        "site": [f"site {i}" for i in draw.integers(0, GROUPS, IMAGES)],
    }
    table = pa.table(columns | {f"logit_{name}": scores[:, i] for i, name in enumerate(names)})
    pq.write_table(table, path)


def add_pictures(path: Path, seed: int) -> None:
    """As many and as large as an audit of photographs would keep."""
    draw = np.random.default_rng(seed)
    content = json.loads(path.read_bytes())
    shown = []
    for i in range(PICTURES):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (96, 96, 3), dtype=np.uint8)).save(file, "PNG")
        png = base64.b64encode(file.getvalue()).decode()
        shown.append({"png": png, "label": f"a class with a name {i}", "prediction": "another", "confidence": 0.5})
    found = {"check": "accuracy", "name": "samples", "value": None, "n": 0, "low": None, "high": None, "where": {}}
    listed = {"of": IMAGES, "classes": [f"a class with a name {i}" for i in range(CLASSES)]}
    drawn = {"label": CLASSES, "prediction": CLASSES, "confidence": 1001, "positions": IMAGES}
    listed |= {key: " ".join(map(str, draw.integers(0, most, LISTED))) for key, most in drawn.items()}
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (10 * 32, 20 * 32), dtype=np.uint8)).save(file, "PNG")
    sheet = {"png": base64.b64encode(file.getvalue()).decode(), "side": 32, "columns": 20}
    listed["sheet"] = sheet | {"places": " ".join(map(str, range(200)))}
    content["findings"] = [f for f in content["findings"] if (f["check"], f["name"]) != ("accuracy", "samples")]
    content["findings"].append({**found, "settings": {}, "evidence": {"pictures": shown, "listed": listed}})
    path.write_text(json.dumps(content), encoding="utf-8")


FILTERS = """() => {
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
    return { most_ms: Math.max(...times), changes: times.length, shows: gallery.querySelector("output").textContent };
}"""


def filtered(page: Path, chromium: str) -> dict[str, float | str]:
    """Every choice of every filter of the first model's samples: the slowest change, in milliseconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(page.as_uri(), wait_until="load")
        found = tab.evaluate(FILTERS)
        browser.close()
    return {f"filter_{key}": value for key, value in found.items()}


def of_the_gallery(folder: Path, chromium: str | None) -> dict[str, object]:
    """Two models on 10,000 images with all checks."""
    from holdfast.reports.html import report_folders

    page = folder / "gallery.html"
    started = time.perf_counter()
    report_folders([GALLERY], page)
    made = {"images": 10_000, "models": 2, "report_bytes": page.stat().st_size, "make_s": time.perf_counter() - started}
    return made | (opened(page, chromium) | filtered(page, chromium) if chromium else {})


def opened(page: Path, chromium: str) -> dict[str, float | str]:
    """Seconds until the page has loaded, and until it has been laid out with every part unfolded; the worst of five."""
    from playwright.sync_api import sync_playwright

    loads, unfolds = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(5):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            started = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="load")
            tab.evaluate("document.documentElement.scrollHeight")
            loads.append(time.perf_counter() - started)
            started = time.perf_counter()
            tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            tab.evaluate("document.documentElement.scrollHeight")
            unfolds.append(time.perf_counter() - started)
            tab.close()
        version = browser.version
        browser.close()
    return {"load_s": max(loads), "unfold_s": max(unfolds), "chromium": version}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    audits = folder / "audits"
    for seed, (name, accuracy) in enumerate((("one", 0.76), ("two", 0.81))):
        predictions(folder / f"{name}.parquet", seed, accuracy)
        words = ["audit", "--predictions", str(folder / f"{name}.parquet"), "--group", "site", "--quiet"]
        subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "--out", str(audits / name)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        add_pictures(audits / name / "findings.json", seed)
    page = folder / "report.html"
    code = "import sys; from holdfast.cli import main; main(sys.argv[1:]); print(open('/proc/self/status').read())"
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(audits), "--out", str(page)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    numbers: dict[str, object] = {
        "classes": CLASSES, "images": IMAGES, "groups": GROUPS, "models": 2,
        "findings_bytes": sum(p.stat().st_size for p in audits.rglob("findings.json")),
        "report_bytes": page.stat().st_size, "make_s": seconds,
        "make_peak_mb": int(re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)[0]) / 1024,
    }  # fmt: skip
    if args.chromium:
        numbers |= opened(page, args.chromium)
    numbers["all checks"] = of_the_gallery(folder, args.chromium)
    shutil.rmtree(folder)
    print(json.dumps(numbers, indent=1))
    if args.out:
        write_result(args.out, numbers)


if __name__ == "__main__":
    main()
