"""The results of a VAE study as tables: mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.markdown import table as in_pipes

Record = dict[str, Any]
Rows = Iterator[tuple[str, ...]]
FAITHFUL = "report-latent16-lr0.001"
"""The job that repeats the report's own choice."""
FIGURES = ("auroc", "ap", "fpr95", "precision", "recall", "false_alarm_rate")


def markdown(records: Sequence[Record]) -> str:
    """Every table under its title, and what failed."""
    parts = ["\n".join([f"## {block.caption}", "", *in_pipes(block)]) for block in all_tables(records)]
    failed = [f"- {r['job']} seed {r['seed']}: {r['error']}" for r in records if "error" in r]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])]) + "\n"


def all_tables(records: Sequence[Record]) -> list[Table]:
    made = (detection(records), by_kind(records), training(records), cuts(records), classifiers(records), maps(records))
    return [block for block in made if block is not None]


def detection(records: Sequence[Record]) -> Table | None:
    def rows() -> Rows:
        for job, own in _by_job(records, "scores"):
            for score in own[0]["scores"]:
                cells = [r["scores"][score]["pooled"] for r in own]
                yield job, score, *(spread([c[k][0] for c in cells]) for k in FIGURES), str(len(own))

    return _table("Detection, both test sets pooled", ("job", "score", *FIGURES, "seeds"), rows())


def by_kind(records: Sequence[Record]) -> Table | None:
    found = (k for r in records for s in r.get("scores", {}).values() for k in s["pooled"]["auroc by kind"])
    names = tuple(dict.fromkeys(found))

    def rows() -> Rows:
        for job, own in _by_job(records, "scores"):
            for score in own[0]["scores"] if job == FAITHFUL or job.startswith("ours") else ():
                cells = [r["scores"][score]["pooled"]["auroc by kind"] for r in own]
                yield job, score, *(spread([c[k] for c in cells]) for k in names)

    return _table("AUROC by kind of anomaly, pooled", ("job", "score", *names), rows())


def training(records: Sequence[Record]) -> Table | None:
    def rows() -> Rows:
        for job, own in _by_job(records, "history"):
            last = [[r["history"][-1][k] for r in own] for k in ("loss", "reconstruction", "kl")]
            rest = [[r[k] for r in own] for k in ("sigma", "train_seconds")]
            yield job, *(spread(values) for values in (*last, *rest)), str(len(own))

    columns = ("job", "loss", "reconstruction", "KL", "σ", "seconds", "seeds")
    return _table("Training at its end (the report's Table 1)", columns, rows())


def cuts(records: Sequence[Record]) -> Table | None:
    def rows() -> Rows:
        for r in records:
            for split, cut in r.get("report_cut", {}).items() if r["job"] == FAITHFUL else ():
                found = f"{cut['anomalies found']} of {cut['anomalies']}"
                yield str(r["seed"]), split, found, f"{cut['normal passed']} of {cut['normal']}"

    title = "Scores scaled over the test set itself and cut at 0.3, as the report did"
    return _table(title, ("seed", "set", "anomalies found", "normal passed"), rows())


def classifiers(records: Sequence[Record]) -> Table | None:
    found: dict[str, list[Record]] = {}
    for record in (*(r["heads"] for r in records if "heads" in r), *(r for r in records if "accuracy" in r)):
        for way in record["accuracy"]:
            found.setdefault(way, []).append(record)
    rows = (
        (way, *(spread([r[k][way] for r in own], 4) for k in ("accuracy", "loss")), str(len(own)))
        for way, own in found.items()
    )
    return _table(
        "Classes from few labels, on the normal images of set 2", ("classifier", "accuracy", "loss", "seeds"), rows
    )


def maps(records: Sequence[Record]) -> Table | None:
    def rows() -> Rows:
        for job, own in _by_job(records, "map"):
            for z in ("mean", "drawn"):
                yield job, z, *(spread([r["map"][z][k] for r in own]) for k in ("silhouette", "linear", "knn"))

    return _table("The map: classes in latent space", ("job", "z", "silhouette", "linear", "k-NN"), rows())


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± sample standard deviation.

    >>> spread([0.9, 0.92]), spread([0.5])
    ('0.910 ± 0.014', '0.500')
    """
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {stdev(values):.{digits}f}"


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table | None:
    """None without rows. A number sorts by its mean."""
    cells = tuple(tuple(Cell(text, _leading(text)) for text in row) for row in rows)
    numeric = [all(row[i].value is not None for row in cells) for i in range(len(columns))]
    return Table(title, tuple(map(Column, columns, numeric)), cells) if cells else None


def _leading(text: str) -> float | None:
    try:
        return float(text.split(" ")[0])
    except ValueError:
        return None


def _by_job(records: Sequence[Record], key: str) -> Iterator[tuple[str, list[Record]]]:
    for job in dict.fromkeys(r["job"] for r in records):
        own = [r for r in records if r["job"] == job and r.get(key)]
        if own:
            yield job, own
