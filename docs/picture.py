"""The picture of a report that the README and the start page show. Needs Chromium and the extra ``dev``.

holdfast demo && python docs/picture.py runs/demo/report.html --out docs/_static/report.png
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, SCALE = 1080, 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/_static/report.png"))
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": WIDTH, "height": 900}, color_scheme="light", device_scale_factor=SCALE
        )
        page = context.new_page()
        page.goto(args.report.resolve().as_uri())
        # the first sentence and its proof
        end = page.locator(".proof").evaluate("e => e.getBoundingClientRect().bottom")
        page.screenshot(path=args.out, clip={"x": 0, "y": 0, "width": WIDTH, "height": end + 24})
        browser.close()
    picture = Image.open(args.out).convert("RGB")
    picture.save(args.out, optimize=True)
    print(f"{args.out}: {picture.width} x {picture.height}, {args.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
