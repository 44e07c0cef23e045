"""The commands around detectors: fit one, score pictures with it, judge it, and draw the map of a set."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.borrow import evaluating
from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.heaps import open_pictures
from holdfast.data.splits import Dataset, Split
from holdfast.detect.describe import describe_images
from holdfast.detect.describe import findings as describe_findings
from holdfast.detect.evaluation import Evaluation, curves, evaluate
from holdfast.detect.loop import LoopSettings
from holdfast.detect.monitor import Monitor, fit_monitor
from holdfast.detect.seen import batches
from holdfast.detect.vae import train_vae
from holdfast.errors import require
from holdfast.files import replacing
from holdfast.models import load_model
from holdfast.models.vae import VAESettings
from holdfast.pictures import png
from holdfast.reports import report, write_findings
from holdfast.train.api import resolve_device
from holdfast.types import Finding

MISSES = 24
BINS = 40
COLUMNS = ("picture", "score", "flag", "reason")
PREDICTIONS = ("picture", "label", "confidence", "unknown", "reason")
DETECTOR = "detector"
"""The folder in a run where its classifier's detector lies."""

Source = str | Path | Split | Dataset


def detect_fit(
    data: Source,
    out: str | Path | None = None,
    *,
    scores: Sequence[str] = ("fused",),
    run: str | Path | None = None,
    root: str | Path | None = None,
    image_size: int | None = None,
    network: str = "strided",
    latent: int = 16,
    beta: float = 1.0,
    sigma: float | None = None,
    encoder: str = "convnet",
    changes: bool = False,
    epochs: int = 20,
    encoder_epochs: int = 10,
    batch_size: int = 128,
    lr: float = 1e-3,
    combine: str = "mean",
    held_out: float = 0.2,
    false_alarm_rate: float = 0.05,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    note: Callable[[str], None] | None = None,
) -> Monitor:
    """Learn what is normal from ``data``, every picture of which is, and write the detector to the folder ``out``.

    run: a trained run whose classifier is to be watched; its features are scored then, and the detector goes into the
    run unless ``out`` says otherwise, where ``predict`` finds it.
    """
    require(out is not None or run is not None, "where shall the detector go? give out, or the run it belongs to")
    out = Path(run or "") / DETECTOR if out is None else Path(out)
    require(not (out / "detector.json").exists(), f"{out} holds a detector already; choose another place")
    where = resolve_device(device)
    classifier, card = (None, None) if run is None else load_model(run)
    shape = None if card is None or card.image_size is None else _shape(card.in_channels, card.image_size)
    split = open_pictures(data, root=root, shape=shape, image_size=image_size)
    channels, height, width = split.shape
    monitor = fit_monitor(
        split,
        scores=scores[0] if len(scores) == 1 else scores,
        classifier=None if classifier is None else classifier.to(where),
        card=card,
        vae=VAESettings((channels, height, width), network, latent, sigma, beta),
        vae_loop=LoopSettings(epochs, batch_size, lr, precision=precision, seed=seed),
        encoder=encoder,
        encoder_loop=LoopSettings(
            encoder_epochs, batch_size, 2 * lr, schedule="cosine", precision=precision, seed=seed
        ),
        changes=changes,
        combine=combine,
        held_out=held_out,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
        device=where,
        note=note,
    )
    monitor.save(out)
    return monitor


@dataclass(frozen=True)
class ScoreSummary:
    """How many pictures were scored and how many of them flagged."""

    pictures: int
    flagged: int
    out: Path


