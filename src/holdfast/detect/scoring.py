"""Use a fitted detector: ``score`` images with it, ``evaluate`` it on images of both kinds, ``predict`` beside a
classifier. These are the functions behind ``holdfast detect score``, ``detect evaluate`` and ``predict``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.loaders import float_batches
from holdfast.data.splits import Split
from holdfast.data.tables import growing_table
from holdfast.data.unlabelled_images import ImageSource, has_parts, open_unlabelled
from holdfast.detect.detectors import FUSED
from holdfast.detect.evaluation import MEASURES, evaluate_scores, findings_of, score_evidence
from holdfast.detect.fitted_detector import DETECTOR_FOLDER, FittedDetector, ScoreReport, image_hashes, load_fitted
from holdfast.detect.output_places import FINDINGS, PAGE, claim_folder, claim_table, shape_for
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, require
from holdfast.models import ModelCard, load_model
from holdfast.module_state import evaluating
from holdfast.png import png
from holdfast.reports import report, write_findings
from holdfast.settings.detect_settings import ReadSettings
from holdfast.train.run_data import terms_of_run
from holdfast.train.run_result import Run
from holdfast.types import Finding

SCORE_COLUMNS: Final = ("image", "score", "flag", "reason")
PREDICTION_COLUMNS: Final = ("path", "prediction", "confidence", "ood_score", "ood", "reason")
"""What ``predict`` writes of each image; probabilities, where they are wanted, follow as one column per class."""
PROBABILITY: Final = "prob_"
"""Before the name of a class, the column of its probability."""
MISSES: Final = 24

SEEN_REMEDY: Final = "or fit the detector with --split train"

Progress = Callable[[int, int], None]
"""Called with the number of images done and of all images."""


def score(
    detector: str | Path | FittedDetector,
    data: ImageSource,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **reading: Any,
) -> ScoreReport:
    """How anomalous each image is, whether that is above the threshold, and why; one row per image, in order.

    detector: fitted, or the folder of one. out: a CSV file for the rows, which is written as it grows and put in place
    when it is complete. note: called with what is left out of a file that has parts. reading: root, batch_size, workers
    and device (:class:`ReadSettings`).
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_table(out, SCORE_COLUMNS)
    fitted = load_fitted(detector, device=read.device)
    terms = _terms(detector, data)
    images = open_unlabelled(
        data, root=read.root, confine=read.confine, split=split, shape=fitted.shape, terms=terms, note=note
    )
    require(len(images) > 0, "there are no images to score; give at least one")
    parts: list[ScoreReport] = []
    done = 0
    with nullcontext(lambda row: None) if place is None else growing_table(place, SCORE_COLUMNS) as write:
        for part in fitted.stream(images, batch_size=read.batch_size, workers=read.workers):
            for value, flag, reason in zip(part.scores.tolist(), part.flags.tolist(), part.reasons, strict=True):
                write([images.describe(done), f"{value:.6g}", int(flag), reason])
                done += 1
            parts.append(part)
            if progress is not None:
                progress(done, len(images))
    return ScoreReport.cat(parts)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """One row per image. classes: names. paths: where each image is. labels: (N,) int64 predicted class. confidence:
    (N,) its probability. probabilities: (N, K) of every class, where they were asked for.

    ood: the detector's report of the same images, where there is a detector.
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: Tensor
    confidence: Tensor
    probabilities: Tensor | None = None
    ood: ScoreReport | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        counts = torch.bincount(self.labels, minlength=len(self.classes)).tolist()
        found = ", ".join(f"{n:,} {name}" for name, n in zip(self.classes[:6], counts, strict=False) if n)
        flagged = "" if self.ood is None else f"; {int(self.ood.flags.sum()):,} flagged as out-of-distribution"
        return f"<Predictions for {len(self):,} images: {found}{', ...' * (len(self.classes) > 6)}{flagged}>"

    def columns(self) -> dict[str, list[Any]]:
        """The columns of the file that ``predict`` writes; None where there is no detector."""
        ood, n = self.ood, len(self)
        judged = [[None] * n] * 3 if ood is None else [ood.scores.tolist(), ood.flags.tolist(), list(ood.reasons)]
        names = [self.classes[i] for i in self.labels.tolist()]
        made = [list(self.paths), names, self.confidence.tolist(), *judged]
        found = dict(zip(PREDICTION_COLUMNS, made, strict=True))
        if self.probabilities is not None:
            of_each = zip(self.classes, self.probabilities.T.tolist(), strict=True)
            found |= {f"{PROBABILITY}{name}": values for name, values in of_each}
        return found

    def to_dataframe(self) -> Any:
        """A pandas table with these columns."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise HoldfastError("a data frame needs pandas; run: pip install pandas, or use columns()") from error
        return DataFrame(self.columns())


