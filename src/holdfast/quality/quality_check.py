"""``holdfast.check_data``, the function behind ``holdfast data check``, and what it leaves with ``--out``: findings,
tables of everything that was found, and a page of pictures. Open this to add something that is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.data.data_check import DataSample, DataScan, DuplicateSamples, scan_data
from holdfast.data.images import THUMBNAIL, decode, png
from holdfast.data.item_split import ItemSplit
from holdfast.data.load_data import with_size
from holdfast.data.result_folders import refuse_foreign
from holdfast.data.splits import Dataset, FileSplit
from holdfast.data.tables import growing_table
from holdfast.data.usable_data import UNREADABLE_CSV, write_unreadable
from holdfast.errors import require
from holdfast.files import writable_folder
from holdfast.printable import printable
from holdfast.quality.label_errors import JudgedLabels, judge_labels
from holdfast.reports import write_findings
from holdfast.reports.html import write_data_page
from holdfast.settings.command_settings import QualitySettings
from holdfast.settings.fields import columns_text
from holdfast.train.progress import Progress, make_progress
from holdfast.types import Finding, Measure, Unit

SHOWN_LABELS = 10
"""Suspect labels in the text; all are in the files."""


@dataclass(frozen=True, repr=False)
class DataReport(DataScan):
    """What a set holds, as in :class:`~holdfast.data.data_check.DataScan`, and what confident learning says of labels.

    label_errors: by split; empty where they were not asked for. findings: the numbers, as findings.json has them.
    """

    label_errors: Mapping[str, JudgedLabels] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def _counts(self) -> list[str]:
        wrong = sum(len(judged.suspects) for judged in self.label_errors.values())
        said = f"{wrong:,} label{'s that are' if wrong > 1 else ' that is'} probably wrong"
        return super()._counts() + [said] * (wrong > 0)

    def _lines(self) -> list[str]:
        lines = super()._lines()
        for split, judged in self.label_errors.items():
            held = f"held-out predictions agree with {judged.accuracy:.1%} of the labels"
            count = f"{len(judged.suspects)} of {judged.n} labels of the {split} split are probably wrong"
            share = "" if judged.weak else f"estimated share {judged.noise:.1%}; "
            lines += ["", f"{count} ({share}{held})"]
            if (note := judged.warning(split)) is not None:
                lines.append(f"  warning: {note}")
            if (least := judged.least_precision) is not None:
                unless = "unless the network is often sure of a wrong class"
                lines.append(f"  at least {least:.0%} of those listed should be wrong, {unless}")
            elif judged.suspects and not judged.weak:
                lines.append("  too few to say how many of them are wrong: look at each")
            lines += [
                f"  {s.sample.source}: {s.sample.label} ({s.probability:.0%}), rather {s.suggested} "
                f"({s.suggested_probability:.0%})"
                for s in judged.suspects[:SHOWN_LABELS]
            ]
            if len(judged.suspects) > SHOWN_LABELS:
                lines.append(f"  and {len(judged.suspects) - SHOWN_LABELS} more; --out lists all")
        return lines


def check_data(data: Any, *, progress: bool | Progress | None = None, **settings: Any) -> DataReport:
    """Decode every image of a set and report what is there: classes, groups, unreadable files, duplicates, leakage.

    data: what :func:`holdfast.data.load` takes, from a name to a ``DataLoader``, or a loaded set. progress: a bar; by
    default on a terminal and in a notebook. settings: those of
    :class:`~holdfast.settings.command_settings.QualitySettings`, the flags of ``holdfast data check``: root, names,
    label, group, columns and confine as for ``load``; near, the largest distance of near duplicates; label_errors,
    whether to train and search for wrong labels; model, pretrained, folds, epochs, image_size, seed, device of that;
    out, a folder for the page, findings and tables.

    Raises for a name or path that does not exist; whatever else is wrong is in the report.

    >>> report = check_data("digits")
    >>> report.sound, report.splits["train"]["3"], len(report.leaks)
    (True, 122, 0)
    """
    own = QualitySettings(**settings)
    place = None if own.out is None else claim_check_folder(own.out, overwrite=own.overwrite, data=data)
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


CHECK = "data"
MEASURES = (
    Measure("samples", "samples", Unit.COUNT, better="neither"),
    Measure("unreadable_files", "files that cannot be read", Unit.COUNT, better="lower"),
    Measure("identical_images", "images that are identical to another", Unit.COUNT, better="lower"),
    Measure("near_duplicates", "images that are nearly the same as another", Unit.COUNT, better="lower"),
    Measure("leaked_images", "held-out images with a duplicate in an earlier split", Unit.COUNT, better="lower"),
    Measure("label_errors", "labels that are probably wrong", Unit.COUNT, better="lower"),
    Measure("label_error_precision", "labels flagged that are wrong, at least", better="neither"),
    Measure("label_noise", "estimated share of wrong labels", better="lower"),
    Measure("held_out_accuracy", "held-out predictions that agree with the label"),
)
PAGE, FINDINGS = "data_check.html", "findings.json"
DUPLICATES, LABEL_ERRORS, CELLS = "duplicates.csv", "label_errors.csv", "cells.csv"
SHOWN = 40
"""Groups of duplicates, and suspect labels, that the page has pictures of; the tables have all."""
SHOWN_FILES = 200


def claim_check_folder(out: str | Path, *, overwrite: bool, data: object = None) -> Path:
    """The folder, refused before any work where it holds something that must not be replaced."""
    folder = writable_folder(out)
    require(not (folder / "run.yaml").exists(), f"{folder} holds a training run; choose another --out")
    own = (PAGE, FINDINGS, DUPLICATES, LABEL_ERRORS, CELLS, UNREADABLE_CSV)
    there = [name for name in own if (folder / name).exists()]
    require(overwrite or not there, f"{folder} holds {', '.join(there)}; give --overwrite, or choose another --out")
    foreign = FINDINGS in there and PAGE not in there
    require(not foreign, f"{folder / FINDINGS} is not of a data check; choose another --out")
    refuse_foreign(folder, own, data=data)
    for name in there:
        (folder / name).unlink()  # none of an earlier check is to be taken for one of this
    return folder


def findings_of(scan: DataScan, judged: Mapping[str, JudgedLabels], settings: QualitySettings) -> tuple[Finding, ...]:
    """The numbers, with pictures of the first of everything that was found."""
    said = {key: value for key, value in asdict(settings).items() if key not in ("out", "overwrite", "device")}
    said = {key: value for key, value in said.items() if key not in settings.reading() or value}
    if isinstance(columns := said.get("columns"), Mapping):
        said["columns"] = columns_text(columns)
    count = sum(sum(own.values()) for own in scan.splits.values())
    found = [
        Finding(CHECK, "samples", float(n), n, where={"split": split, "class": name}, settings=said)
        for split, own in scan.splits.items()
        for name, n in own.items()
    ]
    found += [
        Finding(CHECK, "samples", float(n), n, where={"split": split, "class": name, "group": group})
        for split, cells in scan.cells.items()
        for (name, group), n in cells.items()
    ]
    files = [{"path": printable(bad.path), "reason": bad.reason} for bad in scan.unreadable[:SHOWN_FILES]]
    found.append(Finding(CHECK, "unreadable_files", float(len(scan.unreadable)), count, evidence={"files": files}))
    for name, exact in (("identical_images", True), ("near_duplicates", False)):
        own = [group for group in scan.duplicates if group.exact == exact]
        images = sum(len(group.samples) for group in own)
        evidence = {"groups": _pictured(scan, [group for group in own if not group.leaks]), "count": len(own)}
        evidence["labels_differ"] = sum(group.labels_differ for group in own)
        found.append(Finding(CHECK, name, float(images), count, settings=said, evidence=evidence))
    held_out = [split for split in scan.splits if split != "train"]
    leaked = scan.leaked
    order = {split: place for place, split in enumerate(scan.splits)}
    for split in held_out:
        groups = [
            group
            for group in scan.leaks
            if any(s.split == split for s in group.samples)
            and any(order[s.split] < order[split] for s in group.samples)
        ]
        n = sum(scan.splits[split].values())
        evidence = {"groups": _pictured(scan, groups, split)}
        found.append(
            Finding(CHECK, "leaked_images", float(leaked.get(split, 0)), n, where={"split": split}, evidence=evidence)
        )
    for split, own_labels in judged.items():
        where, n = {"split": split}, own_labels.n
        rows = [
            {
                "png": _picture(scan.data, s.sample),
                "label": s.sample.label,
                "source": s.sample.source,
                "suggested": s.suggested,
                "probability": s.probability,
                "suggested_probability": s.suggested_probability,
                "wrong": s.wrong,
            }
            for s in own_labels.suspects[:SHOWN]
        ]
        suspects, least = float(len(own_labels.suspects)), own_labels.least_precision
        found.append(Finding(CHECK, "label_errors", suspects, n, where=where, settings=said, evidence={"rows": rows}))
        if least is not None:
            found.append(Finding(CHECK, "label_error_precision", least, int(suspects), where=where, settings=said))
        if not own_labels.weak:
            found.append(Finding(CHECK, "label_noise", own_labels.noise, n, where=where, settings=said))
        found.append(Finding(CHECK, "held_out_accuracy", own_labels.accuracy, n, where=where, settings=said))
    return tuple(found)


def write_check(scan: DataScan, judged: Mapping[str, JudgedLabels], findings: Sequence[Finding], folder: Path) -> None:
    """All files of a check; each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_unreadable(folder, scan.unreadable)
    if scan.cells:
        with growing_table(folder / CELLS, ("split", "class", "group", "samples")) as write:
            for split, cells in scan.cells.items():
                for (name, group), n in cells.items():
                    write([split, name, group, n])
    columns = ("group", "kind", "distance", "leak", "split", "position", "image", "label")
    with growing_table(folder / DUPLICATES, columns) as write:
        for number, own in enumerate(scan.duplicates):
            kind, distance = "identical" if own.exact else "near", f"{own.distance:.4g}"
            for s in own.samples:
                write([number, kind, distance, int(own.leaks), s.split, s.position, s.source, s.label])
    if judged:
        named = ("split", "position", "image", "label", "probability", "suggested", "suggested_probability", "wrong")
        with growing_table(folder / LABEL_ERRORS, named) as write:
            for split, own_labels in judged.items():
                for suspect in own_labels.suspects:
                    s = suspect.sample
                    numbers = suspect.probability, suspect.suggested_probability, suspect.wrong
                    given, other, wrong = (f"{value:.6g}" for value in numbers)
                    write([split, s.position, s.source, s.label, given, suspect.suggested, other, wrong])
    data = {"name": scan.name, "n": sum(sum(own.values()) for own in scan.splits.values())}
    write_findings(folder / FINDINGS, findings, model={}, data=data, measures={CHECK: MEASURES})
    weak = [note for split, own in judged.items() if (note := own.warning(split)) is not None]
    notes = [*map(str, [*weak, *scan.notes]), *(f"problem: {problem}" for problem in scan.problems)]
    declared = {(CHECK, measure.name): measure for measure in MEASURES}
    write_data_page(findings, folder / PAGE, name=scan.name, measures=declared, notes=notes)


def _pictured(scan: DataScan, groups: Sequence[DuplicateSamples], split: str | None = None) -> list[dict[str, Any]]:
    """Two images of each of the first groups; with a split the first of an earlier one and the first of this one."""
    found = []
    place = list(scan.splits).index
    for group in groups[:SHOWN]:
        first = min(group.samples, key=lambda s: place(s.split))
        other = next((s for s in group.samples if s is not first and split in (None, s.split)), group.samples[1])
        rows = [{**asdict(s), "png": _picture(scan.data, s)} for s in (first, other)]
        found.append({"rows": rows, "size": len(group.samples), "distance": group.distance})
    return found


def _picture(data: Dataset | None, sample: DataSample) -> str:
    assert data is not None
    split = data.splits[sample.split]
    if isinstance(split, ItemSplit):  # at its own size, whatever that of the others is
        split = replace(split, size=split.head(sample.position)[0], channels=3)
    if not isinstance(split, FileSplit):
        return png(split.read(torch.tensor([sample.position]))[0])
    image = decode(split.paths[sample.position], channels=3, least=2 * THUMBNAIL)  # the whole of it, not its middle
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return png(torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()))