def detect_score(
    folder: str | Path,
    data: Source,
    out_csv: str | Path,
    *,
    root: str | Path | None = None,
    split: str = "train",
    batch_size: int = 256,
    workers: int = 4,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> ScoreSummary:
    """A CSV with a score, a flag (0 or 1) and a reason a picture; written as it grows, put in place when whole."""
    monitor = Monitor.load(folder, device=resolve_device(device))
    pictures = open_pictures(data, root=root, split=split, shape=monitor.shape)
    require(len(pictures) > 0, "there is no picture to score; give at least one")
    done = flagged = 0
    with _growing_csv(Path(out_csv), COLUMNS) as write:
        for part in monitor.stream(pictures, batch_size=batch_size, workers=workers):
            for score, flag, reason in zip(part.scores.tolist(), part.flags.tolist(), part.reasons, strict=True):
                write([pictures.describe(done), f"{score:.6g}", int(flag), reason])
                done += 1
                flagged += flag
            if progress is not None:
                progress(done, len(pictures))
    return ScoreSummary(done, flagged, Path(out_csv))


def predict(
    run: str | Path,
    data: Source,
    out_csv: str | Path,
    *,
    detector: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "test",
    batch_size: int = 256,
    workers: int = 4,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> ScoreSummary:
    """A CSV with label, confidence and, where the run carries a detector, an "unknown" flag with its reason.

    run: the folder of a trained classifier. detector: a folder of one; by default ``detector`` in the run.
    """
    where = resolve_device(device)
    model, card = load_model(run)
    model = model.to(where)
    home = Path(run) / DETECTOR if detector is None else Path(detector)
    require(detector is None or home.is_dir(), f"no detector in {home}; fit one with --run {run}")
    monitor = Monitor.load(home, device=where) if home.is_dir() else None
    shape = None if card.image_size is None else _shape(card.in_channels, card.image_size)
    pictures = open_pictures(data, root=root, split=split, shape=shape)
    require(len(pictures) > 0, "there is no picture to judge; give at least one")
    require(
        pictures.shape[0] == card.in_channels,
        f"the model takes images of {card.in_channels} channels, these have {pictures.shape[0]}; convert them",
    )
    done = flagged = 0
    with _growing_csv(Path(out_csv), PREDICTIONS) as write, evaluating(model), torch.no_grad():
        for x in batches(pictures, where, batch_size=batch_size, workers=workers):
            confidence, label = model(x).float().softmax(1).max(1)
            judged = None if monitor is None else monitor.judge(monitor.sight.look(x).to("cpu"))
            for i, (sure, own) in enumerate(zip(confidence.tolist(), label.tolist(), strict=True)):
                flag = None if judged is None else int(judged.flags[i])
                reason = "" if judged is None else judged.reasons[i]
                unknown = "" if flag is None else flag
                write([pictures.describe(done), card.classes[own], f"{sure:.6g}", unknown, reason])
                done += 1
                flagged += flag or 0
            if progress is not None:
                progress(done, len(pictures))
    return ScoreSummary(done, flagged, Path(out_csv))


@contextmanager
def _growing_csv(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Sequence[object]], object]]:
    """Rows go to a file beside the target, which takes its place when all are there."""
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        yield writer.writerow


def detect_evaluate(
    folder: str | Path,
    normal: Source,
    anomalous: Source | None = None,
    out: str | Path | None = None,
    *,
    root: str | Path | None = None,
    split: str = "test",
    batch_size: int = 256,
    workers: int = 4,
    resamples: int = 1000,
    seed: int = 0,
    device: str = "auto",
) -> tuple[Finding, ...]:
    """Judge a detector on pictures that are known to be normal and pictures that are known not to be.

    normal: normal pictures; or, alone, a set with anomalies (``holdfast data make fashion-anomalies``), whose test sets
    bring both. out: a folder for findings.json and report.html. Nothing of the detector is changed: its threshold was
    set before.
    """
    monitor = Monitor.load(folder, device=resolve_device(device))
    kinds = _both_kinds(normal, anomalous, root, split, monitor.shape)
    sides = {k: _member_scores(monitor, v, batch_size, workers) for k, v in kinds.items()}
    truth = torch.cat([torch.zeros(len(sides["normal"])), torch.ones(len(sides["anomalous"]))]).bool()
    found: list[Finding] = []
    table = torch.cat([sides["normal"], sides["anomalous"]])
    names = ["fused", *(m.name for m in monitor.detector.members)]
    for i, name in enumerate(names):
        scores = table[:, i]
        result = evaluate(
            scores, truth, threshold=monitor.threshold if i == 0 else None, resamples=resamples, seed=seed
        )  # fmt: skip
        found += _findings(result, scores, truth, name, monitor.threshold.value if i == 0 else None)
    found.append(_worst(kinds["anomalous"], sides["anomalous"][:, 0], monitor.threshold.value))
    if out is not None:
        out = Path(out)
        write_findings(out / "findings.json", found, model={"detector": str(folder)}, data={"name": "evaluation"})
        report(found, out / "report.html")
    return tuple(found)


