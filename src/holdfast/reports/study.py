"""study.html: the VAE report's Table 1 and figures 2 to 11 beside ours, drawn from the results of a study alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.reports import study_tables as rows
from holdfast.reports.blocks import Block, Cell, Chart, Column, Gallery, Picture, Section, Side, Table
from holdfast.reports.html import _asset, _environment, _policy, _unbroken
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.sections.describe import describe
from holdfast.reports.study_tables import FAITHFUL, Record
from holdfast.reports.svg import Line, line_chart
from holdfast.types import Finding

BINS = 40
POINTS = 150
TERMS = {"loss": "−ELBO", "reconstruction": "Reconstruction", "kl": "KL"}


def write_study(records: Sequence[Record], path: str | Path, *, name: str) -> Path:
    """Write the page. The same results give the same bytes. name: of the data."""
    path = Path(path)
    write_atomic(path, render_study(records, name=name).encode("utf-8"))
    return path


def render_study(records: Sequence[Record], *, name: str) -> str:
    require(bool(records), "there are no results of a study to show; run 'holdfast detect study' first")
    seeds = sorted({r["seed"] for r in records})
    style, script = _asset("style.css"), _asset("script.js")
    sections = (_detection(records), _training(records), _map(records), _labels(records))
    return (
        _environment()
        .get_template("report.html")
        .render(
            title="Unknown inputs and few labels: the VAE report again",
            facts=[name, f"seeds {', '.join(map(str, seeds))}"],
            verdict=_unbroken(verdict(records)),
            sentences=[],
            numbers="",
            sections=[section for section in sections if section is not None],
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
        )
    )


def verdict(records: Sequence[Record]) -> str:
    """The report's own way against ours, in one sentence each."""
    parts = []
    for job, score in ((FAITHFUL, "elbo"), ("ours", "fused"), ("ours-labelled", "fused, with labels")):
        own = [r["scores"][score]["pooled"] for r in records if r["job"] == job and score in r.get("scores", {})]
        if own:
            auroc, ap = (rows.spread([c[k][0] for c in own]) for k in ("auroc", "ap"))
            parts.append(f"{job}, {score}: AUROC {auroc}, average precision {ap}.")
    heads = [r["heads"]["accuracy"] for r in records if "heads" in r]
    if heads:
        both, none = (
            rows.spread([100 * h[way] for h in heads], 1) for way in ("frozen, both mistakes", "frozen, no mistakes")
        )
        parts.append(f"Head on the frozen encoder: {both} % right with the report's mistakes, {none} % without.")
    return " ".join(parts)


def _detection(records: Sequence[Record]) -> Section | None:
    """Figures 6 to 9: histograms, ROC and precision-recall, the confusion at the threshold."""
    tables = (rows.detection(records), rows.intervals(records), rows.by_kind(records))
    blocks: list[Block] = [block for block in tables if block is not None]
    for job, score in ((FAITHFUL, "elbo"), ("ours", "fused")):
        record = next((r for r in records if r["job"] == job and score in r.get("values", {})), None)
        if record is None:
            continue
        of = f"{job}, {score}, seed {record['seed']}"
        for split in (s for s in record["values"][score] if s != "pooled"):
            values, judged = record["values"][score][split], record["scores"][score][split]
            key = f"{job}-{split}".replace(" ", "-").replace(".", "-")
            charts = (_histogram(values, key, f"{of}, {split}"), *_curves(values, key, f"{of}, {split}"))
            blocks += [Side(charts), _confusion(judged, f"{of}, {split}: at {judged['threshold']:.4g}")]
    if cut := rows.cuts(records):
        blocks.append(cut)
    lead = (
        "Anomalies against normal images, two sets a seed. Thresholds were set on held-out normal images; the last "
        "table is the report's own, set on the test sets. Figures 6 to 9 of the report."
    )
    return Section("detection", "Unknown inputs", lead, tuple(blocks)) if blocks else None


def _training(records: Sequence[Record]) -> Section | None:
    """Table 1 and figures 2 to 5."""
    table = rows.training(records)
    if table is None:
        return None
    blocks: list[Block] = [table]
    fixed = [r for r in records if r.get("history") and r.get("settings", {}).get("sigma") is not None]
    for key, title, other, value in (
        ("latent", "Latent dimensions", "lr", 1e-3),
        ("lr", "Learning rate", "latent", 16),
    ):
        own = [r for r in fixed if r["settings"][other] == value]
        blocks.append(Side(tuple(_losses(own, key, f"{title}: {name}", term) for term, name in TERMS.items())))
    first = min(r["seed"] for r in records)
    for record in records:
        if record["seed"] == first and "reconstructions" in record:
            pictures = tuple(
                Picture(f"data:image/png;base64,{png}", f"{record['job']}: {what}", "", "", wrong=False)
                for what, png in zip(("images", "reconstructions"), record["reconstructions"], strict=True)
            )
            blocks.append(Gallery(f"{record['job']}: images, and what is made of them", pictures))
    lead = "One line a seed. With σ² = 1/2 fixed, as in the report, but for where σ is learned. Figures 2 to 5."
    return Section("training", "Training", lead, tuple(blocks))


