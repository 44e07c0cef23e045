"""The results of a VAE study as tables: mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.renderings import markdown_table

Record = dict[str, Any]
Rows = Iterator[tuple[str, ...]]
FAITHFUL = "report-latent16-lr0.001"
"""The job that repeats the report's own choice."""
MAIN = {
    FAITHFUL: "elbo", "ours": "fused", "ours-changes": "fused", "ours-local": "fused, local",
    "ours-labelled": "fused, with labels",
}  # fmt: skip
"""The score that a job is judged by."""
NONE = "-"
FIGURES = ("auroc", "ap", "fpr95", "precision", "recall", "false_alarm_rate")


def markdown(records: Sequence[Record]) -> str:
    """Every table under its title, and what failed."""
    parts = ["\n".join([f"## {block.caption}", "", *markdown_table(block)]) for block in all_tables(records)]
    failed = [f"- {r['job']} seed {r['seed']}: {r['error']}" for r in records if "error" in r]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])]) + "\n"


def all_tables(records: Sequence[Record]) -> list[Table]:
    tables = (detection, intervals, by_set, by_kind, training, cuts, classifiers, maps)
    return [block for table in tables if (block := table(records)) is not None]


def detection(records: Sequence[Record]) -> Table | None:
    def rows() -> Rows:
        for job, own in _by_job(records, "scores"):
            for score in own[0]["scores"]:
                cells = [r["scores"][score]["pooled"] for r in own]
                yield job, score, *(spread([c[k][0] for c in cells]) for k in FIGURES), str(len(own))

    return _table("Detection, both test sets pooled", ("job", "score", *FIGURES, "seeds"), rows())


def intervals(records: Sequence[Record]) -> Table | None:
    """What the conclusions rest on, seed by seed."""

    def rows() -> Rows:
        for r in records:
            score = MAIN.get(r["job"], "")
            if score in r.get("scores", {}):
                cell = r["scores"][score]["pooled"]
                texts = (f"{v:.3f} [{low:.3f}, {high:.3f}]" for v, low, high in (cell[k] for k in ("auroc", "ap")))
                yield r["job"], score, str(r["seed"]), *texts

    return _table("Each seed, pooled, with 95 % bootstrap intervals", ("job", "score", "seed", "auroc", "ap"), rows())


def by_set(records: Sequence[Record]) -> Table | None:
    """As the report gives them: each test set on its own."""

    def rows() -> Rows:
        for job, own in _by_job(records, "scores"):
            score = MAIN.get(job, "elbo")
            for split in own[0]["scores"].get(score, {}) if job in MAIN else ():
                cells = [r["scores"][score][split] for r in own]
                if split != "pooled":
                    yield job, score, split, *(spread([c[k][0] for c in cells]) for k in ("auroc", "ap"))

    return _table("Each test set on its own", ("job", "score", "set", "auroc", "ap"), rows())


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
            last = [[r["history"][-1][k] for r in own] for k in ("kl", "loss")]
            rest = [[r[k] for r in own if k in r] for k in ("held_out", "sigma", "train_seconds")]
            squares = [s for r in own if (s := squared_error(r)) is not None]
            sums = [s + r["history"][-1]["kl"] for r in own if (s := squared_error(r)) is not None]
            yield job, *(spread(values) if values else NONE for values in (sums, squares, *last, *rest)), str(len(own))

    columns = ("job", "squared error + KL", "squared error", "KL", "−ELBO", "−ELBO, held out", "σ", "seconds", "seeds")
    return _table("Training at its end (the report's Table 1)", columns, rows())


def squared_error(record: Record) -> float | None:
    """Of an image, in the last epoch: the reconstruction term of the report's Table 1, which leaves the constant out.

    None where σ was learned: it moved within the epoch.
    """
    settings = record["settings"]
    if settings["sigma"] is None:
        return None
    constant = math.prod(settings["shape"]) * (math.log(settings["sigma"]) + 0.5 * math.log(2 * math.pi))
    return float(2 * settings["sigma"] ** 2 * (record["history"][-1]["reconstruction"] - constant))


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
    """None without rows. A number sorts by its mean; NONE among numbers stands where they stand."""
    cells = tuple(tuple(Cell(text, _leading(text)) for text in row) for row in rows)
    numeric = [all(row[i].value is not None or row[i].text == NONE for row in cells) for i in range(len(columns))]
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
