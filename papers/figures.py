"""The papers' curves as SVG files, drawn from recorded results. Open it to change their looks.

    python papers/figures.py            # writes them
    python papers/figures.py --check    # says which differ from the results, and exits with 1

papers/PAPER/figures.yaml says what each figure shows; papers/PAPER/figures/NAME.svg is the result. A thick line is the
mean over seeds, thin ones are the seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from evidence import PAPERS, read_rows

sys.path.insert(0, str(PAPERS.parent / "src"))  # also where nothing is installed

from holdfast.reports.blocks import Chart
from holdfast.reports.figure_files import MARGIN, standalone
from holdfast.reports.svg.lines import Line, line_chart

PAPER = f'<rect x="-{MARGIN}" y="-{MARGIN}" width="100%" height="100%" fill="#ffffff"/>'
"""Under everything: pages in dark mode would show dark lines on a dark ground."""


def described(paper: str) -> dict[str, dict[str, Any]]:
    """The figures of a paper by name."""
    file = PAPERS / paper / "figures.yaml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8"))) if file.exists() else {}


def drawn(paper: str, name: str, spec: Mapping[str, Any]) -> str:
    """A figure as SVG. rows: what each cell is called; curve: what is drawn over the epochs; from: the lowest value;
    flags: of the rows, as in tables.yaml."""
    flags = {key: str(value) for key, value in spec.get("flags", {}).items()}
    rows = [row for row in read_rows(f"{paper}/{spec['study']}") if row.get("flags", {}) == flags]
    lines = [
        line
        for colour, (cell, label) in enumerate(spec["rows"].items())
        for line in cell_lines(
            [row.get("curves", {}).get(spec["curve"], {}) for row in rows if row["cell"] == cell], label, colour
        )
    ]
    values = [y for line in lines for _, y in line.points]
    share = spec["curve"].endswith("accuracy")
    low, high = spec.get("from", 0.0), 1.0 if spec.get("to_one", False) else max(values) * 1.02
    clipped = [
        Line(line.label, tuple(part for part in parts(line, low) if part), line.colour, line.thin) for line in lines
    ]
    how = {"id": name, "title": spec["title"], "x_label": "epoch", "y_range": (low, high), "share": share}
    legend = tuple((number, label) for number, label in enumerate(spec["rows"].values()))
    svg = standalone(Chart(spec["title"], line_chart(clipped, direct=False, **how), legend))
    return svg.replace("</style>", f"</style>{PAPER}", 1) + "\n"


def cell_lines(curves: list[Mapping[str, float]], label: str, colour: int) -> Iterator[Line]:
    """The seeds, thin, and their mean where all of them have a value."""
    tracks = [{int(epoch): value for epoch, value in curve.items()} for curve in curves if curve]
    if len(tracks) > 1:
        yield from (Line(label, (tuple(sorted(track.items())),), colour, thin=True) for track in tracks)
    shared = sorted(set.intersection(*map(set, tracks))) if tracks else []
    if shared:
        yield Line(label, (tuple((epoch, fmean(track[epoch] for track in tracks)) for epoch in shared),), colour)


def parts(line: Line, low: float) -> Iterator[tuple[tuple[float, float], ...]]:
    """The line from the first epoch on after which it stays above the lower end of the picture."""
    for segment in line.segments:
        below = [i for i, (_, y) in enumerate(segment) if y < low]
        yield segment[below[-1] + 1 if below else 0 :]


def figures() -> Iterator[tuple[Path, str]]:
    """Every file and what should be in it."""
    for paper in sorted(path.parent.name for path in PAPERS.glob("*/figures.yaml")):
        for name, spec in described(paper).items():
            yield PAPERS / paper / "figures" / f"{name}.svg", drawn(paper, name, spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = []
    for path, content in figures():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(str(path.relative_to(PAPERS)))
        if not args.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
    print(f"{'differ' if args.check else 'written'}: {', '.join(stale) or 'none'}")
    if args.check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
