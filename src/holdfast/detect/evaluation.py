"""From a score to an alarm, and how well scores separate anomalies (the positive class) from normal data, with
intervals. Pure functions.

A threshold is set on held-out normal data, kept, and never touched by test data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast import metrics
from holdfast.errors import HoldfastError, require
from holdfast.files import write_atomic
from holdfast.metrics import Estimate, auroc_interval, fpr_interval, placements, proportion_interval, share_interval
from holdfast.rng import evenly
from holdfast.types import Finding, Measure

RULES: Final = ("quantile", "cost", "given")


@dataclass(frozen=True)
class Threshold:
    """Scores above ``value`` are flagged.

    rule: how it was set. false_alarm_rate: the share of normal data it was meant to flag, or did on the data it was
    set on. n: how many normal scores it rests on.
    """

    value: float
    rule: str = "given"
    false_alarm_rate: float | None = None
    n: int = 0

    def __post_init__(self) -> None:
        require(math.isfinite(self.value), f"a threshold must be finite, got {self.value}")
        require(self.rule in RULES, f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")

    def flag(self, scores: Tensor) -> Tensor:
        return scores > self.value

    @classmethod
    def from_normal(cls, scores: Tensor, *, false_alarm_rate: float = 0.05) -> Threshold:
        """The ⌈(n + 1)(1 − rate)⌉-th smallest of n held-out normal scores.

        With it a new normal sample is flagged with probability at most ``false_alarm_rate``, whatever the scores'
        distribution; the plain quantile promises a little less.

        >>> Threshold.from_normal(torch.arange(99.0), false_alarm_rate=0.05).value
        94.0
        """
        _check(scores, "held-out normal")
        rank = rank_of(false_alarm_rate, len(scores))
        return cls(float(scores.double().kthvalue(rank).values), "quantile", false_alarm_rate, len(scores))

    @classmethod
    def from_costs(
        cls, normal: Tensor, anomalous: Tensor, *, false_alarm: float, miss: float, anomaly_rate: float
    ) -> Threshold:
        """The threshold with the least expected cost on held-out scores of both kinds.

        false_alarm, miss: what one of each costs. anomaly_rate: share of anomalies expected in use, which is rarely
        their share in the held-out data.
        """
        _check(normal, "held-out normal")
        _check(anomalous, "held-out anomalous")
        require(false_alarm > 0 and miss > 0, f"costs must be > 0, got false_alarm {false_alarm} and miss {miss}")
        require(0 < anomaly_rate < 1, f"anomaly_rate must be in (0, 1), got {anomaly_rate}")
        normal, anomalous = normal.double().sort().values, anomalous.double().sort().values
        values = torch.unique(torch.cat([normal, anomalous]))
        # between neighbouring scores lies the same decision; the middle leaves room on both sides
        candidates = torch.cat([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])
        alarms = 1 - torch.searchsorted(normal, candidates, right=True) / len(normal)
        misses = torch.searchsorted(anomalous, candidates, right=True) / len(anomalous)
        best = int((false_alarm * (1 - anomaly_rate) * alarms + miss * anomaly_rate * misses).argmin())
        return cls(float(candidates[best]), "cost", float(alarms[best]), len(normal))

    def save(self, path: str | Path) -> None:
        write_atomic(Path(path), (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Threshold:
        path = Path(path)
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise HoldfastError(f"no threshold at {path}; set one with Threshold.from_normal") from None
        except (OSError, ValueError, TypeError) as error:
            raise HoldfastError(f"cannot read the threshold {path}: {error}; set it again") from error


def rank_of(false_alarm_rate: float, n: int) -> int:
    """Which of n held-out normal scores, counted from the smallest, is the threshold; refused where n are too few.

    >>> rank_of(0.05, 99)
    95
    """
    require(0 < false_alarm_rate < 1, f"false_alarm_rate must be in (0, 1), got {false_alarm_rate}")
    rank = math.ceil((n + 1) * (1 - false_alarm_rate) - 1e-9)
    require(
        rank <= n,
        f"a false-alarm rate of {false_alarm_rate:g} needs at least {math.ceil(1 / false_alarm_rate - 1e-9) - 1} "
        f"held-out normal samples, got {n}; hold out more (held_out), or allow more false alarms (false_alarm_rate)",
    )
    return rank


def _check(scores: Tensor, what: str) -> None:
    require(scores.ndim == 1, f"{what} scores must have shape (N,), got {tuple(scores.shape)}")
    require(len(scores) > 0, f"a threshold needs {what} scores, got none; hold some data out")
    require(bool(torch.isfinite(scores).all()), f"{what} scores have NaN or infinite values; check the detector")


MEASURES: Final[tuple[Measure, ...]] = (
    Measure("auroc", "AUROC"),
    Measure("ap", "average precision"),
    Measure("fpr95", "FPR95", better="lower"),
    Measure("precision", "precision"),
    Measure("recall", "recall"),
    Measure("f1", "F1"),
    Measure("false_alarm_rate", "false alarms", better="lower"),
)
RESAMPLES = 1000
BINS = 40
"""Of the histograms in a report."""
CELLS = 2**22
BLOCK = 2**18
"""Cells to work on at a time: as many as a processor's cache holds."""
COUNTABLE = 2**24
"""Numbers up to this are whole in float32."""


