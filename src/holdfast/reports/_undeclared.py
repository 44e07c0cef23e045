"""Measures of checks that do not declare themselves yet; goes when all do."""

from __future__ import annotations

from typing import Any

from holdfast.types import Measure, Unit

DECLARED: dict[str, Any] = {
    "accuracy": (
        "Clean accuracy",
        (
            Measure("accuracy", "clean accuracy", Unit.PERCENT, "higher", gate=True, headline=True),
            Measure("balanced_accuracy", "balanced accuracy", Unit.PERCENT, "higher", gate=True),
            Measure("top_5_accuracy", "top-5 accuracy", Unit.PERCENT, "higher", gate=True),
            Measure("nll", "negative log-likelihood", Unit.NUMBER, "lower", headline=True, digits=3),
            Measure("brier", "Brier score", Unit.NUMBER, "lower", digits=3),
            Measure("ece", "expected calibration error", Unit.PERCENT, "lower", headline=True),
            Measure("ece_adaptive", "calibration error, adaptive bins", Unit.PERCENT, "lower"),
        ),
    ),
    "groups": (
        "Groups",
        (
            Measure(
                "bias_conflicting_accuracy",
                "bias-conflicting accuracy",
                Unit.PERCENT,
                "higher",
                gate=True,
                headline=True,
                drop="bias_gap",
            ),
            Measure(
                "worst_group_accuracy",
                "worst-group accuracy",
                Unit.PERCENT,
                "higher",
                gate=True,
                headline=True,
                drop="worst_group_drop",
            ),
            Measure("group_balanced_accuracy", "group-balanced accuracy", Unit.PERCENT, "higher", gate=True),
            Measure("average_accuracy", "average accuracy", Unit.PERCENT),
            Measure("bias_aligned_accuracy", "bias-aligned accuracy", Unit.PERCENT, gate=True),
            Measure("harmonic_mean", "harmonic mean of both", Unit.PERCENT, gate=True),
            Measure("group_accuracy", "accuracy by group", Unit.PERCENT),
            Measure("bias_gap", "gap between bias-aligned and bias-conflicting", Unit.POINTS, "lower"),
            Measure("group_gap", "gap between best and worst group", Unit.POINTS, "lower"),
            Measure("cell_gap", "gap between best and worst class × group cell", Unit.POINTS, "lower"),
            Measure("worst_group_drop", "drop from clean accuracy to the worst group", Unit.POINTS, "lower"),
        ),
    ),
    "slices": (
        "Slices",
        (
            Measure(
                "slice_accuracy", "accuracy in a weak slice", Unit.PERCENT, "higher", headline=True, drop="slice_gap"
            ),
            Measure("slice_gap", "below the rest by", Unit.POINTS, "lower"),
            Measure("confirmed_slices", "weak slices confirmed", Unit.COUNT, "lower", headline=True),
        ),
    ),
    "corruptions": (
        "Corruptions",
        (
            Measure(
                "mean_corruption_accuracy",
                "accuracy under corruptions",
                Unit.PERCENT,
                "higher",
                gate=True,
                headline=True,
                headline_where={"strength": "1"},
                drop="mean_corruption_drop",
            ),
            Measure("mean_corruption_drop", "drop under corruptions", Unit.POINTS, "lower"),
            Measure("corruption_accuracy", "accuracy under one corruption", Unit.PERCENT),
            Measure("corruption_drop", "drop under one corruption", Unit.POINTS, "lower"),
            Measure("corruption_error", "error under one corruption", Unit.PERCENT, "lower"),
            Measure("mce", "mean corruption error", Unit.PERCENT, "lower"),
        ),
    ),
    "attacks": (
        "Attacks",
        (
            Measure(
                "robust_accuracy",
                "accuracy under attack",
                Unit.PERCENT,
                "higher",
                gate=True,
                headline=True,
                headline_where={"radius": "8/255"},
                drop="attack_drop",
            ),
            Measure("attack_drop", "drop under attack", Unit.POINTS, "lower"),
            Measure("attack_error", "error under one attack", Unit.PERCENT, "lower"),
            Measure("trusted", "trust checks passed", Unit.FLAG, "higher", headline=True),
            Measure("trust_check", "trust check", Unit.FLAG, "higher"),
        ),
    ),
    "ood": (
        "Out-of-distribution inputs",
        (
            Measure(
                "ood_auroc",
                "AUROC on OOD images",
                Unit.PERCENT,
                "higher",
                gate=True,
                headline=True,
                headline_where={"score": "msp"},
            ),
            Measure("ood_ap", "average precision", Unit.PERCENT),
            Measure("ood_fpr95", "FPR95", Unit.PERCENT, "lower"),
            Measure("ood_precision", "precision", Unit.PERCENT),
            Measure("ood_recall", "recall", Unit.PERCENT),
            Measure("ood_f1", "F1", Unit.PERCENT),
            Measure("ood_false_alarm_rate", "false alarms", Unit.PERCENT, "lower"),
        ),
    ),
    "curvature": (
        "Curvature",
        (
            Measure("top_eigenvalue", "largest Hessian eigenvalue λ1", Unit.NUMBER, "lower", headline=True),
            Measure("fifth_eigenvalue", "λ5", Unit.NUMBER, "neither"),
            Measure("eigenvalue_ratio", "λ1/λ5", Unit.NUMBER, "neither", headline=True),
        ),
    ),
    "saliency": (
        "Saliency",
        (
            Measure("saliency_half_area", "area that holds half of the map", Unit.PERCENT, "neither", headline=True),
            Measure("saliency_entropy", "entropy of the map", Unit.NUMBER, "neither", digits=3),
            Measure("saliency_agreement", "agreement of maps", Unit.NUMBER, "neither", digits=3),
        ),
    ),
    "detect": (
        "Detection",
        tuple(
            Measure(n, t, Unit.PERCENT, b)  # type: ignore[arg-type]
            for n, t, b in (
                ("auroc", "AUROC", "higher"),
                ("ap", "average precision", "higher"),
                ("fpr95", "FPR95", "lower"),
                ("precision", "precision", "higher"),
                ("recall", "recall", "higher"),
                ("f1", "F1", "higher"),
                ("false_alarm_rate", "false alarms", "lower"),
            )
        ),
    ),
}
