"""Clean accuracy, overall and by class, likelihood and calibration: what the check ``accuracy`` measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from holdfast import metrics
from holdfast.audits.checks.accuracy.shown_samples import shown_samples
from holdfast.audits.subject import Subject
from holdfast.metrics import Estimate, proportion_interval
from holdfast.rng import derive
from holdfast.train.evaluate import Predictions
from holdfast.types import Finding

TOP = 5
BINS = 15
"""Bins of confidence, the number that most papers take."""
MOST_CLASSES = 50
"""Up to so many classes, all of the confusion matrix is kept; beyond, its largest pairs."""
PAIRS = 20
ROWS = 4096
NO_SCORES = "the file has predictions without scores"
SEEDS = {"ece": "clean/ece", "ece_adaptive": "clean/ece-adaptive"}
"""Names that seeds are drawn by: they stay as they are, or intervals would change."""


def clean_accuracy(subject: Subject) -> tuple[Finding, ...]:
    """Accuracy over all, by class and by group; likelihood, calibration; pictures."""
    seen, data = subject.predictions, subject.data
    correct = seen.correct
    findings = [accuracy(correct, {}, evidence={"confusion": confusion(seen, data.classes)} if len(correct) else {})]
    if data.num_classes > TOP:
        findings.append(accuracy(metrics.top_k(seen.logits, seen.labels, TOP), {}, name=f"top_{TOP}_accuracy"))
    by_class = [accuracy(correct[seen.labels == label], {"class": name}) for label, name in enumerate(data.classes)]
    findings += [balanced_accuracy(by_class), *probabilities(subject), *by_class]
    for group, name in enumerate(data.group_names):
        findings.append(accuracy(correct[seen.groups == group], {"group": name}))
    findings.append(Finding("accuracy", "samples", None, 0, evidence=shown_samples(subject)))
    return tuple(findings)


def accuracy(
    correct: Tensor,
    where: dict[str, str],
    *,
    check: str = "accuracy",
    name: str = "accuracy",
    settings: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Finding:
    """Share of correct predictions with its interval; empty where there is no sample."""
    n, hits = len(correct), int(correct.sum())
    low, high = proportion_interval(hits, n) if n else (None, None)
    return Finding(check, name, hits / n if n else None, n, low, high, where, settings or {}, evidence or {})


def balanced_accuracy(by_class: Sequence[Finding]) -> Finding:
    """Mean recall over the classes that have test samples."""
    counts = [f.n for f in by_class if f.value is not None]
    if not counts:
        return Finding("accuracy", "balanced_accuracy", None, 0)
    mean = metrics.mean_of_shares([round(f.value * f.n) for f in by_class if f.value is not None], counts)
    return Finding("accuracy", "balanced_accuracy", mean.value, mean.n, mean.low, mean.high)


def estimate(finding: Finding) -> Estimate:
    """The numbers of a finding that has an interval; n is 0 where there was nothing to measure."""
    if finding.value is None or finding.low is None or finding.high is None:
        return Estimate(0.0, 0.0, 0.0, 0)
    return Estimate(finding.value, finding.low, finding.high, finding.n)


def probabilities(subject: Subject) -> list[Finding]:
    """Likelihood, Brier score and calibration error; the reliability curve is the latter's evidence."""
    seen, seed = subject.predictions, subject.seed
    n = len(seen.labels)
    if n == 0 or not subject.has_scores:
        why = {} if subject.has_scores else {"reason": NO_SCORES}
        return [Finding("accuracy", name, None, 0, evidence=why) for name in ("nll", "brier", "ece", "ece_adaptive")]
    squared = metrics.bounded_mean(_by_rows(metrics.brier, seen), (0.0, 2.0))
    loss, low, high = metrics.positive_mean(_by_rows(metrics.nll, seen))
    made = [
        Finding("accuracy", "nll", loss, n, low, high),
        Finding("accuracy", "brier", squared.value, n, squared.low, squared.high),
    ]
    confidence = _by_rows(lambda logits, _: logits.double().softmax(1).max(1).values, seen)
    for name, adaptive in (("ece", False), ("ece_adaptive", True)):
        generator = torch.Generator().manual_seed(derive(seed, SEEDS[name]))
        found = metrics.ece(confidence, seen.correct, generator=generator, bins=BINS, adaptive=adaptive)
        curve = metrics.reliability(confidence, seen.correct, bins=BINS, adaptive=adaptive)
        evidence: dict[str, Any] = {"reliability": {key: list(values) for key, values in asdict(curve).items()}}
        evidence |= {"chance": found.chance, "chance_high": found.chance_high}
        evidence["mean_confidence"] = float(confidence.mean())
        settings = {"bins": BINS, "adaptive": adaptive, "resamples": metrics.RESAMPLES}
        error = found.estimate
        made.append(Finding("accuracy", name, error.value, n, error.low, error.high, {}, settings, evidence))
    return made


def _by_rows(scores: Callable[[Tensor, Tensor], Tensor], seen: Predictions) -> Tensor:
    """Scores (N,) from logits and labels, some rows at a time: float64 logits of 1,000 classes are large."""
    pieces = zip(torch.split(seen.logits, ROWS), torch.split(seen.labels, ROWS), strict=True)
    return torch.cat([scores(logits, labels) for logits, labels in pieces])


def confusion(seen: Predictions, classes: tuple[str, ...]) -> dict[str, Any]:
    """Counts by class and prediction: the matrix for few classes, else its largest pairs off the diagonal."""
    count = len(classes)
    table = torch.bincount(seen.labels * count + seen.logits.argmax(1), minlength=count * count).view(count, count)
    if count <= MOST_CLASSES:
        return {"classes": list(classes), "matrix": table.tolist()}
    sizes = table.sum(1)
    wrong = table.clone().fill_diagonal_(0).flatten()
    largest = [i for i in wrong.argsort(descending=True, stable=True)[:PAIRS].tolist() if wrong[i] > 0]
    named = ((classes[i // count], classes[i % count], int(wrong[i]), int(sizes[i // count])) for i in largest)
    pairs = [dict(zip(("label", "prediction", "count", "of"), row, strict=True)) for row in named]
    return {"pairs": pairs, "errors": int(wrong.sum())}