def describe(
    data: Source,
    out: str | Path,
    *,
    detector: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "train",
    image_size: int | None = None,
    latent: int = 2,
    network: str = "strided",
    projection: str = "auto",
    epochs: int = 30,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "auto",
    note: Callable[[str], None] | None = None,
) -> tuple[Finding, ...]:
    """The low-dimensional map of a set as findings.json and report.html in the folder ``out``.

    detector: a detector's folder, to use its VAE; without one, a VAE with ``latent`` dimensions is trained on the set.
    """
    where = resolve_device(device)
    if detector is not None:
        vae = Monitor.load(detector, device=where).vae
        require(vae is not None, f"the detector in {detector} has no VAE; fit it with a score of one, such as elbo")
        assert vae is not None
        pictures = open_pictures(data, root=root, split=split, shape=vae.settings.shape)
    else:
        pictures = open_pictures(data, root=root, split=split, image_size=image_size)
        channels, height, width = pictures.shape
        settings = VAESettings((channels, height, width), network, latent)
        if note is not None:
            note(f"training a {network} VAE with {latent} latent dimensions on {len(pictures)} images")
        vae = train_vae(pictures, settings, LoopSettings(epochs, batch_size, lr, seed=seed), device=where).model
    labels = pictures.labels if bool((pictures.labels >= 0).all()) else None
    made = describe_images(vae, pictures, labels=labels, projection=projection, seed=seed)
    classes = data.classes if isinstance(data, Dataset) else _class_names(labels)
    found = describe_findings(made, labels, classes)
    out = Path(out)
    write_findings(out / "findings.json", found, model={"latent": vae.settings.latent}, data={"name": str(data)})
    report(found, out / "report.html")
    return found


def _both_kinds(
    normal: Source, anomalous: Source | None, root: str | Path | None, split: str, shape: tuple[int, int, int]
) -> dict[str, Split]:
    if anomalous is None:
        require(
            isinstance(normal, (str, Path)) and holds_anomalies(normal),
            f"{normal} brings no anomalies of its own; give anomalous pictures too",
        )
        data = read_anomalies(str(normal))
        pooled, truth = data.pooled(), data.anomalous(data.pooled())
        return {k: pooled.subset(own.nonzero().flatten()) for k, own in (("normal", ~truth), ("anomalous", truth))}
    kinds: dict[str, Split] = {}
    for name, source in (("normal", normal), ("anomalous", anomalous)):
        kinds[name] = open_pictures(source, root=root, split=split, shape=shape)
        require(len(kinds[name]) > 0, f"there is no {name} picture to judge by; give at least one")
    return kinds


def _class_names(labels: Tensor | None) -> tuple[str, ...]:
    return () if labels is None else tuple(map(str, range(int(labels.max()) + 1)))


def _shape(channels: int, size: int | tuple[int, int]) -> tuple[int, int, int]:
    return (channels, size, size) if isinstance(size, int) else (channels, *size)


def _member_scores(monitor: Monitor, pictures: Split, batch_size: int, workers: int) -> Tensor:
    """(N, 1 + M) the fused score and each member's z-score."""
    monitor.check(pictures.shape)
    sight, parts = monitor.sight, []
    for x in batches(pictures, sight.device, batch_size=batch_size, workers=workers):
        seen = sight.look(x).to("cpu")
        both = [monitor.detector.score_features(seen)[:, None], monitor.detector.z_scores(seen).float()]
        parts.append(torch.cat(both, 1))
    return torch.cat(parts)


def _findings(result: Evaluation, scores: Tensor, truth: Tensor, name: str, threshold: float | None) -> list[Finding]:
    low, high = float(scores.min()), float(scores.max())
    evidence: dict[str, Any] = {
        "curves": curves(scores, truth),
        "histogram": {
            "low": low,
            "high": high,
            "normal": torch.histc(scores[~truth], BINS, low, high).int().tolist(),
            "anomalous": torch.histc(scores[truth], BINS, low, high).int().tolist(),
        },
        "threshold": threshold,
        "confusion": result.confusion,
    }
    where, n = {"score": name}, len(scores)
    return [
        Finding("detect", key, e.value, n, e.low, e.high, where, {}, evidence if key == "auroc" else {})
        for key, e in result.estimates.items()
    ]


def _worst(pictures: Split, scores: Tensor, threshold: float) -> Finding:
    """The anomalies that look most normal."""
    order = scores.argsort()[:MISSES]
    order = order[scores[order] <= threshold]
    rows = [
        {"png": png(image), "label": pictures.describe(int(i)).rsplit("/", 1)[-1], "score": float(scores[i])}
        for i, image in zip(order, pictures.read(order) if len(order) else (), strict=True)
    ]
    return Finding("detect", "misses", None, 0, evidence={"misses": rows})


def summary_text(found: Sequence[Finding]) -> str:
    """The fused score's figures as lines for a terminal."""
    file = io.StringIO()
    for f in found:
        if f.where == {"score": "fused"} and f.value is not None:
            interval = "" if f.low is None else f"  ({f.low:.3f} to {f.high:.3f})"
            file.write(f"{f.name:<18}{f.value:.3f}{interval}\n")
    return file.getvalue()
