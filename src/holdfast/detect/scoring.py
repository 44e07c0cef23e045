"""Use a fitted detector: ``score`` images with it, ``evaluate`` it on images of both kinds. These are the functions
behind ``holdfast detect score`` and ``detect evaluate``; ``predict`` is in predicting.py. Below, where all of them may
write: no file of anything else is replaced.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.images import Unreadable, png
from holdfast.data.loaders import evaluation_batch, float_batches
from holdfast.data.result_folders import refuse_foreign
from holdfast.data.splits import Split
from holdfast.data.tables import growing_table
from holdfast.data.unlabelled_images import ImageSource, has_parts, open_unlabelled, takes_columns
from holdfast.data.usable_data import taken_before
from holdfast.detect.detectors import FUSED
from holdfast.detect.evaluation import MEASURES, evaluate_scores, findings_of, score_evidence
from holdfast.detect.fitted_detector import FittedDetector, ScoreReport, image_hashes, load_fitted
from holdfast.errors import HoldfastError, require
from holdfast.files import writable_folder
from holdfast.printable import printable
from holdfast.reports import read_findings, report, write_findings
from holdfast.settings.detect_settings import ReadSettings
from holdfast.train.progress import Progress, make_progress
from holdfast.train.run_result import terms_of_run
from holdfast.types import Finding

SCORE_COLUMNS: Final = ("path", "score", "flag", "reason")
MISSES: Final = 24
FINDINGS, PAGE = "findings.json", "report.html"

SEEN_REMEDY: Final = "or fit the detector with --split train"


def score(
    detector: str | Path | FittedDetector,
    data: ImageSource,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    progress: bool | Progress | None = None,
    note: Callable[[str], None] | None = None,
    **reading: Any,
) -> ScoreReport:
    """How anomalous each image is, whether that is above the threshold, and why; one row per image, in order.

    detector: fitted, or the folder of one. out: a CSV file for the rows, which is written as it grows and put in place
    when it is complete. progress: a bar; by default on a terminal and in a notebook. note: called with what is left out
    of a file that has parts. reading: root, columns, batch_size, workers and device (:class:`ReadSettings`).

    >>> import torch
    >>> from holdfast.detect import fit
    >>> normal = torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(0)) / 4
    >>> quick = {"scores": "reconstruction", "epochs": 5, "lr": 1e-2, "batch_size": 8, "held_out": 0.5, "device": "cpu"}
    >>> report = score(fit(normal, false_alarm_rate=0.1, **quick), 1 - normal, device="cpu")
    >>> report.flagged, report.reasons[0][:14]
    (80, 'reconstruction')
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_table(out, SCORE_COLUMNS)
    fitted = load_fitted(detector, device=read.device)
    terms = _terms(detector, data)
    bad: list[Unreadable] = []
    how: dict[str, Any] = {**read.place(), "shape": fitted.shape, "note": note}
    how["skipped"] = bad.append if read.skip_unreadable else None
    images = open_unlabelled(data, split=split, terms=terms, **how)
    unreadable = tuple(bad)
    require(len(images) > 0, "give at least one image to score")
    parts: list[ScoreReport] = []
    done = 0
    size = read.batch_size or evaluation_batch(images.shape, fitted.extractor.device)
    table = nullcontext(lambda row: None) if place is None else growing_table(place, SCORE_COLUMNS)
    with table as write, make_progress(progress) as shown:
        shown.begin("score", 1, -(-len(images) // size), 0)
        for part in fitted.stream(images, batch_size=size, workers=read.workers):
            for value, flag, reason in zip(part.scores.tolist(), part.flags.tolist(), part.reasons, strict=True):
                for lost in taken_before(bad, done):
                    write(unreadable_row(lost, SCORE_COLUMNS))
                write([images.describe(done), f"{value:.6g}", int(flag), reason])
                done += 1
            parts.append(part)
            shown.step()
        for lost in taken_before(bad):
            write(unreadable_row(lost, SCORE_COLUMNS))
    return replace(ScoreReport.cat(parts), unreadable=unreadable)


def unreadable_row(lost: Unreadable, columns: Sequence[str]) -> list[str]:
    """The row of a file that cannot be read: its path and why, and nothing in the other columns."""
    said = {columns[0]: printable(lost.path), "reason": f"unreadable: {lost.reason}"}
    return [said.get(name, "") for name in columns]


def evaluate(
    detector: str | Path | FittedDetector,
    normal: ImageSource,
    anomalous: ImageSource | None = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    note: Callable[[str], None] | None = None,
    progress: bool | Progress | None = None,
    **reading: Any,
) -> tuple[Finding, ...]:
    """Measure a detector on images that are known to be normal and images that are known to be anomalous.

    detector: fitted, or the folder of one. normal: normal images; or, alone, a set with anomalies (``holdfast data make
    fashion-anomalies``), whose test sets bring both. out: a folder for findings.json and report.html. Nothing of the
    detector is changed: its threshold was set before. Images that it was fitted on are counted, and warned of. note:
    called with what is left out of data that has parts. progress: a bar; by default on a terminal and in a notebook.
    reading: root, columns (of those that have some), batch_size, workers and device (:class:`ReadSettings`).

    >>> import torch
    >>> from holdfast.detect import fit
    >>> normal = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0)) / 4
    >>> quick = {"scores": "reconstruction", "epochs": 5, "lr": 1e-2, "batch_size": 8, "held_out": 0.5, "device": "cpu"}
    >>> detector = fit(normal[:80], false_alarm_rate=0.1, **quick)
    >>> found = evaluate(detector, normal[80:], 1 - normal[80:], device="cpu")
    >>> next(finding.value for finding in found if finding.name == "auroc")
    1.0
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_folder(out, check="detect", data=normal)
    fitted = load_fitted(detector, device=read.device)
    opened = partial(open_unlabelled, usual="test", shape=fitted.shape, note=note)
    if read.skip_unreadable:
        opened = partial(opened, skipped=lambda lost: None)  # a note counts them
    kinds = _both_kinds(normal, anomalous, split, opened, read.place(), _terms(detector, normal))
    size = read.batch_size or evaluation_batch(fitted.shape, fitted.extractor.device)
    read = replace(read, batch_size=size)
    with make_progress(progress) as shown:
        shown.begin("evaluate", 1, sum(-(-len(own) // size) for own in kinds.values()), 0)
        judgements = [_judged(fitted, kinds[kind], read, shown) for kind in ("normal", "anomalous")]
    parts, seen = zip(*judgements, strict=True)
    settings = {"fitted_on": dict(zip(("normal", "anomalous"), seen, strict=True))} if any(seen) else {}
    for kind, count in zip(("normal", "anomalous"), seen, strict=True):
        if count:
            warnings.warn(
                f"{count} of {len(kinds[kind])} {kind} images are among those that the detector was fitted on as "
                f"normal: the numbers are {'better' if kind == 'normal' else 'worse'} than on new images; give images "
                f"that it has not seen, {SEEN_REMEDY if split == 'test' else 'such as those of --split test'}",
                RuntimeWarning,
                stacklevel=2,
            )
    judged = ScoreReport.cat(parts)
    truth = torch.arange(len(judged)) >= len(parts[0])
    members = (member.name for member in fitted.detector.members)
    by_name = {FUSED: judged.scores} | dict(zip(members, judged.z_scores.float().T, strict=True))
    found: list[Finding] = []
    for name, scores in by_name.items():
        threshold = fitted.threshold if name == FUSED else None
        result = evaluate_scores(scores, truth, threshold=threshold, resamples=resamples, seed=seed)
        evidence = score_evidence(scores, truth, threshold, of="anomalous", points=200)
        evidence["confusion"] = result.confusion
        found += findings_of(result, "detect", {"score": name}, settings, evidence)
    found.append(_worst(kinds["anomalous"], parts[1].scores, fitted.threshold.value))
    if place is not None:
        name = "detector" if isinstance(detector, FittedDetector) else str(detector)
        measures = {"detect": MEASURES}
        model, data = {"detector": name}, {"name": "evaluation"}
        write_findings(place / FINDINGS, found, model=model, data=data, measures=measures)
        report(found, place / PAGE, name=Path(name).name, measures=measures)
    return tuple(found)


def _both_kinds(
    normal: ImageSource,
    anomalous: ImageSource | None,
    split: str | None,
    opened: Callable[..., Split],
    where: Mapping[str, Any],
    terms: Mapping[str, Any] | None,
) -> dict[str, Split]:
    if anomalous is None:
        require(
            isinstance(normal, (str, Path)) and holds_anomalies(normal),
            f"{normal} brings no anomalies of its own; give anomalous images too",
        )
        require(split is None, f"split {split!r}: a set with anomalies is evaluated on its test sets; leave it out")
        data = read_anomalies(str(normal))
        pooled, truth = data.pooled(), data.anomalous(data.pooled())
        return {k: pooled.subset(own.nonzero().flatten()) for k, own in (("normal", ~truth), ("anomalous", truth))}
    kinds: dict[str, Split] = {}
    # A split is of what has one. Anomalies without parts are never cut: nothing was fitted on any of them.
    sources = {"normal": normal, "anomalous": anomalous}
    tables = [name for name, own in sources.items() if takes_columns(own)]
    # columns are of what has some; where neither has, what opens the first refuses them
    here = {n: {**where, "columns": where["columns"] if n in tables or not tables else None} for n in sources}
    cut = [n for n, own in sources.items() if split and has_parts(own, or_classes=n == "normal", **here[n])]
    for name, source in sources.items():
        own = split if name in cut or not cut else None
        kinds[name] = opened(source, split=own, terms=terms if name == "normal" else None, **here[name])
        require(len(kinds[name]) > 0, f"there are no {name} images; give at least one")
    return kinds


def _judged(fitted: FittedDetector, images: Split, read: ReadSettings, shown: Progress) -> tuple[ScoreReport, int]:
    """What a detector says of images, and how many of them it was fitted on."""
    fitted.check(images.shape)
    reports, seen = [], 0
    for x in float_batches(images, fitted.extractor.device, batch_size=read.batch_size, workers=read.workers):
        reports.append(fitted.report_batch(x))
        seen += 0 if fitted.seen is None else int(torch.isin(image_hashes(x.cpu()), fitted.seen).sum())
        shown.step()
    return ScoreReport.cat(reports), seen


def _terms(detector: str | Path | FittedDetector, data: ImageSource) -> dict[str, Any] | None:
    """How the run that a detector belongs to cut this data, where there is such a run."""
    if not isinstance(detector, (str, Path)) or not isinstance(data, (str, Path)):
        return None
    terms = terms_of_run(Path(detector).parent, data)
    return None if terms is None else terms.reading()


def _worst(images: Split, scores: Tensor, threshold: float) -> Finding:
    order = scores.argsort()[:MISSES]
    order = order[scores[order] <= threshold]
    rows = [
        {"png": png(image), "label": images.describe(int(i)).rsplit("/", 1)[-1], "score": float(scores[i])}
        for i, image in zip(order, images.read(order) if len(order) else (), strict=True)
    ]
    return Finding("detect", "misses", None, 0, evidence={"misses": rows})


def summary_text(found: Sequence[Finding]) -> str:
    return "".join(
        f"{f.name:<18}{f.value:.3f}{'' if f.low is None else f'  ({f.low:.3f} to {f.high:.3f})'}\n"
        for f in found
        if f.where == {"score": FUSED} and f.value is not None
    )


def claim_folder(out: str | Path, *, check: str, data: object = None) -> Path:
    """A folder for findings of one check and their report, checked before any work; its own old ones may be there.

    data: whose folder is refused.
    """
    folder = writable_folder(out)
    require(not (folder / "run.yaml").exists(), f"{folder} holds a training run; choose another --out")
    there = [name for name in (FINDINGS, PAGE) if (folder / name).exists()]
    require(
        not there or _only_of(check, folder / FINDINGS),
        f"{folder} holds {' and '.join(there)} of something else; choose another --out",
    )
    refuse_foreign(folder, (FINDINGS, PAGE), data=data)
    return folder


def claim_table(out: str | Path, columns: Sequence[str], *, more: tuple[str, ...] = ()) -> Path:
    """A CSV file to write, checked before any work; an old one with these columns may be there.

    more: what the names of further columns start with, of which there may be any number.
    """
    require(out != "", "out is empty; name a CSV file")
    path = Path(out)
    require(path.is_file() or not path.exists(), f"{path} is not a file; name a CSV file to write with --out")
    writable_folder(path.parent)
    if path.exists():
        with path.open("rb") as file:
            header = next(csv.reader([file.readline().rstrip().decode(errors="replace")]), [])
        require(
            header[: len(columns)] == [*columns] and all(name.startswith(more) for name in header[len(columns) :]),
            f"{path} is there and holds something else than the columns {', '.join(columns)}; choose another --out",
        )
    return path


def _only_of(check: str, path: Path) -> bool:
    try:
        found = read_findings(path).findings
    except HoldfastError:
        return False
    return bool(found) and all(finding.check == check for finding in found)
