"""Fused scores: z-scores of held-out data, joined as told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.detect import Features, Fused, Mahalanobis, Threshold, auroc, make_detector
from holdfast.errors import HoldfastError
from tests.conformance.test_detectors import seen


def fused(*names: str, combine: str = "mean") -> Fused:
    return Fused([make_detector(name) for name in names], combine=combine)


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_the_scores_are_z_scores_of_held_out_data(combine: str) -> None:
    train, held, new = seen(120), seen(60, seed=20), seen(30, seed=40, anomalous=True)
    found = fused("reconstruction", "knn", combine=combine).fit_features(train, held_out=held).score_features(new)
    z = []
    for name in ("reconstruction", "knn"):
        alone = make_detector(name).fit_features(train)
        normal = alone.score_features(held).double()
        z.append((alone.score_features(new).double() - normal.mean()) / normal.std())
    both = torch.stack(z, 1)
    joined = both.clamp(min=-2).mean(1) if combine == "mean" else both.amax(1)
    torch.testing.assert_close(found, joined.float())


def normal_scores(n: int, *, seed: int) -> Features:
    """Three scores that are independent and Gaussian, each with a unit of its own."""
    z = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return in_units(z)


def in_units(z: Tensor) -> Features:
    return Features(reconstruction=100 + 20 * z[:, 0], kl=5 + z[:, 1], regret=0.1 * z[:, 2])


THREE = ("reconstruction", "kl", "likelihood-regret")


def test_one_score_that_finds_it_very_normal_does_not_outvote_two_alarms() -> None:
    """Noise that a classifier is very sure of: (5 + 3 - 2) / 3 = 2, and (5 + 3 - 14) / 3 = -2 without the limit."""
    detector = fused(*THREE).fit_features(normal_scores(200, seed=0), held_out=normal_scores(20_000, seed=1))
    threshold = Threshold.from_normal(detector.score_features(normal_scores(20_000, seed=2)), false_alarm_rate=0.05)
    new = in_units(torch.tensor([[5.0, 3.0, -14.0], [-14.0, 5.0, 3.0], [0.0, 0.0, -14.0], [-14.0, -14.0, -14.0]]))
    scores = detector.score_features(new)
    torch.testing.assert_close(scores, torch.tensor([2.0, 2.0, -2 / 3, -2.0]), atol=0.1, rtol=0)
    assert threshold.flag(scores).tolist() == [True, True, False, False]
    alarms = threshold.flag(detector.score_features(normal_scores(20_000, seed=3))).double().mean()
    assert abs(alarms - 0.05) < 0.009  # four standard errors, of the threshold and of this share


def test_the_largest_and_a_score_alone_have_no_limit() -> None:
    train, held = normal_scores(200, seed=0), normal_scores(20_000, seed=1)
    new = in_units(torch.full((1, 3), -14.0))
    for detector in (fused(*THREE, combine="max"), fused("kl")):
        found = detector.fit_features(train, held_out=held).score_features(new)
        torch.testing.assert_close(found, torch.tensor([-14.0]), atol=0.3, rtol=0)


def test_held_out_normal_data_has_mean_zero() -> None:
    held = seen(200, seed=20)
    detector = fused("kl", "mahalanobis").fit_features(seen(300), held_out=held)
    z = detector.z_scores(held)
    torch.testing.assert_close(z.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(z.std(0), torch.ones(2, dtype=torch.float64))


def test_data_it_learned_from_would_have_made_the_scale_too_small() -> None:
    """Distances from a mean and covariance of these very samples: that is why part of the data is held out."""
    train, held = seen(36), seen(200, seed=20)
    both = (Fused([Mahalanobis(shrinkage=0.0)]).fit_features(train, held_out=part) for part in (held, train))
    honest, fooled = (detector.score_features(held).mean() for detector in both)
    assert abs(honest) < 1e-5
    assert fooled > 1


def test_together_they_find_both_kinds() -> None:
    normal, n = seen(90, seed=20), 90
    damaged = Features(**{**dict(normal.items()), "reconstruction": normal.reconstruction + 6})  # type: ignore[operator]
    foreign = Features(**{**dict(seen(n, seed=60, anomalous=True).items()), "reconstruction": normal.reconstruction})
    truth = torch.arange(3 * n) >= n
    detector = fused("reconstruction", "knn").fit_features(seen(300))
    found = {}
    for name, own in (("fused", detector), *((m.name, m) for m in detector.members)):
        found[name] = auroc(torch.cat([own.score_features(s) for s in (normal, damaged, foreign)]), truth)
    assert found["fused"] > 0.97 > max(found["reconstruction"], found["knn"])


def test_bad_input_is_refused() -> None:
    with pytest.raises(HoldfastError, match="kl gives every held-out normal sample the same score"):
        fused("kl").fit_features(Features(kl=torch.ones(50)))
    with pytest.raises(HoldfastError, match="a member twice"):
        fused("kl", "kl")
    with pytest.raises(HoldfastError, match="at least 10 normal samples"):
        fused("kl").fit_features(Features(kl=torch.rand(5)))
    with pytest.raises(HoldfastError, match="combine must be one of mean, max"):
        fused("kl", combine="sum")