def _map(records: Sequence[Record]) -> Section | None:
    """Figure 10, at the mean of z and, as the report drew it, at a random z."""
    table = rows.maps(records)
    if table is None:
        return None
    blocks: list[Block] = [table]
    points: dict[str, Any] = next((r["map"]["points"] for r in records if "points" in r.get("map", {})), {})
    for kind in ("mean", "drawn") if points else ():
        evidence = {"points": points[kind], "labels": points["labels"], "classes": _classes(points["labels"])}
        drawn = describe([RunFiles(kind, findings=(Finding("describe", "map", None, len(points[kind]),
                                                           settings={"latent": 2}, evidence=evidence),))])  # fmt: skip
        for chart in drawn.blocks if drawn is not None else ():
            if isinstance(chart, Chart):  # two maps on one page need names of their own
                svg = Markup(str(chart.svg).replace("describe-map-0", f"map-{kind}"))
                blocks.append(Chart(f"At the {'mean' if kind == 'mean' else 'random draw'} of z", svg, chart.legend))
    return Section("map", "The map", "The labelled images in two latent dimensions. Figure 10.", tuple(blocks))


def _labels(records: Sequence[Record]) -> Section | None:
    """Figure 11, and every classifier."""
    table = rows.classifiers(records)
    if table is None:
        return None
    blocks: list[Block] = [table]
    heads: dict[str, Any] = next((r["heads"]["history"] for r in records if "history" in r.get("heads", {})), {})
    for number, (way, history) in enumerate(heads.items()):
        lines = [
            Line(name, (tuple((i + 1.0, e[key]) for i, e in enumerate(history)),), colour)
            for colour, (name, key) in enumerate((("training", "loss"), ("validation", "validation_loss")))
        ]
        blocks.append(_lines(lines, f"head-{number}", f"{way}: cross-entropy"))
    lead = (
        "With a softmax before a loss that takes logits, five classes cannot come below log(1 + 4/e) = 0.905. Figure "
        "11 of the report, with its mistakes on and off."
    )
    return Section("labels", "Few labels", lead, tuple(blocks))


def _losses(records: Sequence[Record], key: str, title: str, term: str) -> Chart:
    values = sorted({r["settings"][key] for r in records})
    lines, named = [], set()
    for r in records:
        value, curve = r["settings"][key], tuple((i + 1.0, e[term]) for i, e in enumerate(r["history"]))
        lines.append(Line(f"{value:g}", (curve,), values.index(value), thin=value in named))
        named.add(value)
    return _lines(lines, f"{key}-{term}", title)


def _lines(lines: Sequence[Line], id: str, title: str, x_label: str = "epoch", *, share: bool = False) -> Chart:
    ys = [y for line in lines for _, y in line.points]
    low, high = (0.0, 1.0) if share else (min(ys, default=0.0), max(ys, default=1.0))
    range_ = (low, high if high > low else low + 1)
    return Chart(title, line_chart(lines, id=f"study-{id}", title=title, x_label=x_label, y_range=range_, share=share))


def _histogram(values: Mapping[str, Sequence[float]], key: str, of: str) -> Chart:
    """Shares of the normal and the anomalous images over the score, which is scaled as the report did."""
    both = [v for own in values.values() for v in own]
    low, high = min(both), max(both)
    lines, top = [], 0.0
    for colour, (kind, own) in enumerate(values.items()):
        counts = [0] * BINS
        for value in own:
            counts[min(int((value - low) / ((high - low) or 1.0) * BINS), BINS - 1)] += 1
        shares = [count / len(own) for count in counts]
        top = max(top, *shares)
        lines.append(Line(kind, (tuple((float(i), s) for i, s in enumerate(shares)),), colour))
    svg = line_chart(lines, id=f"study-{key}-bins", title=of, x_label="bin", y_range=(0.0, top), share=True)
    return Chart(f"Where the scores lie ({of})", svg, note=f"{BINS} bins from {low:.4g} to {high:.4g}.")


def _curves(values: Mapping[str, Sequence[float]], key: str, of: str) -> Iterator[Chart]:
    roc, pr = ranking(values["normal"], values["anomalous"])
    for name, title, x_label, points in (
        ("roc", "ROC", "false alarms, %", roc),
        ("pr", "Precision and recall", "recall, %", pr),
    ):
        step = max(1, len(points) // POINTS)
        kept = tuple((100 * x, y) for x, y in [*points[:-1:step], points[-1]])
        yield _lines([Line("", (kept,), 0)], f"{key}-{name}", f"{title} ({of})", x_label, share=True)


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


def _confusion(judged: Mapping[str, Any], title: str) -> Table:
    c = judged["confusion"]
    found = (
        ("normal", c["true_negative"], c["false_positive"]),
        ("anomalies", c["false_negative"], c["true_positive"]),
    )
    cells = tuple((Cell(name), *(Cell(str(n), n) for n in counts)) for name, *counts in found)
    return Table(title, (Column("truth"), Column("passed", numeric=True), Column("flagged", numeric=True)), cells)


def _classes(labels: Sequence[int]) -> list[str]:
    return [str(i) for i in range(max(labels) + 1)]
