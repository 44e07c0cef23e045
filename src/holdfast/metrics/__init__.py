"""Metrics of predictions, their confidence intervals and significance tests, as pure functions."""

from statistics import harmonic_mean

from holdfast.metrics.calibration import (
    CalibrationError,
    Reliability,
    RiskCoverage,
    bin_edges,
    brier,
    ece,
    fit_temperature,
    nll,
    reliability,
    risk_coverage,
    threshold_for_coverage,
    threshold_for_risk,
    top_k,
)
from holdfast.metrics.confident_learning import (
    LabelErrors,
    confident_joint,
    estimate_noise,
    estimated_joint,
    find_label_errors,
)
from holdfast.metrics.intervals import (
    RESAMPLES,
    Estimate,
    bootstrap,
    bounded_mean,
    combined,
    lowest,
    mean_interval,
    mean_of_shares,
    positive_mean,
    proportion,
    proportion_interval,
    share_interval,
    widest_gap,
    wilson_interval,
    worst,
)
from holdfast.metrics.significance import (
    McNemar,
    Paired,
    auroc_interval,
    benjamini_hochberg,
    fisher_p,
    fpr_interval,
    holm,
    mcnemar,
    paired_auroc,
    paired_difference,
    placements,
    sign_test,
)

__all__ = [
    "RESAMPLES", "CalibrationError", "Estimate", "LabelErrors", "McNemar", "Paired", "Reliability", "RiskCoverage",
    "auroc_interval",
    "benjamini_hochberg", "bin_edges", "bootstrap", "bounded_mean", "brier", "combined", "confident_joint", "ece",
    "estimate_noise", "estimated_joint", "find_label_errors", "fisher_p",
    "fit_temperature", "fpr_interval", "harmonic_mean", "holm", "lowest", "mcnemar", "mean_interval", "mean_of_shares",
    "nll", "paired_auroc", "paired_difference", "placements", "positive_mean", "proportion", "proportion_interval",
    "reliability", "risk_coverage", "share_interval", "sign_test", "threshold_for_coverage", "threshold_for_risk",
    "top_k", "widest_gap", "wilson_interval", "worst",
]  # fmt: skip
