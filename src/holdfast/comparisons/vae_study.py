"""The VAE study as one command: every unit, then its tables and its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.data.anomalies import AnomalySet, read_anomalies
from holdfast.data.anomaly_making import make_digits_anomalies, make_fashion_anomalies
from holdfast.detect.study import QUICK, StudySettings, read_study, run_study
from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.reports.study import write_study
from holdfast.reports.study_tables import markdown

__all__ = ["QUICK", "StudySettings", "collect", "study"]


def study(
    data: str,
    out: str | Path,
    settings: StudySettings,
    *,
    root: str | Path | None = None,
    part: tuple[int, int] = (1, 1),
    minutes: float | None = None,
    note: Callable[[str], None] | None = None,
) -> int:
    """Run the units that have no result yet; how many of them broke. See ``holdfast.detect.study.run_study``.

    data: ``fashion-anomalies`` or ``digits``, made anew for every seed; or a file with such a set, the same for all.
    """
    made = None if data in ("fashion-anomalies", "digits") else read_anomalies(data)

    def make(seed: int) -> AnomalySet:
        if made is not None:
            return made
        return make_digits_anomalies(seed=seed) if data == "digits" else make_fashion_anomalies(root=root, seed=seed)

    return run_study(make, out, settings, part=part, minutes=minutes, note=note)


def collect(out: str | Path, *, name: str) -> str:
    """study.md and study.html of all results in a folder; nothing is trained. Returns the tables."""
    out = Path(out)
    records = read_study(out)
    require(bool(records), f"{out} holds no results of a study; run it first")
    text = markdown(records)
    write_atomic(out / "study.md", text.encode())
    write_study(records, out / "study.html", name=name)
    return text
