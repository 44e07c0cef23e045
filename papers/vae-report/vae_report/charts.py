"""The curves of a VAE study: losses over epochs, scores by kind, ROC, precision and recall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles

from holdfast.reports.blocks import Chart
from holdfast.reports.svg.lines import Line, line_chart
from vae_report.tables import Record

BINS = 40
REPORT_CUT = 0.3
"""Where the report cut scores that it had scaled to the range of the test set itself."""
POINTS = 150


def losses(records: Sequence[Record], key: str, of: str, term: str, name: str) -> Chart:
    """One term of the loss, ``name``d for people, over the epochs, a colour for each value of ``key``. of: which."""
    values = sorted({r["settings"][key] for r in records})
    lines, named = [], set()
    for r in records:
        value, curve = r["settings"][key], tuple((i + 1.0, e[term]) for i, e in enumerate(r["history"]))
        lines.append(Line(f"{value:g}", (curve,), values.index(value), thin=value in named))
        named.add(value)
    return panel(lines, f"{of.lower().replace(' ', '-')}-{term}", f"{of}: {name}")


def panel(lines: Sequence[Line], id: str, title: str, x_label: str = "epoch", *, share: bool = False) -> Chart:
    ys = [y for line in lines for _, y in line.points]
    low, high = (0.0, 1.0) if share else (min(ys, default=0.0), top(lines))
    range_ = (low, high if high > low else low + 1)
    cut = [Line(own.label, tuple(_below(s, high) for s in own.segments), own.colour, own.thin) for own in lines]
    drawn = line_chart(cut, id=f"study-{id}", title=title, x_label=x_label, y_range=range_, share=share)
    return Chart(title, drawn, note=f"Cut off above {high:.4g}." if max(ys, default=0.0) > high else "")


def top(lines: Sequence[Line]) -> float:
    """The height a chart needs: a curve that starts ten times as far above the lowest point as others is cut off.

    >>> top([Line("a", (((1, 9.0), (2, 1.0)),), 0), Line("b", (((1, 8.0),),), 1), Line("c", (((1, 1e6), (2, 2)),), 2)])
    9.0
    """
    ys = [y for line in lines for _, y in line.points]
    starts = [line.points[0][1] for line in lines if line.points]
    if not ys:
        return 1.0
    low = min(ys)
    limit = low + 10 * (median(starts) - low)
    return max((y for y in ys if y <= limit), default=max(ys))


def _below(points: Sequence[tuple[float, float]], high: float) -> tuple[tuple[float, float], ...]:
    return tuple((x, min(y, high)) for x, y in points)


def histogram(values: Mapping[str, Sequence[float]], key: str, of: str, threshold: float) -> Chart:
    """Shares of the normal and the anomalous images over the score.

    A few scores far out would squeeze all others into one bin: what lies above nine tenths of the anomalies and nearly
    all normal images is counted in the last bin.
    """
    both = [v for own in values.values() for v in own]
    low, end = min(both), max(both)
    high = max(threshold, quantiles(values["normal"], n=200)[-1], quantiles(values["anomalous"], n=10)[-1])
    high = min(high, end) if high > low else end
    width = (high - low) / BINS or 1.0
    lines, most = [], 0.0
    for colour, (kind, own) in enumerate(values.items()):
        counts = [0] * BINS
        for value in own:
            counts[min(int((value - low) / width), BINS - 1)] += 1
        points = tuple((low + (i + 0.5) * width, count / len(own)) for i, count in enumerate(counts))
        most = max(most, *(share for _, share in points))
        lines.append(Line(kind, (points,), colour))
    drawn = line_chart(
        lines, id=f"study-{key}-bins", title=of, x_label="score", y_range=(0.0, most), share=True, whole=False
    )
    beyond = f", the last with all up to {end:.4g}" if high < end else ""
    note = (
        f"{BINS} bins{beyond}. Threshold from held-out images: {threshold:.4g}; the report's cut at {REPORT_CUT} of "
        f"the range of this set: {low + REPORT_CUT * (end - low):.4g}."
    )
    return Chart(f"Where the scores lie ({of})", drawn, note=note)


def curves(values: Mapping[str, Sequence[float]], key: str, of: str) -> Iterator[Chart]:
    roc, pr = ranking(values["normal"], values["anomalous"])
    for name, title, x_label, points in (
        ("roc", "ROC", "false alarms, %", roc),
        ("pr", "Precision and recall", "recall, %", pr),
    ):
        step = max(1, len(points) // POINTS)
        kept = tuple((100 * x, y) for x, y in [*points[:-1:step], points[-1]])
        yield panel([Line("", (kept,), 0)], f"{key}-{name}", f"{title} ({of})", x_label, share=True)


def ranking(
    normal: Sequence[float], anomalous: Sequence[float]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(false alarms, recall) and (recall, precision) at every threshold, from the highest score down.

    >>> ranking([0.1, 0.4], [0.4, 0.9])
    ([(0.0, 0.0), (0.0, 0.5), (0.5, 1.0), (1.0, 1.0)], [(0.5, 1.0), (1.0, 0.6666666666666666), (1.0, 0.5)])
    """
    marked = sorted([(v, 0) for v in normal] + [(v, 1) for v in anomalous], reverse=True)
    roc, pr, hits, alarms = [(0.0, 0.0)], [], 0, 0
    for i, (value, hit) in enumerate(marked):
        hits, alarms = hits + hit, alarms + 1 - hit
        if i + 1 == len(marked) or marked[i + 1][0] != value:  # a threshold cannot part equal scores
            roc.append((alarms / len(normal), hits / len(anomalous)))
            pr.append((hits / len(anomalous), hits / (hits + alarms)))
    return roc, pr
