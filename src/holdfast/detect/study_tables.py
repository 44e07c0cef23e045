"""The results of a study as Markdown tables: mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

Record = dict[str, Any]
Rows = Iterator[tuple[str, ...]]
FAITHFUL = "report-latent16-lr0.001"
FIGURES = ("auroc", "ap", "fpr95", "precision", "recall", "false_alarm_rate")


def tables(records: list[Record]) -> str:
    """Every table of the study, and what failed."""
    parts = [
        table("Detection, both test sets pooled", ("job", "score", *FIGURES, "seeds"), detection(records)),
        table("AUROC by kind of anomaly, pooled", ("job", "score", *kinds(records)), by_kind(records)),
        table(
            "Training at its end (the report's Table 1)",
            ("job", "loss", "reconstruction", "KL", "σ", "seconds", "seeds"),
            training(records),
        ),
        table(
            "Scores scaled over the test set itself and cut at 0.3, as the report did",
            ("seed", "set", "anomalies found", "normal passed"),
            cuts(records),
        ),
        table(
            "Classes from few labels, on the normal images of set 2",
            ("classifier", "accuracy", "loss", "seeds"),
            classifiers(records),
        ),
        table("The map: classes in latent space", ("job", "z", "silhouette", "linear", "k-NN"), maps(records)),
    ]
    failed = [f"- {r['job']} seed {r['seed']}: {r['error']}" for r in records if "error" in r]
    return "\n\n".join([*(part for part in parts if part), *(["\n".join(failed)] if failed else [])]) + "\n"


def table(title: str, columns: tuple[str, ...], rows: Rows) -> str:
    """A Markdown table under its title; empty without rows."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    head = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*head, *lines]) if lines else ""


def spread(values: list[float], digits: int = 3) -> str:
    """Mean ± sample standard deviation.

    >>> spread([0.9, 0.92]), spread([0.5])
    ('0.910 ± 0.014', '0.500')
    """
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {stdev(values):.{digits}f}"


def detection(records: list[Record]) -> Rows:
    for job, own in _by_job(records, "scores"):
        for score in own[0]["scores"]:
            cells = [r["scores"][score]["pooled"] for r in own]
            yield job, score, *(spread([c[k][0] for c in cells]) for k in FIGURES), str(len(own))


def kinds(records: list[Record]) -> tuple[str, ...]:
    found = (k for r in records for s in r.get("scores", {}).values() for k in s["pooled"]["auroc by kind"])
    return tuple(dict.fromkeys(found))


def by_kind(records: list[Record]) -> Rows:
    names = kinds(records)
    for job, own in _by_job(records, "scores"):
        for score in own[0]["scores"] if job in (FAITHFUL, "ours", "ours-labelled") else ():
            cells = [r["scores"][score]["pooled"]["auroc by kind"] for r in own]
            yield job, score, *(spread([c[k] for c in cells]) for k in names)


def training(records: list[Record]) -> Rows:
    for job, own in _by_job(records, "history"):
        last = [[r["history"][-1][k] for r in own] for k in ("loss", "reconstruction", "kl")]
        rest = [[r[k] for r in own] for k in ("sigma", "train_seconds")]
        yield job, *(spread(values) for values in (*last, *rest)), str(len(own))


def cuts(records: list[Record]) -> Rows:
    for r in records:
        for split, cut in r.get("report_cut", {}).items() if r["job"] == FAITHFUL else ():
            found = f"{cut['anomalies found']} of {cut['anomalies']}"
            yield str(r["seed"]), split, found, f"{cut['normal passed']} of {cut['normal']}"


def classifiers(records: list[Record]) -> Rows:
    found: dict[str, list[Record]] = {}
    for record in (*(r["heads"] for r in records if "heads" in r), *(r for r in records if "accuracy" in r)):
        for way in record["accuracy"]:
            found.setdefault(way, []).append(record)
    for way, own in found.items():
        yield way, *(spread([r[k][way] for r in own], 4) for k in ("accuracy", "loss")), str(len(own))


def maps(records: list[Record]) -> Rows:
    for job, own in _by_job(records, "map"):
        for z in ("mean", "drawn"):
            yield job, z, *(spread([r["map"][z][k] for r in own]) for k in ("silhouette", "linear", "knn"))


def _by_job(records: list[Record], key: str) -> Iterator[tuple[str, list[Record]]]:
    for job in dict.fromkeys(r["job"] for r in records):
        own = [r for r in records if r["job"] == job and r.get(key)]
        if own:
            yield job, own
