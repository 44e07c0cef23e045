"""Clean accuracy: overall, by class and group; calibration, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.reports.arms import AVERAGE, MEASURES, Arm, FindingKey, Spread, figure_cell, share_chart
from holdfast.reports.blocks import Cell, Chart, Column, Section, Side, Table, present
from holdfast.reports.report_tables import all_numbers
from holdfast.reports.sections import of_check
from holdfast.reports.svg.bars import Heat, heat_map
from holdfast.reports.svg.lines import Line, line_chart, share_lines
from holdfast.reports.text import finite, is_counts, numbers, pairs, percent, records, titled

MOST_ROWS = 20
"""A chart of more parts shows the weakest; the table below it has them all."""

MOST_SIDE = 20
"""A larger confusion matrix is shown by its largest pairs."""
MOST_MAPS = 4
PAIRS = 20


@of_check("accuracy")
def accuracy(groups: Sequence[Arm]) -> Section:
    overall = {m.title: [arm.spread(m) for arm in groups] for m in MEASURES}
    charts = [
        _chart(groups, "Overall", "overall", {title: s for title, s in overall.items() if any(s)}),
        *(_by_part(groups, key) for key in ("group", "class")),
        _calibration(groups),
        *_confidences(groups),
        _risk_coverage(groups),
    ]
    confusions = list(_confusions(groups))
    charts += [block for block in confusions if isinstance(block, Chart)]
    tables = [_probabilities(groups), *(block for block in confusions if isinstance(block, Table))]
    blocks = present(Side(present(*charts)), *tables, all_numbers(groups, "accuracy", also=MEASURES[1:]))
    several, alone = "mean ± sample standard deviation over seeds", "the 95 % interval"
    many = [len(arm.runs) > 1 for arm in groups]
    whiskers = several if all(many) else f"{several}; for single runs, {alone}" if any(many) else alone
    lead = f"On the unmodified test set. Whiskers are {whiskers}."
    if any(many):
        lead += " Calibration, confidence, risk and what is taken for what are of the first seed of each."
    return Section("accuracy", "Clean accuracy", lead, blocks)


def _probabilities(groups: Sequence[Arm]) -> Table | None:
    """One row per arm: the other measures of the whole test set, and how much calibration error chance explains."""
    keys = list(dict.fromkeys(k for arm in groups for k in arm.found if k == FindingKey(k.name) and k != AVERAGE))
    keys = [k for k in keys if any(s.values for arm in groups if (s := arm.spread(k)))]
    if not keys:
        return None
    rows = []
    for arm in groups:
        chance = finite(_evidence(arm, "ece", "chance_high"))
        cells = [figure_cell(arm.measure(key), arm.spread(key)) for key in keys]
        rows.append((Cell(arm.label), *cells, Cell("" if chance is None else percent(chance), chance)))
    columns = Column.texts("method") + Column.numbers(*(titled(groups[0].measure(key)) for key in keys))
    note = "The calibration error (ECE) is the mean distance between confidence and accuracy in 15 bins of confidence."
    if not any(row[-1].text for row in rows):
        return Table("Probabilities", columns, tuple(row[:-1] for row in rows), note)
    note += " The last column is the most that a perfectly calibrated model would show by chance."
    return Table("Probabilities", columns + Column.numbers("ECE by chance, up to, %"), tuple(rows), note)


def _evidence(arm: Arm, name: str, key: str) -> Any:
    return next((f.evidence[key] for f in arm.found.get(FindingKey(name), ()) if key in f.evidence), None)


def _calibration(groups: Sequence[Arm]) -> Chart | None:
    """Accuracy over confidence; of several seeds, the first's."""
    lines = []
    for arm in groups:
        points = tuple((100 * c, a) for c, a in pairs(_evidence(arm, "ece", "reliability"), "confidence", "accuracy"))
        if points:
            lines.append(Line(arm.label if len(groups) > 1 else "this model", (points,), arm.number))
    if not lines:
        return None
    low = min(x for line in lines for x, _ in line.points)
    perfect = Line("", (((low, low / 100), (100.0, 1.0)),), 7, thin=True)
    svg = line_chart(
        [perfect, *lines], id="accuracy-calibration", title="Accuracy", x_label="confidence, %", y_range=(0.0, 1.0),
        share=True, direct=len(lines) > 1,
    )  # fmt: skip
    note = (
        "On the thin line, confidence is the chance to be right. Below it, the model is too sure; above it, not enough."
    )
    return Chart("Calibration: accuracy by confidence, %", svg, note=note)


def _bins(arm: Arm, name: str) -> list[tuple[float, float, float, float]]:
    """Of each bin of confidence: its bounds, how many samples it holds, and how many of them are right."""
    values = _evidence(arm, name, "reliability")
    rows = zip(*(numbers(values, key) for key in ("low", "high", "n", "accuracy")), strict=False)
    full = [[v for v in row if v is not None] for row in rows]
    return [(row[0], row[1], row[2], row[2] * row[3]) for row in full if len(row) == 4 and row[2] > 0]


