"""``holdfast.check_data``: the function behind ``holdfast data check``. Open this to add something that is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from holdfast.data.data_check import DataScan, scan_data
from holdfast.data.load_data import with_size
from holdfast.data.splits import Dataset
from holdfast.errors import require
from holdfast.quality.label_errors import JudgedLabels, judge_labels
from holdfast.quality.quality_files import claim_check_folder, findings_of, write_check
from holdfast.settings.quality_settings import QualitySettings
from holdfast.train.progress import Progress, make_progress
from holdfast.types import Finding

SHOWN_LABELS = 10
"""Suspect labels in the text; all are in the files."""


@dataclass(frozen=True, repr=False)
class DataReport(DataScan):
    """What a set holds, as in :class:`~holdfast.data.data_check.DataScan`, and what confident learning says of labels.

    label_errors: by split; empty where they were not asked for. findings: the numbers, as findings.json has them.
    """

    label_errors: Mapping[str, JudgedLabels] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def to_text(self) -> str:
        lines = [super().to_text()]
        for split, judged in self.label_errors.items():
            held = f"held-out predictions agree with {judged.accuracy:.1%} of the labels"
            count = f"{len(judged.suspects)} of {judged.n} labels of the {split} split are probably wrong"
            lines += ["", f"{count} (estimated share {judged.noise:.1%}; {held})"]
            if (note := judged.warning(split)) is not None:
                lines.append(f"  warning: {note}")
            if judged.expected_precision is not None:
                lines.append(
                    f"  expected: {judged.expected_precision:.0%} of those listed are wrong, the others are hard"
                )
            lines += [
                f"  {s.sample.source}: {s.sample.label} ({s.probability:.0%}), rather {s.suggested} "
                f"({s.suggested_probability:.0%})"
                for s in judged.suspects[:SHOWN_LABELS]
            ]
            if len(judged.suspects) > SHOWN_LABELS:
                lines.append(f"  and {len(judged.suspects) - SHOWN_LABELS} more; --out lists all")
        return "\n".join(lines)


def check_data(data: Any, *, progress: bool | Progress | None = None, **settings: Any) -> DataReport:
    """Decode every image of a set and report what is there: classes, groups, unreadable files, duplicates, leakage.

    data: what :func:`holdfast.data.load` takes, from a name to a ``DataLoader``, or a loaded set. progress: a bar; by
    default on a terminal and in a notebook. settings: those of
    :class:`~holdfast.settings.quality_settings.QualitySettings`, the flags of ``holdfast data check``: root, names,
    label, group, columns and confine as for ``load``; near, the largest distance of near duplicates; label_errors,
    whether to train and search for wrong labels; model, pretrained, folds, epochs, image_size, seed, device of that;
    out, a folder for the page, findings and tables.

    Raises for a name or path that does not exist; whatever else is wrong is in the report.

    >>> report = check_data("digits")
    >>> report.sound, report.splits["train"]["3"], len(report.leaks)
    (True, 122, 0)
    """
    own = QualitySettings(**settings)
    place = None if own.out is None else claim_check_folder(own.out, overwrite=own.overwrite)
    shown = make_progress(progress)
    with shown:
        scan = scan_data(data, near=own.near, shown=partial(_show, shown), **own.reading())
    judged: dict[str, JudgedLabels] = {}
    if own.label_errors:
        loaded = _usable(scan, own.image_size)
        tied = [[s.position for s in d.samples if s.split == "train"] for d in scan.duplicates]
        judged = judge_labels(loaded, own, tied=[t for t in tied if len(t) > 1], progress=shown)
    found = findings_of(scan, judged, own)
    values = {f.name: getattr(scan, f.name) for f in fields(scan)}
    report = DataReport(**values, label_errors=judged, findings=found)
    if place is not None:
        write_check(scan, judged, found, place)
    return report


def _show(progress: Progress, done: int, total: int) -> None:
    if done == 1:
        progress.begin("images", 1, total, 0)
    progress.step()


def _usable(scan: DataScan, image_size: int | None) -> Dataset:
    """The readable images at one size; refuses a set that cannot be trained on."""
    problem = scan.problems[0] if scan.problems else ""
    require(not problem, f"{scan.name}: {problem}; label errors need a set that can be trained on")
    assert scan.data is not None
    return with_size(scan.data, image_size)
