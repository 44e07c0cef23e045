"""How well scores separate anomalies (the positive class) from normal data, with intervals. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.detect.threshold import Threshold
from holdfast.errors import require
from holdfast.metrics import Estimate, wilson_interval
from holdfast.metrics.intervals import around
from holdfast.types import Finding, Measure

MEASURES: Final = (
    Measure("auroc", "AUROC"),
    Measure("ap", "average precision"),
    Measure("fpr95", "FPR95", better="lower"),
    Measure("precision", "precision"),
    Measure("recall", "recall"),
    Measure("f1", "F1"),
    Measure("false_alarm_rate", "false alarms", better="lower"),
)
"""What an evaluation finds."""
RESAMPLES = 1000
CELLS = 2**22
BLOCK = 2**18
"""Cells to work on at a time: as many as a processor's cache holds."""
COUNTABLE = 2**24
"""Numbers up to this are whole in float32."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Evaluation:
    """Scores against the truth.

    ranking: auroc; ap (average precision, the step-wise sum, not the trapezoid); fpr95 (share of normal data that is
    flagged when the threshold is low enough to catch 95 % of the anomalies).
    decision: precision, recall, f1 and false_alarm_rate at the threshold; empty without one. confusion: true/false
    positives and negatives at the threshold.
    Intervals: Wilson's for the shares (precision, recall, false_alarm_rate), the bootstrap's for the others. That of
    fpr95 is never narrower than Wilson's: it is a share too, at a threshold that is itself uncertain.
    """

    normal: int
    anomalous: int
    ranking: dict[str, Estimate]
    decision: dict[str, Estimate]
    confusion: dict[str, int]

    @property
    def estimates(self) -> dict[str, Estimate]:
        return {**self.ranking, **self.decision}


def evaluate_scores(
    scores: Tensor, anomalous: Tensor, *, threshold: Threshold | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> Evaluation:
    """Judge scores (N,) against the truth (N,) bool. Samples are redrawn within each kind: both keep their number."""
    require(resamples >= 1, f"resamples must be >= 1, got {resamples}; without them there is no interval")
    ordered, truth = _ordered(scores, anomalous)
    n, positives = len(truth), int(truth.sum())
    flags = torch.zeros(n, dtype=torch.bool) if threshold is None else threshold.flag(ordered)
    once = _figures(torch.ones(1, n, dtype=torch.float64), ordered, truth, flags)
    generator = torch.Generator().manual_seed(seed)
    step = max(1, CELLS // n)
    spread = torch.cat([
        _figures(_redrawn(min(step, resamples - first), truth, generator), ordered, truth, flags)
        for first in range(0, resamples, step)
    ])  # fmt: skip
    negatives, caught, alarms = n - positives, int((flags & truth).sum()), int((flags & ~truth).sum())
    found = {
        name: _estimate(once[0, i], spread[:, i], n, negatives if name == "fpr95" else min(positives, negatives))
        for i, name in enumerate(FIGURES)
    }
    fpr95, f1 = found["fpr95"], found.pop("f1")
    wilson = wilson_interval(fpr95.value * negatives, negatives)
    found["fpr95"] = replace(fpr95, low=min(fpr95.low, wilson[0]), high=max(fpr95.high, wilson[1]))
    if threshold is None:
        return Evaluation(negatives, positives, found, {}, {})
    decision = {
        "precision": _share(caught, caught + alarms),
        "recall": _share(caught, positives),
        "f1": f1,
        "false_alarm_rate": _share(alarms, negatives),
    }
    confusion = {
        "true_positive": caught,
        "false_positive": alarms,
        "false_negative": positives - caught,
        "true_negative": negatives - alarms,
    }
    return Evaluation(negatives, positives, found, decision, confusion)


FIGURES = ("auroc", "ap", "fpr95", "f1")
"""What is redrawn."""


def auroc(scores: Tensor, anomalous: Tensor) -> float:
    """The chance that an anomaly scores above a normal sample; a tie counts half.

    >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([False, False, True, True]))
    0.875
    """
    ordered, truth = _ordered(scores, anomalous)
    once = torch.ones(1, len(truth), dtype=torch.float64)
    return float(_figures(once, ordered, truth, torch.zeros_like(truth))[0, FIGURES.index("auroc")])


def curves(scores: Tensor, anomalous: Tensor, *, points: int = 200) -> dict[str, list[list[float]]]:
    """roc: [false alarms, recall] and pr: [recall, precision], thinned to so many points, for a report."""
    ordered, truth = _ordered(scores, anomalous)
    ends = _ends(ordered)
    tp, fp = truth.cumsum(0)[ends].double(), (~truth).cumsum(0)[ends].double()
    roc = torch.stack([fp / fp[-1], tp / tp[-1]], 1)
    pr = torch.stack([tp / tp[-1], tp / (tp + fp)], 1)
    kept = torch.unique(torch.linspace(0, len(ends) - 1, min(points, len(ends))).round().long())
    return {"roc": [[0.0, 0.0], *roc[kept].tolist()], "pr": pr[kept].tolist()}


def _ordered(scores: Tensor, anomalous: Tensor) -> tuple[Tensor, Tensor]:
    """Scores from the highest to the lowest and the truth in that order, both checked."""
    scores, anomalous = scores.double().cpu(), anomalous.bool().cpu()
    require(
        scores.ndim == 1 and scores.shape == anomalous.shape,
        f"scores {tuple(scores.shape)} and truth {tuple(anomalous.shape)} must both have shape (N,)",
    )
    require(bool(torch.isfinite(scores).all()), "scores have NaN or infinite values; check the detector")
    n, positives = len(scores), int(anomalous.sum())
    require(0 < positives < n, f"both kinds are needed, got {positives} anomalies among {n}; add what is missing")
    order = scores.argsort(descending=True, stable=True)
    return scores[order], anomalous[order]


def _figures(weights: Tensor, ordered: Tensor, truth: Tensor, flags: Tensor) -> Tensor:
    """(B, len(FIGURES)) for weights (B, N): how often each sample, in falling order of score, was drawn."""
    ends = _ends(ordered)
    flagged = int(flags.sum())  # the first ones: scores fall
    rows = max(1, BLOCK // weights.shape[1])
    return torch.cat([_block(w, truth, ends, flagged) for w in torch.split(weights, rows)])


def _block(weights: Tensor, truth: Tensor, ends: Tensor, flagged: int) -> Tensor:
    hits, drawn = (weights * truth).cumsum(1), weights.cumsum(1)
    found, alarmed = (t[:, flagged - 1].double() if flagged else t.new_zeros(len(t)).double() for t in (hits, drawn))
    if len(ends) < len(truth):
        hits, drawn = hits[:, ends], drawn[:, ends]
    alarms = drawn - hits
    positives, negatives = hits[:, -1].double(), alarms[:, -1].double()
    more_hits, more_alarms = hits.diff(dim=1), alarms.diff(dim=1)
    precision_at = hits / drawn.clamp(min=1)
    under = ((hits[:, 1:] + hits[:, :-1]) * more_alarms).sum(1, dtype=torch.float64) + hits[:, 0] * alarms[:, 0]
    ap = (more_hits * precision_at[:, 1:]).sum(1, dtype=torch.float64) + hits[:, 0] * precision_at[:, 0]
    enough = (positives * (0.95 - 1e-12)).ceil().to(hits.dtype)
    reached = torch.searchsorted(hits, enough[:, None])
    fpr95 = alarms.gather(1, reached)[:, 0] / negatives
    f1 = 2 * found / (alarmed + positives)
    return torch.stack([under / (2 * positives * negatives), ap / positives, fpr95, f1], 1)


def _ends(ordered: Tensor) -> Tensor:
    """Positions where a run of equal scores ends: a threshold cannot tell its members apart."""
    last = torch.ones(len(ordered), dtype=torch.bool)
    last[:-1] = ordered[:-1] != ordered[1:]
    return last.nonzero().flatten()


def _redrawn(count: int, truth: Tensor, generator: torch.Generator) -> Tensor:
    weights = torch.zeros(count, len(truth), dtype=torch.float32 if len(truth) < COUNTABLE else torch.float64)
    for kind in (truth, ~truth):
        own = kind.nonzero().flatten()
        drawn = own[torch.randint(len(own), (count, len(own)), generator=generator)]
        weights.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=weights.dtype))
    return weights


def findings_of(
    result: Evaluation,
    check: str,
    where: Mapping[str, str],
    settings: Mapping[str, Any],
    evidence: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Every estimate as a finding; a share of nothing has no value. evidence: of the AUROC."""
    made = []
    for name, e in result.estimates.items():
        value, low, high = (e.value, e.low, e.high) if e.n else (None, None, None)
        more = (evidence or {}) if name == "auroc" else {}
        made.append(Finding(check, name, value, e.n, low, high, where, settings, more))
    return made


def _share(hits: int, of: int) -> Estimate:
    """A share, which says nothing where it is a share of nothing."""
    return Estimate(hits / of, *wilson_interval(hits, of), of) if of else Estimate(0.0, 0.0, 1.0, 0)


def _estimate(value: Tensor, spread: Tensor, n: int, able: int) -> Estimate:
    """able: how many samples could each have shown that the figure is not at its end."""
    # A sample drawn twice ties with itself, which lifts average precision a little in every resampling: the interval is
    # shifted back by what the resamplings lie above the value on average.
    levels = spread.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)) - (spread.mean() - value)
    low, high = levels.clamp(0, 1).tolist()
    end = value.round()
    if float((spread - end).abs().max()) < ROUNDING:
        # Nothing went wrong, so nothing can in a resampling either: Wilson's bound for none of so many.
        low, high = wilson_interval(able if end else 0, able)
    return Estimate(float(value), *around(float(value), (low, high)), n)
