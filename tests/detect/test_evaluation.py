"""Evaluation against scikit-learn; intervals against a plain bootstrap and known coverage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from torch import Tensor

from holdfast.detect import Threshold, auroc, evaluate_scores
from holdfast.detect.evaluation import curves
from holdfast.errors import HoldfastError
from holdfast.metrics import share_interval


def sample(n: int = 400, share: float = 0.1, *, seed: int = 0, digits: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(n, generator=generator) < share
    scores = torch.randn(n, generator=generator) + 1.5 * truth
    return (scores if digits is None else (scores * 10**digits).round() / 10**digits), truth


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_numbers_are_those_of_scikit_learn(digits: int | None) -> None:
    scores, truth = sample(digits=digits)
    found = evaluate_scores(scores, truth, threshold=Threshold(1.25), resamples=1)
    flags = scores.numpy() > 1.25
    false_alarms, recall, _ = metrics.roc_curve(truth, scores.double(), drop_intermediate=False)
    expected = {
        "auroc": metrics.roc_auc_score(truth, scores.double()),
        "ap": metrics.average_precision_score(truth, scores.double()),
        "fpr95": false_alarms[np.argmax(recall >= 0.95)],
        "precision": metrics.precision_score(truth, flags),
        "recall": metrics.recall_score(truth, flags),
        "f1": metrics.f1_score(truth, flags),
        "false_alarm_rate": flags[~truth.numpy()].mean(),
    }
    assert {k: e.value for k, e in found.estimates.items()} == pytest.approx(expected)
    (tn, fp), (fn, tp) = metrics.confusion_matrix(truth, flags)
    assert found.confusion == {"true_positive": tp, "false_positive": fp, "false_negative": fn, "true_negative": tn}


@pytest.mark.slow
def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    scores, truth = sample(200, 0.2)
    found = evaluate_scores(scores, truth, resamples=2000).ranking
    rng = np.random.default_rng(0)
    normal, anomalous = scores[~truth].double().numpy(), scores[truth].double().numpy()
    areas, precisions = [], []
    for _ in range(400):
        s = np.concatenate([rng.choice(normal, len(normal)), rng.choice(anomalous, len(anomalous))])
        y = np.r_[np.zeros(len(normal)), np.ones(len(anomalous))]
        areas.append(metrics.roc_auc_score(y, s))
        precisions.append(metrics.average_precision_score(y, s))
    for name, values in (("auroc", areas), ("ap", precisions)):
        low, high = np.quantile(values, [0.025, 0.975])
        assert found[name].low == pytest.approx(low, abs=0.02)
        assert found[name].high == pytest.approx(high, abs=0.02)


@pytest.mark.slow
def test_what_resampling_lifts_does_not_move_the_interval() -> None:
    """A sample drawn twice ties with itself: resamplings of a small set have the higher average precision. Only their
    spread is used."""
    generator = torch.Generator().manual_seed(0)
    scores, truth = torch.randn(80, generator=generator), torch.arange(80) < 8
    found = evaluate_scores(scores, truth, resamples=2000).ranking["ap"]
    rng = np.random.default_rng(0)
    normal, anomalous = scores[~truth].double().numpy(), scores[truth].double().numpy()
    y = np.r_[np.zeros(len(normal)), np.ones(len(anomalous))]
    drawn = [
        metrics.average_precision_score(
            y, np.concatenate([rng.choice(normal, len(normal)), rng.choice(anomalous, len(anomalous))])
        )
        for _ in range(1000)
    ]
    assert np.mean(drawn) - found.value > 0.01
    assert (found.low, found.high) == pytest.approx(share_interval(found.value, float(np.var(drawn)), 8), abs=0.01)


def test_nineteen_of_twenty_are_95_percent() -> None:
    """The last anomaly need not be caught, so the normal samples above it raise no alarm."""
    truth = torch.arange(60) < 20
    scores = torch.where(truth, 2.0, 1.0)
    scores[19] = 0.0
    assert evaluate_scores(scores, truth, resamples=1).ranking["fpr95"].value == 0
    scores[18] = 0.0
    assert evaluate_scores(scores, truth, resamples=1).ranking["fpr95"].value == 1


def test_with_52_anomalies_the_area_is_uncertain_by_the_figure_the_report_left_out() -> None:
    """FIELD, section 5: a standard error of about 0.026 at an area of 0.92."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.arange(1052) < 52
    scores = torch.randn(1052, generator=generator) + 1.99 * truth  # Φ(1.99/√2) = 0.92
    found = evaluate_scores(scores, truth).ranking["auroc"]
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 3.92 == pytest.approx(0.02, abs=0.01)


