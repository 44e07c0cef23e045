"""Metrics of predictions, their confidence intervals and significance tests, as pure functions."""

from statistics import harmonic_mean

from holdfast.metrics.calibration import CalibrationError, Reliability, bin_edges, brier, ece, nll, reliability, top_k
from holdfast.metrics.intervals import (
    RESAMPLES,
    Estimate,
    bootstrap,
    bounded_mean,
    combined,
    lowest,
    mean_interval,
    proportion,
    widest_gap,
    wilson_interval,
    worst,
)
from holdfast.metrics.significance import (
    McNemar,
    Paired,
    benjamini_hochberg,
    fisher_p,
    holm,
    mcnemar,
    paired_auroc,
    paired_difference,
    placements,
    sign_test,
)

__all__ = [
    "RESAMPLES", "CalibrationError", "Estimate", "McNemar", "Paired", "Reliability", "benjamini_hochberg",
    "bin_edges", "bootstrap", "bounded_mean", "brier", "combined", "ece", "fisher_p", "harmonic_mean", "holm",
    "lowest", "mcnemar", "mean_interval", "nll", "paired_auroc", "paired_difference", "placements", "proportion",
    "reliability", "sign_test", "top_k", "widest_gap", "wilson_interval", "worst",
]  # fmt: skip
