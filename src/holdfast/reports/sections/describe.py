"""The map: where images lie in two dimensions, and what a VAE draws there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from markupsafe import Markup

from holdfast.reports.blocks import Block, Chart, Gallery, Section, png_picture, present
from holdfast.reports.report_tables import findings_list
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg import WIDTH, figure, scale, series, shorten, tag
from holdfast.reports.text import finite
from holdfast.types import Finding

HEIGHT = 360.0
MOST_NAMES, LONGEST = 20, 14
"""Classes that are named on the map where their middle lies, and the characters of a name."""
TITLES = {
    "reconstructions": "Images, and what is made of them",
    "traversals": "Along each latent dimension, the widest first",
    "interpolations": "From one image to another",
}


@section("describe")
def describe(runs: Sequence[RunFiles]) -> Section | None:
    found = [f for run in runs for f in run.findings if f.check == "describe"]
    maps = [f for f in found if f.name == "map"]
    if not maps:
        return None
    numbers = [f for f in found if f.value is not None]
    table = findings_list(numbers, runs[0].measures, caption="How far the classes lie apart") if numbers else None
    blocks = present(table, *(block for i, f in enumerate(maps) for block in (*_map(f, i), *_strips(f))))
    lead = (
        "Each point is an image at the mean of its code, never at a random draw of it. Silhouette is near 1 where "
        "classes form separate clusters and near 0 where they overlap; the probes are classifiers trained on the code."
    )
    few = dict.fromkeys(str(name) for f in numbers for name in f.settings.get("too_few_to_probe") or ())
    if few:
        lead += f" Classes with too few images for that are left out of the numbers: {', '.join(few)}."
    return Section("describe", "The map", lead, blocks)


def _map(finding: Finding, number: int) -> Iterator[Block]:
    given = (p for p in finding.evidence.get("points") or () if isinstance(p, (list, tuple)) and len(p) == 2)
    points = [p for p in given if None not in map(finite, p)]
    if not points:
        return
    labels = finding.evidence.get("labels") or [0] * len(points)
    classes = [str(c) for c in finding.evidence.get("classes") or ()]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x_of, y_of = scale((min(xs), max(xs)), (12.0, WIDTH - 12.0)), scale((min(ys), max(ys)), (HEIGHT - 12, 12.0))
    dots: list[Markup] = []
    placed: dict[int, list[tuple[float, float]]] = {}
    for (x, y), label in zip(points, labels, strict=False):
        known = label if isinstance(label, int) and label >= 0 else 0
        placed.setdefault(known, []).append((x_of(x), y_of(y)))
        dots.append(tag("circle", class_=f"dot {series(known)}", cx=x_of(x), cy=y_of(y), r=1.8))
    for label, own in sorted(placed.items()) if len(classes) <= MOST_NAMES else ():
        if label < len(classes):
            x, y = (median(side) for side in zip(*own, strict=True))
            name = shorten(classes[label], LONGEST)
            dots.append(tag("text", name, class_="place", x=x, y=y + 4, text_anchor="middle"))
    words = f"{len(points)} images" + (f" of {len(classes)} classes" if classes else "")
    svg = figure(dots, f"describe-map-{number}", "Map of the images", words, HEIGHT)
    note = f"{words}, latent of {finding.settings.get('latent', '?')} dimensions."
    yield Chart("Map", svg, tuple(enumerate(classes)), note)


def _strips(finding: Finding) -> Iterator[Block]:
    strips: Any = finding.evidence.get("strips")
    for name, rows in strips.items() if isinstance(strips, Mapping) else ():
        listed = enumerate(rows if isinstance(rows, list) else (), start=1)
        given = [png_picture(png, f"{name}, row {i}", "") for i, png in listed]
        yield from Gallery.readable(TITLES.get(name, str(name)), given, wide=True)
