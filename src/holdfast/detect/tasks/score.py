"""``holdfast detect score`` and ``predict``: a row a picture, in a CSV that is whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from holdfast.audits.alignment.prediction_scores import PREDICT
from holdfast.audits.audit_data import terms_of_run
from holdfast.data.loaders import check_reading
from holdfast.data.tables import growing_table
from holdfast.data.unlabelled_images import open_pictures
from holdfast.detect.features import batches
from holdfast.detect.monitor import Monitor
from holdfast.detect.tasks.places import claim_table
from holdfast.detect.tasks.sources import DETECTOR, Source, shape_for
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.models import load_model
from holdfast.module_state import evaluating

COLUMNS = ("picture", "score", "flag", "reason")
PREDICTIONS = tuple(PREDICT)


@dataclass(frozen=True)
class ScoreSummary:
    """How many pictures were scored and how many of them flagged."""

    pictures: int
    flagged: int
    out: Path
    watched: bool = True
    """Whether a detector looked at them."""


def detect_score(
    folder: str | Path,
    data: Source,
    out_csv: str | Path,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    batch_size: int = 256,
    workers: int = 4,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> ScoreSummary:
    """A CSV with a score, a flag (0 or 1) and a reason a picture; written as it grows, put in place when whole.

    note: hears of rows that are left out.
    """
    check_reading(batch_size, workers)
    place = claim_table(out_csv, COLUMNS)
    monitor = Monitor.load(folder, device=resolve_device(device))
    pictures = open_pictures(data, root=root, split=split, shape=monitor.shape, note=note)
    require(len(pictures) > 0, "there is no picture to score; give at least one")
    done = flagged = 0
    with growing_table(place, COLUMNS) as write:
        for part in monitor.stream(pictures, batch_size=batch_size, workers=workers):
            for score, flag, reason in zip(part.scores.tolist(), part.flags.tolist(), part.reasons, strict=True):
                write([pictures.describe(done), f"{score:.6g}", int(flag), reason])
                done += 1
                flagged += flag
            if progress is not None:
                progress(done, len(pictures))
    return ScoreSummary(done, flagged, place)


def predict(
    run: str | Path,
    data: Source,
    out_csv: str | Path,
    *,
    detector: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    batch_size: int = 256,
    workers: int = 4,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> ScoreSummary:
    """A CSV with label, confidence and, where the run carries a detector, an "unknown" flag with its reason.

    run: the folder of a trained classifier. detector: a folder of one; by default ``detector`` in the run. note: hears
    of rows that are left out.
    """
    check_reading(batch_size, workers)
    place = claim_table(out_csv, PREDICTIONS)
    where = resolve_device(device)
    model, card = load_model(run)
    model = model.to(where)
    home = Path(run) / DETECTOR if detector is None else Path(detector)
    require(detector is None or home.is_dir(), f"no detector in {home}; fit one with --run {run}")
    monitor = Monitor.load(home, device=where) if home.is_dir() else None
    terms = terms_of_run(run, data) if isinstance(data, (str, Path)) else None
    pictures = open_pictures(
        data,
        root=root,
        split=split,
        usual="test",
        shape=shape_for(card),
        terms=None if terms is None else asdict(terms),
        note=note,
    )
    require(len(pictures) > 0, "there is no picture to judge; give at least one")
    require(
        pictures.shape[0] == card.in_channels,
        f"the model takes images of {card.in_channels} channels, these have {pictures.shape[0]}; convert them",
    )
    sight = None
    if monitor is not None:
        monitor.check(pictures.shape)
        sight = monitor.sight
    done = flagged = 0
    with growing_table(place, PREDICTIONS) as write, evaluating(model), torch.no_grad():
        for x in batches(pictures, where, batch_size=batch_size, workers=workers):
            confidence, label = model(x).float().softmax(1).max(1)
            judged = None if sight is None or monitor is None else monitor.judge(sight.look(x).to("cpu"))
            for i, (sure, own) in enumerate(zip(confidence.tolist(), label.tolist(), strict=True)):
                flag = None if judged is None else int(judged.flags[i])
                reason = "" if judged is None else judged.reasons[i]
                unknown = "" if flag is None else flag
                write([pictures.describe(done), card.classes[own], f"{sure:.6g}", unknown, reason])
                done += 1
                flagged += flag or 0
            if progress is not None:
                progress(done, len(pictures))
    return ScoreSummary(done, flagged, place, monitor is not None)
