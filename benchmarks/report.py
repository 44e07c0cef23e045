"""A report on 1,000 classes and 50,000 images: its size, the time to make and to open it, and the memory it needs.

    python benchmarks/report.py --out benchmarks/results/report.json [--chromium PATH]

The findings are those of real audits of made-up predictions, a file with a score a class and 20 groups; two models side
by side, each with 24 pictures of 96 pixels that do not compress. Making the report is timed in a process of its own.
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

CLASSES, IMAGES, GROUPS, PICTURES = 1000, 50_000, 20, 24


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
    found = {"check": "clean", "name": "samples", "value": None, "n": 0, "low": None, "high": None, "where": {}}
    content["findings"].append({**found, "settings": {}, "evidence": {"pictures": shown}})
    path.write_text(json.dumps(content), encoding="utf-8")


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
            [sys.executable, "-m", "holdfast.cli", *words, "--out", str(audits / name)],
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
    numbers = {
        "classes": CLASSES, "images": IMAGES, "groups": GROUPS, "models": 2,
        "findings_bytes": sum(p.stat().st_size for p in audits.rglob("findings.json")),
        "report_bytes": page.stat().st_size, "make_s": seconds,
        "make_peak_mb": int(re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)[0]) / 1024,
    }  # fmt: skip
    if args.chromium:
        numbers |= opened(page, args.chromium)
    shutil.rmtree(folder)
    print(json.dumps(numbers, indent=1))
    if args.out:
        write_result(args.out, numbers)


if __name__ == "__main__":
    main()
