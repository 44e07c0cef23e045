"""From a score to an alarm. A threshold is set on held-out normal data, kept, and never touched by test data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require
from holdfast.files import write_atomic

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
