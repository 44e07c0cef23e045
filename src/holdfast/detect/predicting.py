"""``predict``: classify images with a run, beside a detector and a threshold to abstain by, into a table.

Open this file to change what the table of ``holdfast predict`` says of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, overload

import torch
from torch import Tensor, nn

from holdfast.data.images import Unreadable
from holdfast.data.load_data import load
from holdfast.data.loaders import evaluation_batch, float_batches
from holdfast.data.splits import FileSplit, Split
from holdfast.data.tables import growing_table
from holdfast.data.unlabelled_images import ImageSource, has_parts, open_unlabelled
from holdfast.data.usable_data import taken_before
from holdfast.detect.fitted_detector import DETECTOR_FOLDER, FittedDetector, ScoreReport, load_fitted
from holdfast.detect.scoring import claim_table, unreadable_row
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, require
from holdfast.models import ModelCard, load_model
from holdfast.models.saved_model import shape_for
from holdfast.module_state import evaluating
from holdfast.settings.detect_settings import ReadSettings
from holdfast.train.folder import abstention_threshold
from holdfast.train.progress import Progress, make_progress
from holdfast.train.run_result import DataTerms, Run, is_own_data, terms_of_run

PREDICTION_COLUMNS: Final = ("path", "prediction", "confidence", "ood_score", "ood", "reason")
"""What ``predict`` writes of each image."""
ABSTAIN: Final = "abstain"
"""The column that follows where there is a threshold to abstain by; then, on request, one column per class."""
PROBABILITY: Final = "prob_"
"""Before the name of a class, the column of its probability."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """One row per image. classes: names. paths: where each image is. labels: (N,) int64 predicted class. confidence:
    (N,) its probability. probabilities: (N, K) of every class, where they were asked for. threshold: the confidence
    below which the model abstains, where there is one.

    ood: the detector's report of the same images, where there is a detector. unreadable: files that have no row here,
    where skip_unreadable was given.
    """

    classes: tuple[str, ...]
    paths: Sequence[str]
    labels: Tensor
    confidence: Tensor
    probabilities: Tensor | None = None
    ood: ScoreReport | None = None
    unreadable: tuple[Unreadable, ...] = ()
    threshold: float | None = None

    @property
    def abstain(self) -> Tensor | None:
        """(N,) bool: where the model abstains; None without a threshold."""
        return None if self.threshold is None else self.confidence < self.threshold

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        counts = torch.bincount(self.labels, minlength=len(self.classes)).tolist()
        found = ", ".join(f"{n:,} {name}" for name, n in zip(self.classes[:6], counts, strict=False) if n)
        flagged = "" if self.ood is None else f"; {int(self.ood.flags.sum()):,} flagged as out-of-distribution"
        flagged += "" if self.abstain is None else f"; abstains from {int(self.abstain.sum()):,}"
        return f"<Predictions for {len(self):,} images: {found}{', ...' * (len(self.classes) > 6)}{flagged}>"

    def columns(self) -> dict[str, list[Any]]:
        """The columns of the file that ``predict`` writes; None where there is no detector."""
        ood, n = self.ood, len(self)
        judged = [[None] * n] * 3 if ood is None else [ood.scores.tolist(), ood.flags.tolist(), list(ood.reasons)]
        names = [self.classes[i] for i in self.labels.tolist()]
        made = [list(self.paths), names, self.confidence.tolist(), *judged]
        found = dict(zip(PREDICTION_COLUMNS, made, strict=True))
        if self.abstain is not None:
            found[ABSTAIN] = self.abstain.tolist()
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
    abstain_below: float | None = None,
    split: str | None = None,
    progress: bool | Progress | None = None,
    note: Callable[[str], None] | None = None,
    **reading: Any,
) -> Predictions:
    """Classify images with a run and, where there is a detector, flag those that are out-of-distribution.

    run: a finished training, or its folder. out: a CSV file with path, prediction (the class), confidence, and the
    detector's ood_score, flag ``ood`` (0 or 1) and reason, which are empty without a detector; ``holdfast audit
    --predictions`` reads it. probabilities: also keep that of every class, in the file as columns ``prob_CLASS``.
    detector: fitted, or the folder of one; by default ``detector`` in the run. abstain_below: the confidence below
    which not to answer; by default the one that :func:`holdfast.repair` found for the run. With one, the file has a
    column ``abstain`` (0 or 1). progress: a bar; by default on a terminal and in a notebook. note: called with what is
    left out of a file that has parts. reading: root, columns, batch_size, workers and device (:class:`ReadSettings`).

    >>> import holdfast
    >>> run = holdfast.fit("digits", epochs=1, device="cpu", progress=False)
    >>> found = predict(run, "digits", probabilities=True, device="cpu", workers=0)
    >>> found.probabilities.shape, list(found.columns())[:3]
    (torch.Size([599, 10]), ['path', 'prediction', 'confidence'])
    """
    read = ReadSettings(**reading)
    place = None if out is None else claim_table(out, PREDICTION_COLUMNS, more=(ABSTAIN, PROBABILITY))
    within = abstain_below is None or 0 <= abstain_below <= 1
    require(within, f"abstain_below is a confidence in 0..1, got {abstain_below}")
    where = resolve_device(read.device)
    model, card, folder = _classifier(run)
    was_on = next((p.device for p in model.parameters()), where)
    model = model.to(where)
    fitted = _detector_of(folder, detector, read.device)
    threshold = abstention_threshold(folder) if abstain_below is None and folder is not None else abstain_below
    source = folder or (run if isinstance(run, Run) else None)
    terms = terms_of_run(source, data) if source is not None and isinstance(data, (str, Path)) else None
    how: dict[str, Any] = {**read.place(), "shape": shape_for(card), "note": note}
    bad: list[Unreadable] = []
    how["skipped"] = bad.append if read.skip_unreadable else None
    images = open_unlabelled(data, split=split, usual="test", terms=None if terms is None else terms.reading(), **how)
    unreadable = tuple(bad)
    require(len(images) > 0, "give at least one image to classify")
    require(
        images.shape[0] == card.in_channels,
        f"the model takes images of {card.in_channels} channels, these have {images.shape[0]}; convert them",
    )
    said, seen = note is not None and split is None, 0
    if said and folder is not None and terms is not None:
        seen = _trained_on(images, folder, data, terms, root=read.root, confine=read.confine)
    if note is not None and seen:
        note(f"{seen} of these {len(images)} images were trained on; --split test leaves them out")
    if fitted is not None:
        fitted.check(images.shape)
    columns = PREDICTION_COLUMNS + ((ABSTAIN,) if threshold is not None else ())
    columns += tuple(f"{PROBABILITY}{name}" for name in card.classes if probabilities)
    answers: list[Tensor] = []
    reports: list[ScoreReport] = []
    done = 0
    table = nullcontext(lambda row: None) if place is None else growing_table(place, columns)
    size = read.batch_size or evaluation_batch(images.shape, where)
    with table as write, make_progress(progress) as shown, evaluating(model), torch.no_grad():
        shown.begin("predict", 1, -(-len(images) // size), 0)
        for x in float_batches(images, where, batch_size=size, workers=read.workers):
            found = model(x).float().softmax(1).cpu()
            if fitted is not None:
                reports.append(fitted.report_batch(x))
            rows = _rows(found, reports[-1] if reports else None, card.classes, threshold, probabilities=probabilities)
            for row in rows:
                for lost in taken_before(bad, done):
                    write(unreadable_row(lost, columns))
                write([images.describe(done), *row])
                done += 1
            answers.append(found if probabilities else torch.stack(found.max(1), 1).double())
            shown.step()
        for lost in taken_before(bad):
            write(unreadable_row(lost, columns))
    model.to(was_on)  # a module of the caller's stays where it was
    every = torch.cat(answers)
    confidence, labels = every.max(1) if probabilities else (every[:, 0].float(), every[:, 1].long())
    ood = ScoreReport.cat(reports) if reports else None
    kept = every if probabilities else None
    return Predictions(tuple(card.classes), _Sources(images), labels, confidence, kept, ood, unreadable, threshold)


def _trained_on(images: Split, run: Path, data: ImageSource, terms: DataTerms, **how: Any) -> int:
    """How many of the files a run learned from, where its own data is taken whole and listing it again tells; else 0.

    Unreadable files that were left out change what is held out, and finding them means decoding all: nothing is said.
    """
    whole = isinstance(images, FileSplit) and not terms.skip_unreadable and is_own_data(run, data)
    if not whole or has_parts(data, columns=terms.columns, **how):
        return 0
    try:
        learned = load(data, **how, **terms.reading()).train
    except HoldfastError:  # it has changed since, and can be predicted but not trained on
        return 0
    assert isinstance(images, FileSplit)
    trained = set(map(str, learned.paths)) if isinstance(learned, FileSplit) else set()
    return sum(str(path) in trained for path in images.paths)


class _Sources(Sequence[str]):
    """Where every image of a split comes from, said when it is asked for: a million paths take gigabytes."""

    def __init__(self, images: Split) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        at = range(len(self))[index]
        return self.images.describe(at) if isinstance(at, int) else tuple(map(self.images.describe, at))


def _rows(
    found: Tensor, report: ScoreReport | None, classes: Sequence[str], threshold: float | None, *, probabilities: bool
) -> Iterator[list[Any]]:
    """What a table says of each image of a batch after its path; found: (B, K) probabilities."""
    confidence, labels = found.max(1)
    unsure = None if threshold is None else (confidence < threshold).tolist()
    for i, (sure, own) in enumerate(zip(confidence.tolist(), labels.tolist(), strict=True)):
        ood: tuple[Any, ...] = ("", "", "")
        if report is not None:
            ood = (f"{float(report.scores[i]):.6g}", int(report.flags[i]), report.reasons[i])
        abstains = () if unsure is None else (int(unsure[i]),)
        # nine digits give the same float32 back, so that the highest probability stays the highest
        every = (f"{p:.9g}" for p in (found[i].tolist() if probabilities else ()))
        yield [classes[own], f"{sure:.6g}", *ood, *abstains, *every]


def _classifier(run: str | Path | Run) -> tuple[nn.Module, ModelCard, Path | None]:
    """The network of a training, what its outputs mean, and its folder, if it has one."""
    if isinstance(run, (str, Path)):
        return *load_model(run), Path(run)
    given = f"predict needs a finished run or its folder, got a {type(run).__name__}"
    remedy = "measure a module with holdfast.audit, or train one with holdfast.fit(data, model=module)"
    require(isinstance(run, Run), f"{given}; {remedy}")
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
