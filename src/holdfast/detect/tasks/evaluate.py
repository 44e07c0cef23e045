"""``holdfast detect evaluate``: a detector judged on pictures whose truth is known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.loaders import check_reading, float_batches
from holdfast.data.splits import Split
from holdfast.data.unlabelled_images import is_taken_whole, open_unlabelled
from holdfast.detect.evaluation import Evaluation, curves, evaluate, findings_of
from holdfast.detect.monitor import Monitor
from holdfast.detect.tasks.places import FINDINGS, PAGE, claim_folder
from holdfast.detect.tasks.sources import Source
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.png import png
from holdfast.reports import report, write_findings
from holdfast.types import Finding

MISSES = 24
BINS = 40


def detect_evaluate(
    folder: str | Path,
    normal: Source,
    anomalous: Source | None = None,
    out: str | Path | None = None,
    *,
    root: str | Path | None = None,
    split: str | None = None,
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
    check_reading(batch_size, workers)
    place = None if out is None else claim_folder(out, check="detect")
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
    if place is not None:
        write_findings(place / FINDINGS, found, model={"detector": str(folder)}, data={"name": "evaluation"})
        report(found, place / PAGE, name=Path(folder).name)
    return tuple(found)


def _both_kinds(
    normal: Source, anomalous: Source | None, root: str | Path | None, split: str | None, shape: tuple[int, int, int]
) -> dict[str, Split]:
    if anomalous is None:
        require(
            isinstance(normal, (str, Path)) and holds_anomalies(normal),
            f"{normal} brings no anomalies of its own; give anomalous pictures too",
        )
        require(split is None, f"split {split!r}: a set with anomalies is judged on its test sets; leave it out")
        data = read_anomalies(str(normal))
        pooled, truth = data.pooled(), data.anomalous(data.pooled())
        return {k: pooled.subset(own.nonzero().flatten()) for k, own in (("normal", ~truth), ("anomalous", truth))}
    kinds: dict[str, Split] = {}
    sources = {"normal": normal, "anomalous": anomalous}
    some_have_parts = not all(map(is_taken_whole, sources.values()))
    for name, source in sources.items():
        own = None if some_have_parts and is_taken_whole(source) else split
        kinds[name] = open_unlabelled(source, root=root, split=own, usual="test", shape=shape)
        require(len(kinds[name]) > 0, f"there is no {name} picture to judge by; give at least one")
    return kinds


def _member_scores(monitor: Monitor, pictures: Split, batch_size: int, workers: int) -> Tensor:
    """(N, 1 + M) the fused score and each member's z-score."""
    monitor.check(pictures.shape)
    sight, parts = monitor.sight, []
    for x in float_batches(pictures, sight.device, batch_size=batch_size, workers=workers):
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
    return findings_of(result, "detect", {"score": name}, {}, evidence)


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
