"""Slices: parts of the data, by how images look or by clusters of features, where a model is weak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.reports.arms import Arm, Spread, figure_cell
from holdfast.reports.blocks import Block, Cell, Chart, Column, Gallery, Section, Side, Table, png_picture
from holdfast.reports.report_tables import all_numbers
from holdfast.reports.sections import of_check
from holdfast.reports.svg.lines import Line, share_lines
from holdfast.reports.text import DIFFERENCE, P_VALUE, finite, number, numbers, percent, records
from holdfast.types import Finding

CHECK = "slices"


@of_check(CHECK)
def slices(groups: Sequence[Arm]) -> Section:
    every = [(run.name, [f for f in run.findings if f.check == CHECK]) for arm in groups for run in arm.runs]
    found = [(name, own) for name, own in every if own]
    lead = (
        "A weak slice was found on one half of the test images and checked on the other half. The numbers are "
        "of the second half: a slice that was weak by chance is not weak again. A slice is confirmed if its p, "
        "adjusted for all slices that were tried, is at most the level. A cluster holds images that look alike to the "
        "model: of one class, compared with the rest of that class, or of all classes. Its name says what its images "
        "are predicted as, and what sets them apart most."
    )
    blocks: list[Block] = []
    for run, own in found:
        name = run if len(found) > 1 else ""
        blocks.append(_table(own, name))
        if (chart := _profile(own, name, f"slices-profile-{len(blocks)}")) is not None:
            blocks.append(Side((chart,)))
        blocks += _galleries(own, name)
    return Section(CHECK, "Slices", lead, (*blocks, all_numbers(groups, CHECK)))


def _table(own: Sequence[Finding], name: str) -> Table:
    gaps = {f.where.get("slice"): f for f in own if f.name == "slice_gap"}
    rows = []
    for f in (f for f in own if f.name == "slice_accuracy" and "slice" in f.where):
        gap, p = gaps.get(f.where["slice"]), finite(f.evidence.get("adjusted_p"))
        confirmed, value = f.evidence.get("confirmed") is True, finite(f.value)
        rows.append((
            Cell(f.where["slice"], strong=confirmed),
            Cell("empty" if value is None else percent(value), value),
            Cell(f"{f.n:,}", f.n),
            figure_cell(DIFFERENCE, Spread.of([gap]) if gap else None),
            Cell("" if p is None else number(P_VALUE, p), p),
            Cell("confirmed" if confirmed else "not confirmed", float(confirmed), strong=confirmed),
            Cell(_set_apart(f)),
        ))  # fmt: skip
    titles = ("accuracy, %", "n", "below the rest by, points (95 %)", "adjusted p")
    columns = (
        Column.texts("slice")
        + Column.numbers(*titles)
        + Column.texts("verdict", "median or share inside, and in the rest")
    )
    width = len(columns) if any(row[-1].text for row in rows) else len(columns) - 1
    caption = "Weak slices" + (f" of {name}" if name else "")
    return Table(caption, columns[:width], tuple(row[:width] for row in rows), _note(own))


def _set_apart(f: Finding) -> str:
    """What sets a cluster apart, in numbers: the median, or the share of a kind, inside and in the rest."""
    own = f.evidence.get("telling")
    both = [v for key in ("inside", "outside") if isinstance(own, Mapping) and (v := finite(own.get(key))) is not None]
    if not isinstance(own, Mapping) or len(both) < 2:
        return ""
    kind = own.get("kind")
    inside, rest = (f"{v:.3g}" if kind is None else f"{percent(v)} %" for v in both)
    return f"{own.get('property')}{'' if kind is None else f' {kind}'}: {inside}, {rest}"


def _note(own: Sequence[Finding]) -> str:
    f = next((f for f in own if f.name == "confirmed_slices"), None)
    if f is None:
        return ""
    attributes, level, count = f.evidence.get("attributes"), finite(f.settings.get("level")), int(finite(f.value) or 0)
    names = ", ".join(map(str, attributes if isinstance(attributes, list) else ())) or "nothing that varies"
    said = f"{count} confirmed" if count else "No weak slice is confirmed"
    at = "" if level is None else f" at level {level:g}"
    tried = f.evidence.get("clusters")
    more = f" Clusters of {tried.get('of')}: {tried.get('tried')} tried." if isinstance(tried, Mapping) else ""
    return f"{said}{at}, on {f.n:,} samples. Attributes: {names}.{more}"


def _profile(own: Sequence[Finding], name: str, id: str) -> Chart | None:
    profiles = next((f.evidence.get("profile") for f in own if f.name == "confirmed_slices"), None)
    if not isinstance(profiles, Mapping):
        return None
    lines = []
    for colour, (attribute, values) in enumerate(profiles.items()):
        curve = tuple((float(i), v) for i, v in enumerate(numbers(values, "accuracy"), start=1) if v is not None)
        if len(curve) > 1 and len(curve) == len(numbers(values, "accuracy")):
            lines.append(Line(str(attribute), (curve,), colour))
    title, x_label = "Accuracy along each attribute", "tenth of the samples, lowest first"
    note = "On all test images: to look at, and not a test."
    return share_lines(f"{title}, {name}" if name else title, lines, id=id, x_label=x_label, note=note)


def _galleries(own: Sequence[Finding], name: str) -> Iterator[Gallery]:
    for f in own:
        pictures = []
        for values in records(f.evidence.get("examples")):
            title = f"{values.get('label', '?')} → {values.get('prediction', '?')}"
            pictures.append(png_picture(values.get("png"), f"{title}; {values.get('source', '')}", title, wrong=True))
        what = f"Mistakes {'in' if 'class' in f.evidence else 'where'} {f.where.get('slice', '')}"
        yield from Gallery.readable(f"{what}, {name}" if name else what, pictures)