@dataclass(frozen=True)
class Evaluation:
    """How well scores separate anomalous from normal samples.

    ranking: auroc; ap (average precision, the step-wise sum, not the trapezoid); fpr95 (share of normal data that is
    flagged when the threshold is low enough to catch 95 % of the anomalies).
    decision: precision, recall, f1 and false_alarm_rate at the threshold; empty without one. confusion: true/false
    positives and negatives at the threshold.

    Intervals: those of a proportion for the shares (precision, recall, false_alarm_rate), and with an effective sample
    size for auroc and ap; f1 combines those of recall and false alarms. That of fpr95 takes into account that its
    threshold is uncertain: with fewer than 72 anomalies its upper end is 1. docs/methods/statistics.md shows what they
    cover.
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
    """Judge scores (N,) against the truth (N,) bool. resamples: for the interval of average precision; samples are
    redrawn within each kind, so both keep their number.

    >>> scores, truth = torch.tensor([0.1, 0.4, 0.3, 0.9]), torch.tensor([False, False, True, True])
    >>> found = evaluate_scores(scores, truth, resamples=10)
    >>> found.ranking["auroc"].value
    0.75
    """
    require(resamples >= 1, f"resamples must be >= 1, got {resamples}; without them there is no interval")
    ordered, truth = _ordered(scores, anomalous)
    low, high = ordered[~truth], ordered[truth]
    ap = _average_precision(ordered, truth, resamples, torch.Generator().manual_seed(seed))
    ranking = {"auroc": auroc_interval(low, high), "ap": ap, "fpr95": fpr_interval(low, high)}
    if threshold is None:
        return Evaluation(len(low), len(high), ranking, {}, {})
    caught, alarms, m, n = int(threshold.flag(high).sum()), int(threshold.flag(low).sum()), len(high), len(low)
    recall, false_alarm_rate = _share(caught, m), _share(alarms, n)
    f1 = metrics.combined(lambda p: 2 * p[0] * m / ((1 + p[0]) * m + p[1] * n), [recall, false_alarm_rate])
    decision = {
        "precision": _share(caught, caught + alarms),
        "recall": recall,
        "f1": replace(f1, low=max(0.0, f1.low), high=min(1.0, f1.high)),
        "false_alarm_rate": false_alarm_rate,
    }
    confusion = {"true_positive": caught, "false_positive": alarms}
    confusion |= {"false_negative": m - caught, "true_negative": n - alarms}
    return Evaluation(len(low), len(high), ranking, decision, confusion)


def auroc(scores: Tensor, anomalous: Tensor) -> float:
    """The probability that an anomaly scores above a normal sample; a tie counts half.

    >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([False, False, True, True]))
    0.875
    """
    ordered, truth = _ordered(scores, anomalous)
    return float(placements(ordered[~truth], ordered[truth])[1].mean())


def curves(scores: Tensor, anomalous: Tensor, *, points: int = 200) -> dict[str, list[list[float]]]:
    """roc: [false alarms, recall] and pr: [recall, precision], thinned to so many points, for a report."""
    ordered, truth = _ordered(scores, anomalous)
    ends = _ends(ordered)
    tp, fp = truth.cumsum(0)[ends].double(), (~truth).cumsum(0)[ends].double()
    roc = torch.stack([fp / fp[-1], tp / tp[-1]], 1)
    pr = torch.stack([tp / tp[-1], tp / (tp + fp)], 1)
    kept = torch.unique(evenly(len(ends), points))
    return {"roc": [[0.0, 0.0], *roc[kept].tolist()], "pr": pr[kept].tolist()}


def score_evidence(scores: Tensor, truth: Tensor, cut: Threshold | None, *, of: str, points: int) -> dict[str, Any]:
    """What a report draws of scores: curves, and histograms of normal samples and ``of`` the others."""
    low, high = float(scores.min()), float(scores.max())
    kinds = {"normal": scores[~truth].float(), of: scores[truth].float()}
    counts = {name: torch.histc(own, BINS, low, high if high > low else low + 1) for name, own in kinds.items()}
    return {
        "curves": curves(scores, truth, points=points),
        "histogram": {"low": low, "high": high, **{name: own.int().tolist() for name, own in counts.items()}},
        "threshold": None if cut is None else cut.value,
    }


def _ordered(scores: Tensor, anomalous: Tensor) -> tuple[Tensor, Tensor]:
    """Scores from the highest to the lowest and the truth in that order, both checked."""
    scores, anomalous = scores.double().cpu(), anomalous.bool().cpu()
    fits = scores.ndim == 1 and scores.shape == anomalous.shape
    require(fits, f"scores {tuple(scores.shape)} and truth {tuple(anomalous.shape)} must both have shape (N,)")
    require(bool(torch.isfinite(scores).all()), "scores have NaN or infinite values; check the detector")
    n, positives = len(scores), int(anomalous.sum())
    require(0 < positives < n, f"both kinds are needed, got {positives} anomalies among {n}; add what is missing")
    order = scores.argsort(descending=True, stable=True)
    return scores[order], anomalous[order]


def _average_precision(ordered: Tensor, truth: Tensor, resamples: int, generator: torch.Generator) -> Estimate:
    """With the interval of a proportion that varies as much as redrawn samples do."""
    n, ends = len(truth), _ends(ordered)
    step = max(1, CELLS // n)
    value = float(_precisions(torch.ones(1, n, dtype=torch.float64), truth, ends))
    spread = torch.cat([
        _precisions(_redrawn(min(step, resamples - first), truth, generator), truth, ends)
        for first in range(0, resamples, step)
    ])  # fmt: skip
    return Estimate(value, *share_interval(value, float(spread.var(correction=0)), int(truth.sum())), n)


def _precisions(weights: Tensor, truth: Tensor, ends: Tensor) -> Tensor:
    """(B,) average precision for weights (B, N): how often each sample, in falling order of score, was drawn."""
    rows = max(1, BLOCK // weights.shape[1])
    made = []
    for drawn in torch.split(weights, rows):
        hits, drawn = (drawn * truth).cumsum(1)[:, ends], drawn.cumsum(1)[:, ends]
        precision_at = hits / drawn.clamp(min=1)
        ap = (hits.diff(dim=1) * precision_at[:, 1:]).sum(1, dtype=torch.float64) + hits[:, 0] * precision_at[:, 0]
        made.append(ap / hits[:, -1])
    return torch.cat(made)


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
    return Estimate(hits / of, *proportion_interval(hits, of), of) if of else Estimate(0.0, 0.0, 1.0, 0)
