"""Every unit of a study, a job of a seed, leaves one JSON file."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from holdfast.data.anomalies import AnomalySet
from holdfast.detect.loop import Diverged
from holdfast.detect.study.bench import Bench, StudySettings
from holdfast.detect.study.jobs import JOBS
from holdfast.detect.study.records import headline
from holdfast.errors import require
from holdfast.files import write_atomic

Make = Callable[[int], AnomalySet]


def run_study(
    make: Make,
    out: str | Path,
    settings: StudySettings | None = None,
    *,
    part: tuple[int, int] = (1, 1),
    minutes: float | None = None,
    note: Callable[[str], None] | None = None,
) -> int:
    """Run every unit that has no result yet, job by job, and return how many broke.

    make: the data of a seed. part: (i, n) takes every n-th unit, so that n processes share the work. minutes: no unit
    is started after so long; run again to continue. A unit that breaks is told and left for the next time.
    """
    settings, out, say = settings or StudySettings(), Path(out), note or (lambda text: None)
    number, parts = part
    require(1 <= number <= parts, f"part must be I/N with I in 1..N, got {number}/{parts}")
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    units = [(name, seed) for name in JOBS for seed in seeds][number - 1 :: parts]
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
        made = {"torch": torch.__version__, "device": _device(settings.device), "precision": settings.precision}
        record = {"job": name, "seed": seed, "seconds": time.perf_counter() - begun, **made, **record}
        write_atomic(path, (json.dumps(record) + "\n").encode())
        say(f"{name} seed {seed}: {record['seconds']:.1f} s {headline(record)}")
    return broken


def _device(name: str) -> str:
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name