def test_sign_and_seeds() -> None:
    scores, truth = sample()
    assert auroc(scores, truth) > 0.8 > 0.2 > auroc(-scores, truth)
    assert (
        evaluate_scores(scores, truth, seed=1)
        == evaluate_scores(scores, truth, seed=1)
        != evaluate_scores(scores, truth, seed=2)
    )


def test_curves_end_where_they_must() -> None:
    scores, truth = sample()
    drawn = curves(scores, truth, points=50)
    assert drawn["roc"][0] == [0.0, 0.0]
    assert drawn["roc"][-1] == [1.0, 1.0]
    assert drawn["pr"][-1] == pytest.approx([1.0, float(truth.float().mean())])
    assert len(drawn["roc"]) <= 51


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        (torch.rand(3), torch.zeros(3), "got 0 anomalies among 3"),
        (torch.rand(3), torch.ones(3), "got 3 anomalies among 3"),
        (torch.rand(3), torch.ones(2), "must both have shape"),
        (torch.tensor([0.0, float("inf")]), torch.tensor([0, 1]), "NaN or infinite"),
    ],
)
def test_bad_input_is_refused(scores: Tensor, truth: Tensor, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        evaluate_scores(scores, truth)


def test_an_interval_holds_its_own_value_where_resampling_lifts_it() -> None:
    scores = torch.cat([torch.arange(40.0) + 1000, torch.arange(160.0)])
    truth = torch.arange(200) >= 40  # every anomaly scores below every normal sample
    found = evaluate_scores(scores, truth, resamples=500).ranking["ap"]
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high


def test_a_perfect_ranking_is_not_certain() -> None:
    """Bounds for 0 of 30 and 0 of 200, from scipy's interval of a proportion."""
    truth = torch.arange(230) < 30
    scores = truth.double() + torch.rand(230, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2
    found = evaluate_scores(scores, truth, threshold=Threshold(0.75))
    few, many = (stats.binomtest(0, n).proportion_ci(method="wilson").high for n in (30, 200))
    for name in ("auroc", "ap", "precision", "recall"):
        estimate = found.estimates[name]
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1, 1 - few, 1)), name
    estimate = found.estimates["false_alarm_rate"]
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0, 0, many))
    missed, alarmed = 2 * 30 * (1 - few) / (30 * (1 - few) + 30), 2 * 30 / (2 * 30 + 200 * many)
    f1 = found.estimates["f1"]
    assert (f1.value, f1.low, f1.high) == pytest.approx((1, 1 - np.hypot(1 - missed, 1 - alarmed), 1))
    fpr95 = found.ranking["fpr95"]
    assert (fpr95.value, fpr95.low, fpr95.high) == (0, 0, 1), "of 30 anomalies nothing bounds the lowest twentieth"
    worst = evaluate_scores(-scores, truth).ranking["auroc"]
    assert (worst.value, worst.low, worst.high) == pytest.approx((0, 0, few))


@pytest.mark.parametrize("missed", [0, 1, 2, 15, 30])
def test_a_share_has_one_interval_however_many_are_missed(missed: int) -> None:
    """scipy's Wilson interval, and the exact one of 93 % where that is wider."""
    truth = torch.arange(230) < 30
    scores = truth.double()
    scores[:missed] = 0.0
    scores[200 : 200 + missed] = 1.0
    found = evaluate_scores(scores, truth, threshold=Threshold(0.5), resamples=50).decision
    caught = 30 - missed
    counts = {"recall": (caught, 30), "precision": (caught, 30), "false_alarm_rate": (missed, 200)}
    for name, (hits, of) in counts.items():
        wilson = stats.binomtest(hits, of).proportion_ci(method="wilson")
        exact = stats.binomtest(hits, of).proportion_ci(0.93, method="exact")
        expected = hits / of, min(wilson.low, exact.low), max(wilson.high, exact.high)
        assert (found[name].value, found[name].low, found[name].high) == pytest.approx(expected), name


def test_what_is_never_flagged_has_no_known_precision() -> None:
    scores, truth = sample()
    found = evaluate_scores(scores, truth, threshold=Threshold(100.0), resamples=50).decision["precision"]
    assert (found.value, found.low, found.high) == (0, 0, 1)


def test_fpr95_is_at_least_as_uncertain_as_a_share() -> None:
    """One normal sample above the anomalies: a bootstrap alone would jump from here to none at all."""
    truth = torch.arange(230) < 30
    highs = []
    for above in (0, 1, 2):
        scores = truth.double() + torch.arange(230) / 1000
        scores[30 : 30 + above] = 5.0
        found = evaluate_scores(scores, truth, resamples=300).ranking["fpr95"]
        expected = stats.binomtest(above, 200).proportion_ci(method="wilson")
        assert found.value == pytest.approx(above / 200)
        assert found.low <= expected.low + 1e-12
        assert found.high >= expected.high - 1e-12
        highs.append(found.high)
    assert highs == sorted(highs)
