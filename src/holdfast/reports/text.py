"""Names and numbers as they appear in every rendering."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SHARES = frozenset(
    {
        "ap",
        "attack_drop",
        "attack_error",
        "auroc",
        "bias_gap",
        "cell_gap",
        "corruption_drop",
        "corruption_error",
        "drop",
        "ece",
        "ece_adaptive",
        "f1",
        "false_alarm_rate",
        "fpr95",
        "group_gap",
        "harmonic_mean",
        "lead",
        "mce",
        "mean_corruption_drop",
        "precision",
        "recall",
        "saliency_half_area",
        "slice_gap",
        "worst_group_drop",
        *(f"ood_{name}" for name in ("ap", "auroc", "f1", "false_alarm_rate", "fpr95", "precision", "recall")),
        *(
            f"{of}accuracy"
            for of in (
                "", "average_", "balanced_", "bias_aligned_", "bias_conflicting_", "corruption_", "group_",
                "group_balanced_", "mean_corruption_", "robust_", "slice_", "top_5_", "worst_group_",
            )
        ),
    }
)  # fmt: skip
"""Findings whose value is a share: shown in percent."""
DIFFERENCES = frozenset({name for name in SHARES if name.endswith(("drop", "gap"))} | {"lead"})
"""Shares that are the difference of two others: shown in points."""
FIXED = frozenset({"brier", "nll", "saliency_agreement", "saliency_entropy"})
"""Numbers of about the size of 1, with three digits after the point."""
FLAGS = frozenset({"trust_check", "trusted"})
CHANCES = frozenset({"delong_p", "mcnemar_p"})


def finite(value: object) -> float | None:
    """The number, or None where there is none to show."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def percent(value: float) -> str:
    """A share in percent, without the sign. Nothing is not less than nothing.

    >>> percent(0.7125), percent(1), percent(-0.0004)
    ('71.2', '100.0', '0.0')
    """
    text = f"{value * 100:.1f}"
    return "0.0" if text == "-0.0" else text


def number(name: str, value: float) -> str:
    """The value of a finding as every rendering writes it, without its unit: one way a kind.

    >>> number("accuracy", 0.712), number("nll", 0.83124), number("mcnemar_p", 0.00012345), number("trusted", 1.0)
    ('71.2', '0.831', '0.00012', 'yes')
    """
    if name in SHARES:
        return percent(value)
    if name in FIXED:
        return f"{value:.3f}"
    if name in FLAGS:
        return "yes" if value else "no"
    return f"{value:.2g}" if name in CHANCES else f"{value:.4g}"


def exact(share: float) -> str:
    """What a gate judges, written as thresholds are, and more finely.

    >>> exact(0.69962), exact(-0.0)
    ('0.6996', '0.0000')
    """
    return f"{share:z.4f}"


def unit(name: str) -> str:
    return "points" if name in DIFFERENCES else "%" if name in SHARES else ""


def quantity(name: str, value: float) -> str:
    """The value of a finding with its unit.

    >>> quantity("accuracy", 0.712), quantity("drop", -0.0712), quantity("top_eigenvalue", 11.93182)
    ('71.2 %', '-7.1 points', '11.93')
    """
    return f"{number(name, value)} {unit(name)}".rstrip()


def interval(name: str, low: float | None, high: float | None) -> str:
    """The interval of a finding; empty where it has none.

    >>> interval("accuracy", 0.5, 0.75), interval("nll", 0.5, None)
    ('50.0 to 75.0 %', '')
    """
    low, high = finite(low), finite(high)
    return "" if low is None or high is None else f"{number(name, low)} to {quantity(name, high)}"


def part(where: Mapping[str, str]) -> str:
    """The part of the data a finding speaks of.

    >>> part({}), part({"class": "3"}), part({"bias": "aligned"})
    ('all', 'class 3', 'aligned')
    """
    return ", ".join(v if k == "bias" else f"{k} {v}" for k, v in where.items()) or "all"


def setting(value: Any) -> str:
    """A setting as a person would write it.

    >>> setting(None), setting(True), setting([1, 2]), setting(1e-4)
    ('none', 'yes', '1, 2', '0.0001')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(v) for v in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {setting(v)}" for k, v in value.items()) or "none"
    return str(value)
