"""Fused scores: z-scores of held-out data, joined as told."""

from __future__ import annotations

import pytest
import torch

from holdfast.detect import Features, Fused, Mahalanobis, auroc, make_detector
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
    torch.testing.assert_close(found, (both.mean(1) if combine == "mean" else both.amax(1)).float())


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