def _confidences(groups: Sequence[Arm]) -> Iterator[Chart]:
    """How sure each model is when right and when wrong: a chart of its own, on one scale; of seeds, the first's."""
    found: list[tuple[Arm, list[Line]]] = []
    for arm in groups[:MOST_MAPS]:
        bins, lines = _bins(arm, "ece"), list[Line]()
        total = sum(n for _, _, n, _ in bins)
        for word, own in (("right", [right for *_, right in bins]), ("wrong", [n - right for _, _, n, right in bins])):
            middles = [50 * (low + high) for low, high, _, _ in bins]
            points = tuple((x, count / total) for x, count in zip(middles, own, strict=True))
            lines += [Line(word, (points,), len(lines))] if len(points) > 1 else []
        found += [(arm, lines)] if lines else []
    highest = max((y for _, lines in found for line in lines for _, y in line.points), default=1.0)
    note = "Share of test images at each confidence. Wrong answers on the right are overconfident."
    for arm, lines in found:
        title = "Confidence when right and when wrong, %" + (f": {arm.label}" if len(groups) > 1 else "")
        id = f"accuracy-confidence-{arm.number}"
        chart = share_lines(title, lines, id=id, x_label="confidence, %", note=note, top=highest, direct=True)
        yield from [chart] if chart else []


def _risk_coverage(groups: Sequence[Arm]) -> Chart | None:
    """Error among the surest images, over their share; exact at the bounds of bins that hold equally many."""
    lines = []
    for arm in groups:
        taken = wrong = 0.0
        points = []
        bins = _bins(arm, "ece_adaptive")
        total = sum(n for _, _, n, _ in bins)
        for _, _, n, right in sorted(bins, reverse=True):
            taken, wrong = taken + n, wrong + n - right
            points.append((100 * taken / total, wrong / taken))
        if len(points) > 1:
            lines.append(Line(arm.label if len(groups) > 1 else "this model", (tuple(points),), arm.number))
    note = (
        "If the model answers only for the images that it is most confident about, this share of its answers is wrong. "
        "A line that starts low says that the model knows when it is unsure: those images can go to a person."
    )
    highest = max((y for line in lines for _, y in line.points), default=1.0) or 1.0
    title, x_label = "Risk and coverage: wrong answers, %", "coverage, % of the test set"
    return share_lines(title, lines, id="accuracy-risk", x_label=x_label, drawn="Error", note=note, top=highest)


def _confusions(groups: Sequence[Arm]) -> Iterator[Chart | Table]:
    """A map of each arm's confusion matrix, or its largest pairs; of several seeds, the first's."""
    for arm in groups[:MOST_MAPS]:
        given = _evidence(arm, "accuracy", "confusion")
        if not isinstance(given, Mapping):
            continue
        of = "" if len(groups) == 1 else f": {arm.label}"
        classes: Any = given.get("classes")
        matrix: Any = given.get("matrix")
        listed = records(given.get("pairs"))
        found = [(str(p.get("label")), str(p.get("prediction")), p.get("count"), p.get("of")) for p in listed]
        if isinstance(classes, list) and is_counts(matrix, len(classes), len(classes)):
            if len(classes) <= MOST_SIDE:
                yield _matrix([str(c) for c in classes], matrix, f"accuracy-confusion-{arm.number}", of)
                continue
            counted = [(i, j, n) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n > 0]
            largest = sorted(counted, key=lambda pair: -pair[2])[:PAIRS]
            found = [(str(classes[i]), str(classes[j]), n, sum(matrix[i])) for i, j, n in largest]
        rows = tuple(
            (Cell(label), Cell(other), Cell(f"{n:,}", n), Cell(percent(n / total), n / total))
            for label, other, n, total in found
            if isinstance(n, int) and isinstance(total, int) and total > 0
        )
        columns = Column.texts("class", "taken for") + Column.numbers("samples", "of the class, %")
        if rows:
            yield Table(f"Most frequent confusions{of}", columns, rows)


def _matrix(classes: Sequence[str], matrix: Sequence[Sequence[int]], id: str, of: str) -> Chart:
    def heat(label: str, other: str, n: int, total: int) -> Heat:
        if not total:
            return Heat(None, "–", f"{label}: no samples")
        return Heat(n / total, f"{100 * n / total:.0f}" if n else "", f"{label} taken for {other}: {n:,} of {total:,}")

    cells = [
        [heat(label, other, n, sum(row)) for other, n in zip(classes, row, strict=True)]
        for label, row in zip(classes, matrix, strict=True)
    ]
    title, axes = f"What is taken for what, %{of}", {"x_label": "prediction", "y_label": "class"}
    wrong = [(n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n]
    note = ""
    if wrong:  # how to read it, by its largest mistake
        n, i, j = max(wrong)
        share = f"{100 * n / sum(matrix[i]):.0f}"
        note = f"How to read it: row {classes[i]}, column {classes[j]}: {share} % of class {classes[i]} are taken for "
        note += f"{classes[j]} ({n:,} of {sum(matrix[i]):,} images)."
    return Chart(title, heat_map(classes, classes, cells, id=id, title=title, colour=0, **axes), note=note)


def _by_part(groups: Sequence[Arm], key: str) -> Chart | None:
    by_arm = [arm.parts(key) for arm in groups]
    names = list(dict.fromkeys(name for parts in by_arm for name in parts))
    rows = {name: [parts.get(name) for parts in by_arm] for name in names}
    note = ""
    if len(rows) > MOST_ROWS:
        least = {name: min([s.mean or 0.0 for s in own if s and s.values], default=2.0) for name, own in rows.items()}
        rows = {name: rows[name] for name in sorted(names, key=lambda name: least[name])[:MOST_ROWS]}
        note = f"The {MOST_ROWS} weakest of {len(names)}; all are under “All numbers”."
    return _chart(groups, f"By {key}", key, rows, note)


def _chart(
    arms: Sequence[Arm], title: str, id: str, rows: dict[str, list[Spread | None]], note: str = ""
) -> Chart | None:
    drawn = f"Accuracy, {title.lower()}"
    return share_chart(title, arms, rows, id=f"accuracy-{id}", drawn=drawn, note=note) if rows else None
