"""study.html: the VAE report's Table 1 and figures 2 to 11 beside ours, drawn from the results of a study alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.reports.blocks import Block, Cell, Chart, Column, Details, Gallery, Picture, Section, Side, Table
from holdfast.reports.headline import Top
from holdfast.reports.html import render_sections, unbroken
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections.describe import describe
from holdfast.reports.svg.lines import Line
from holdfast.types import Finding
from vae_report import tables as rows
from vae_report.charts import curves, histogram, losses, panel
from vae_report.tables import FAITHFUL, Record

TERMS = {"loss": "−ELBO", "reconstruction": "Reconstruction", "kl": "KL"}


def write_page(records: Sequence[Record], path: str | Path, *, name: str) -> Path:
    """Write the page. The same results give the same bytes. name: of the data."""
    path = Path(path)
    write_atomic(path, render_study_page(records, name=name).encode("utf-8"))
    return path


def render_study_page(records: Sequence[Record], *, name: str) -> str:
    require(bool(records), "there are no results of a study to show; run 'python papers/vae-report/run.py' first")
    seeds = sorted({r["seed"] for r in records})
    sections = (_detection(records), _training(records), _map(records), _labels(records))
    return render_sections(
        title="Out-of-distribution inputs and few labels: the VAE report again",
        facts=[name, f"seeds {', '.join(map(str, seeds))}"],
        top=Top(unbroken(verdict(records)), [(name, unbroken(text)) for name, text in sentences(records)]),
        sections=[section for section in sections if section is not None],
    )


def verdict(records: Sequence[Record]) -> str:
    """The report's own way against ours."""
    parts = []
    for who, job, score in (("the report's way", FAITHFUL, "elbo"), ("ours", "ours", "fused")):
        own = [r["scores"][score]["pooled"] for r in records if r["job"] == job and score in r.get("scores", {})]
        if own:
            parts.append(f"{rows.spread([c['auroc'][0] for c in own])} {who}")
    return f"AUROC {', '.join(parts)}" if parts else f"{len(records)} results of a study"


def sentences(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """The score each job is judged by, the report's head with its mistakes on and off, and what failed."""
    for job, score in rows.MAIN.items():
        own = [r["scores"][score]["pooled"] for r in records if r["job"] == job and score in r.get("scores", {})]
        if own:
            auroc, ap = (rows.spread([c[k][0] for c in own]) for k in ("auroc", "ap"))
            yield f"{job}, {score}", f"AUROC {auroc}, average precision {ap}."
    heads = [r["heads"]["accuracy"] for r in records if "heads" in r]
    if heads:
        both, none = (
            rows.spread([100 * h[way] for h in heads], 1) for way in ("frozen, all mistakes", "frozen, no mistakes")
        )
        yield "head on the frozen encoder", f"{both} % right with the report's mistakes, {none} % without."
    for record in records:
        if "error" in record:
            yield f"{record['job']}, seed {record['seed']}", str(record["error"])


def _detection(records: Sequence[Record]) -> Section | None:
    """Figures 6 to 9: histograms, ROC and precision-recall, the confusion at the threshold."""
    blocks: list[Block] = [b for b in (rows.intervals(records), rows.by_set(records)) if b is not None]
    if every := tuple(b for b in (rows.detection(records), rows.by_kind(records)) if b is not None):
        blocks.append(Details("Every score of every job, and by kind of anomaly", every))
    for job, score in ((FAITHFUL, "elbo"), ("ours", "fused")):
        record = next((r for r in records if r["job"] == job and score in r.get("values", {})), None)
        if record is None:
            continue
        of = f"{job}, {score}, seed {record['seed']}"
        for split in (s for s in record["values"][score] if s != "pooled"):
            values, judged = record["values"][score][split], record["scores"][score][split]
            key = f"{job}-{split}".replace(" ", "-").replace(".", "-")
            drawn = histogram(values, key, f"{of}, {split}", judged["threshold"])
            confusion = _confusion(judged, f"{of}, {split}: at {judged['threshold']:.4g}")
            blocks.append(Side((drawn, confusion, *curves(values, key, f"{of}, {split}"))))
    if cut := rows.cuts(records):
        blocks.append(cut)
    lead = (
        "Anomalies against normal images, two sets per seed. Thresholds were set on held-out normal images; the last "
        "table is the report's own, set on the test sets. Figures 6 to 9 of the report, which found AUROC 0.92 and "
        "average precision 0.59 on its first set, 0.93 and 0.65 on its second; 23 and 18 of 52 anomalies were flagged, "
        "995 and 999 of 1,000 normal images passed."
    )
    return Section("detection", "Out-of-distribution inputs", lead, tuple(blocks)) if blocks else None


def _training(records: Sequence[Record]) -> Section | None:
    """Table 1 and figures 2 to 5."""
    table = rows.training(records)
    if table is None:
        return None
    blocks: list[Block] = [table]
    fixed = [r for r in records if r.get("history") and r.get("settings", {}).get("sigma") is not None]
    for key, of, like in (
        ("latent", "Latent dimensions", {"lr": 1e-3, "optimizer": "adam"}),
        ("lr", "Learning rate", {"latent": 16, "optimizer": "adam"}),
        ("lr", "Learning rate of SGD", {"latent": 16, "optimizer": "sgd"}),
    ):
        if own := [r for r in fixed if like.items() <= {"optimizer": "adam", **r["settings"]}.items()]:
            blocks.append(Side(tuple(losses(own, key, of, term, name) for term, name in TERMS.items())))
    first = min(r["seed"] for r in records)
    for record in records:
        if record["seed"] == first and "reconstructions" in record:
            pictures = tuple(
                Picture(f"data:image/png;base64,{png}", f"{record['job']}: {what}", "", "", wrong=False)
                for what, png in zip(("images", "reconstructions"), record["reconstructions"], strict=True)
            )
            blocks.append(Gallery(f"{record['job']}: images, and what is made of them", pictures, wide=True))
    lead = (
        "One line per seed. With σ² = 1/2 fixed, as in the report, but for where σ is learned. Table 1 and figures 2 "
        "to 5 of the report. Its ELBO loss is the squared error and KL together, without the constant of the density: "
        "24.50 = 19.39 + 5.11 with 2 latent dimensions, 21.86 = 13.77 + 8.08 with 16, 22.05 = 14.12 + 7.92 with 32."
    )
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
    return Section(
        "map",
        "The map",
        "The labelled images in two latent dimensions. Figure 10, which the report drew at a random z.",
        tuple(blocks),
    )


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
        blocks.append(panel(lines, f"head-{number}", f"{way}: cross-entropy"))
    lead = (
        "With a softmax before a loss that takes logits, five classes cannot come below log(1 + 4/e) = 0.905. Figure "
        "11 of the report, with its mistakes on and off; it found accuracy 0.81 at a test loss of 1.0983, and a least "
        "validation loss of 1.0602."
    )
    return Section("labels", "Few labels", lead, tuple(blocks))


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
