"""The study as a whole: its jobs by name, running them, their results, and the tables and page made of those.

Every unit, a job with one seed, leaves one JSON file. A unit whose file is there is not run again: a study can be
stopped and continued, and several processes can share its folder.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from holdfast.data.anomalies import AnomalySet, read_anomalies
from holdfast.data.making import make_fashion_anomalies
from holdfast.errors import HoldfastError, require
from holdfast.files import write_atomic
from holdfast.train.step_parts import Diverged
from vae_report.bench import Bench, StudySettings
from vae_report.digits_anomalies import make_digits_anomalies
from vae_report.judging import DRAWN, Record
from vae_report.our_jobs import LOCAL, few_labels_job, labelled_job, our_job
from vae_report.page import write_page
from vae_report.report_jobs import report_job
from vae_report.tables import markdown

Job = Callable[[Bench], Record]

JOBS: dict[str, Job] = {
    "report-latent16-lr0.001": partial(report_job, latent=16, lr=1e-3, heads=True),
    "ours": our_job,
    "labels-fixmatch": partial(few_labels_job, way="fixmatch"),
    "ours-changes": partial(our_job, changes=True),
    "ours-local": partial(our_job, changes=True, members=LOCAL),
    "labels-fixmatch-started": partial(few_labels_job, way="fixmatch", started=True),
    **{f"report-latent{n}-lr0.001": partial(report_job, latent=n, lr=1e-3) for n in (2, 32)},
    **{f"report-all-latent{n}": partial(report_job, latent=n, lr=1e-3, everything=True) for n in (16, 2, 32)},
    "report-learned-sigma": partial(report_job, latent=16, lr=1e-3, learned=True),
    **{f"report-latent16-lr{rate:g}": partial(report_job, latent=16, lr=rate) for rate in (1e-2, 5e-4, 1e-4, 1e-5)},
    **{
        f"report-latent16-sgd-lr{rate:g}": partial(report_job, latent=16, lr=rate, optimizer="sgd")
        for rate in (1e-3, 1e-4, 3e-5, 1e-5)
    },
    "labels-rotation": partial(few_labels_job, way="rotation"),
    "labels-supervised": partial(few_labels_job, way="supervised"),
    "ours-labelled": labelled_job,
}
"""What is done with every seed; what the conclusions rest on comes first."""

FASHION = "fashion-anomalies"
"""The set of the report."""

Make = Callable[[int], AnomalySet]


def run_study(
    make: Make,
    out: str | Path,
    settings: StudySettings | None = None,
    *,
    data_name: str = FASHION,
    jobs: Sequence[str] = (),
    part: tuple[int, int] = (1, 1),
    minutes: float | None = None,
    note: Callable[[str], None] | None = None,
) -> int:
    """Run every unit that has no result yet, job by job, and return how many broke.

    make: the data of a seed. data_name: what the results say of it. jobs: by name; none means all. part: (i, n) takes
    every n-th unit, so that n processes share the work. minutes: no unit is started after so long; run again to
    continue. A unit that fails is reported and left for the next time.
    """
    settings, out, say = settings or StudySettings(), Path(out), note or (lambda text: None)
    number, parts = part
    require(1 <= number <= parts, f"part must be I/N with I in 1..N, got {number}/{parts}")
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    for name in jobs:
        require(name in JOBS, f"there is no job {name!r}; the jobs are {', '.join(JOBS)}")
    units = [(name, seed) for name in JOBS if name in (jobs or JOBS) for seed in seeds][number - 1 :: parts]
    data = lru_cache(maxsize=None)(make)
    started, broken = time.perf_counter(), 0
    for name, seed in units:
        path = out / f"{name}-seed{seed}.json"
        if path.exists():
            continue
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            say("out of time: run the same command again to continue")
            break
        begun = time.perf_counter()
        try:
            record = JOBS[name](Bench(data(seed), seed, settings, out / "models" / f"seed{seed}"))
        except Diverged as error:  # a rate that diverges is a result too
            record = {"error": str(error)}
        except Exception:
            broken += 1
            say(f"{name} seed {seed} broke:\n{traceback.format_exc()}")
            continue
        made = {"data": data_name, "torch": torch.__version__, "device": _device(settings.device)}
        made |= {"precision": settings.precision}
        record = {"job": name, "seed": seed, "seconds": time.perf_counter() - begun, **made, **record}
        write_atomic(path, (json.dumps(record) + "\n").encode())
        say(f"{name} seed {seed}: {record['seconds']:.1f} s {headline(record)}")
    return broken


def _device(name: str) -> str:
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name


def run_on(
    data: str,
    out: str | Path,
    settings: StudySettings,
    *,
    root: str | Path | None = None,
    jobs: Sequence[str] = (),
    part: tuple[int, int] = (1, 1),
    minutes: float | None = None,
    note: Callable[[str], None] | None = None,
) -> int:
    """Run the units that have no result yet; how many of them broke. See :func:`run_study`.

    data: ``fashion-anomalies`` or ``digits``, made anew for every seed; or a file with such a set, the same for all.
    """
    made = None if data in (FASHION, "digits") else read_anomalies(data)

    def make(seed: int) -> AnomalySet:
        if made is not None:
            return made
        return make_digits_anomalies(seed=seed) if data == "digits" else make_fashion_anomalies(root=root, seed=seed)

    name = data if made is None else Path(data).stem
    return run_study(make, out, settings, data_name=name, jobs=jobs, part=part, minutes=minutes, note=note)


def collect(out: str | Path, *, name: str) -> str:
    """study.md and study.html of all results in a folder; nothing is trained. Returns the tables."""
    out = Path(out)
    records = read_study(out)
    require(bool(records), f"{out} holds no results of a study; run it first")
    text = markdown(records)
    write_atomic(out / "study.md", text.encode())
    write_page(records, out / "study.html", name=name)
    return text


BULKY = ("values", "reconstructions", "history", "points")
"""What a page draws and no table needs."""


def read_study(folder: str | Path) -> list[Record]:
    """All results of a folder, in the order of the jobs."""
    return in_order(json.loads(path.read_bytes()) for path in sorted(Path(folder).glob("*-seed*.json")))


def kept(old: Sequence[Record], new: Iterable[Record], *, made: dict[str, str]) -> list[Record]:
    """What was recorded, as it is, and the results that are not among it, with what made them.

    >>> old, new = [{"job": "ours", "seed": 10, "seconds": 1}], [{"job": "ours", "seed": seed} for seed in (10, 11)]
    >>> kept(old, new, made={"commit": "abc"})
    [{'job': 'ours', 'seed': 10, 'seconds': 1}, {'job': 'ours', 'seed': 11, 'commit': 'abc'}]
    """
    known, sets = {(r["job"], r["seed"]) for r in old}, {r.get("data", FASHION) for r in old}
    more = [slim(r) | made for r in new if (r["job"], r["seed"]) not in known]
    for name in {r.get("data", FASHION) for r in more if sets} - sets:
        raise HoldfastError(
            f"these results are of {name}, those recorded of {', '.join(sorted(sets))}; give another --keep"
        )
    return in_order([*old, *more])


def in_order(records: Iterable[Record]) -> list[Record]:
    order = list(JOBS)
    return sorted(records, key=lambda r: order.index(r["job"]) if r["job"] in order else len(order))


def slim(record: Record) -> Record:
    """The record without images and single values: what every table is made of.

    Of a history its last epoch stays, of each set's own scores AUROC and average precision.

    >>> slim({"seed": 1, "history": [{"loss": 2.0}, {"loss": 1.5}], "values": {"elbo": [1, 2]}, "map": {"points": []}})
    {'seed': 1, 'map': {}, 'history': [{'loss': 1.5}]}
    """
    made: Record = _slim(record)
    if "history" in record:
        made["history"] = record["history"][-1:]
    for sets in made.get("scores", {}).values():
        sets.update({name: {k: own[k] for k in ("auroc", "ap")} for name, own in sets.items() if name != "pooled"})
    return made


def _slim(value: Any) -> Any:
    return {k: _slim(v) for k, v in value.items() if k not in BULKY} if isinstance(value, dict) else value


def headline(record: Record) -> str:
    """The figure that matters of a job, for a log."""
    if "error" in record:
        return str(record["error"])
    parts = []
    for name in DRAWN:
        if name in record.get("scores", {}):
            pooled = record["scores"][name]["pooled"]
            parts.append(f"{name} AUROC {pooled['auroc'][0]:.3f} AP {pooled['ap'][0]:.3f}")
    for source in (record, record.get("heads", {})):
        parts += [f"{way} {value:.4f}" for way, value in source.get("accuracy", {}).items()]
    return ", ".join(parts)