def predict(
    run: str | Path | Run,
    data: ImageSource,
    *,
    out: str | Path | None = None,
    probabilities: bool = False,
    detector: str | Path | FittedDetector | None = None,
    split: str | None = None,
    note: Callable[[str], None] | None = None,
    **reading: Any,
) -> Predictions:
    """Classify images with a run and, where there is a detector, flag those that are out-of-distribution.

    run: a finished training, or its folder. out: a CSV file with path, prediction (the class), confidence, and the
    detector's ood_score, flag ``ood`` (0 or 1) and reason, which are empty without a detector; ``holdfast audit
    --predictions`` reads it. probabilities: also keep that of every class, in the file as columns ``prob_CLASS``.
    detector: fitted, or the folder of one; by default ``detector`` in the run. note: called with what is left out of
    a file that has parts. reading: root, batch_size, workers and device (:class:`ReadSettings`).

    >>> import holdfast
    >>> run = holdfast.fit("digits", epochs=1, device="cpu", progress=False)
    >>> found = predict(run, "digits", probabilities=True, device="cpu", workers=0)
    >>> found.probabilities.shape, list(found.columns())[:3]
    (torch.Size([599, 10]), ['path', 'prediction', 'confidence'])
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_table(out, PREDICTION_COLUMNS, more=PROBABILITY)
    where = resolve_device(read.device)
    model, card, folder = _classifier(run)
    was_on = next((p.device for p in model.parameters()), where)
    model = model.to(where)
    fitted = _detector_of(folder, detector, read.device)
    terms = terms_of_run(folder, data) if folder is not None and isinstance(data, (str, Path)) else None
    how: dict[str, Any] = {"root": read.root, "confine": read.confine, "shape": shape_for(card), "note": note}
    images = open_unlabelled(data, split=split, usual="test", terms=None if terms is None else asdict(terms), **how)
    require(len(images) > 0, "there are no images to classify; give at least one")
    require(
        images.shape[0] == card.in_channels,
        f"the model takes images of {card.in_channels} channels, these have {images.shape[0]}; convert them",
    )
    if fitted is not None:
        fitted.check(images.shape)
    columns = (*PREDICTION_COLUMNS, *(f"{PROBABILITY}{name}" for name in card.classes if probabilities))
    answers: list[Tensor] = []
    reports: list[ScoreReport] = []
    paths: list[str] = []
    table = nullcontext(lambda row: None) if place is None else growing_table(place, columns)
    with table as write, evaluating(model), torch.no_grad():
        for x in float_batches(images, where, batch_size=read.batch_size, workers=read.workers):
            found = model(x).float().softmax(1).cpu()
            if fitted is not None:
                reports.append(fitted.report_batch(x))
            rows = _rows(found, reports[-1] if reports else None, card.classes, probabilities=probabilities)
            for row in rows:
                paths.append(images.describe(len(paths)))
                write([paths[-1], *row])
            answers.append(found if probabilities else torch.stack(found.max(1), 1).double())
    model.to(was_on)  # a module of the caller's stays where it was
    every = torch.cat(answers)
    confidence, labels = every.max(1) if probabilities else (every[:, 0].float(), every[:, 1].long())
    ood = ScoreReport.cat(reports) if reports else None
    return Predictions(tuple(card.classes), tuple(paths), labels, confidence, every if probabilities else None, ood)


def _rows(
    found: Tensor, report: ScoreReport | None, classes: Sequence[str], *, probabilities: bool
) -> Iterator[list[Any]]:
    """What a table says of each image of a batch after its path; found: (B, K) probabilities."""
    confidence, labels = found.max(1)
    for i, (sure, own) in enumerate(zip(confidence.tolist(), labels.tolist(), strict=True)):
        ood: tuple[Any, ...] = ("", "", "")
        if report is not None:
            ood = (f"{float(report.scores[i]):.6g}", int(report.flags[i]), report.reasons[i])
        # nine digits give the same float32 back, so that the highest probability stays the highest
        yield [classes[own], f"{sure:.6g}", *ood, *(f"{p:.9g}" for p in (found[i].tolist() if probabilities else ()))]


def _classifier(run: str | Path | Run) -> tuple[nn.Module, ModelCard, Path | None]:
    """The network of a training, what its outputs mean, and its folder, if it has one."""
    if isinstance(run, (str, Path)):
        return *load_model(run), Path(run)
    data, name = run.data, run.settings.model.name
    channels, *size = data.shape
    card = ModelCard(name, data.num_classes, tuple(data.classes), channels, (size[0], size[1]), (), ())
    return run.model, card, run.out


def _detector_of(run: Path | None, detector: str | Path | FittedDetector | None, device: str) -> FittedDetector | None:
    if isinstance(detector, FittedDetector):
        return detector
    if detector is None and run is None:
        return None
    folder = Path(detector or Path(run or "", DETECTOR_FOLDER))
    require(detector is None or folder.is_dir(), f"no detector in {folder}; fit one with --run {run}")
    return load_fitted(folder, device=device) if folder.is_dir() else None


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
    **reading: Any,
) -> tuple[Finding, ...]:
    """Measure a detector on images that are known to be normal and images that are known to be anomalous.

    detector: fitted, or the folder of one. normal: normal images; or, alone, a set with anomalies (``holdfast data make
    fashion-anomalies``), whose test sets bring both. out: a folder for findings.json and report.html. Nothing of the
    detector is changed: its threshold was set before. Images that it was fitted on are counted, and warned of. note:
    called with what is left out of data that has parts. reading: root, batch_size, workers and device
    (:class:`ReadSettings`).
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_folder(out, check="detect")
    fitted = load_fitted(detector, device=read.device)
    where: dict[str, Any] = {"root": read.root, "confine": read.confine}
    opened = partial(open_unlabelled, usual="test", shape=fitted.shape, note=note, **where)
    kinds = _both_kinds(normal, anomalous, split, opened, where, _terms(detector, normal))
    parts, seen = zip(*(_judged(fitted, kinds[kind], read) for kind in ("normal", "anomalous")), strict=True)
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
    cut = [name for name, own in sources.items() if split and has_parts(own, or_classes=name == "normal", **where)]
    for name, source in sources.items():
        own = split if name in cut or not cut else None
        kinds[name] = opened(source, split=own, terms=terms if name == "normal" else None)
        require(len(kinds[name]) > 0, f"there are no {name} images; give at least one")
    return kinds


def _judged(fitted: FittedDetector, images: Split, read: ReadSettings) -> tuple[ScoreReport, int]:
    """What a detector says of images, and how many of them it was fitted on."""
    fitted.check(images.shape)
    reports, seen = [], 0
    for x in float_batches(images, fitted.extractor.device, batch_size=read.batch_size, workers=read.workers):
        reports.append(fitted.report_batch(x))
        seen += 0 if fitted.seen is None else int(torch.isin(image_hashes(x.cpu()), fitted.seen).sum())
    return ScoreReport.cat(reports), seen


def _terms(detector: str | Path | FittedDetector, data: ImageSource) -> dict[str, Any] | None:
    """How the run that a detector belongs to cut this data, where there is such a run."""
    if not isinstance(detector, (str, Path)) or not isinstance(data, (str, Path)):
        return None
    terms = terms_of_run(Path(detector).parent, data)
    return None if terms is None else asdict(terms)


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
