"""Each score against an independent implementation: scikit-learn, scipy, pytorch-ood, or the formula by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from holdfast.detect import (
    DETECTORS,
    KNN,
    Features,
    LocalReconstruction,
    Mahalanobis,
    RelativeMahalanobis,
    ViM,
    auroc,
    scores,
)
from holdfast.detect.scores import shrunk_covariance, whitening
from holdfast.errors import HoldfastError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(n: int, d: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.arange(n) % k
    mixing = draw(d, d, seed=9)
    return draw(n, d, seed=seed) @ mixing + 4 * draw(k, d, seed=8)[labels], labels


def test_scores_of_logits_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
    total = math.exp(2) + 1 + math.exp(-1)
    torch.testing.assert_close(scores.msp(logits), torch.tensor([1 - math.exp(2) / total, 2 / 3]))
    torch.testing.assert_close(scores.max_logit(logits), torch.tensor([-2.0, 0.0]))
    torch.testing.assert_close(scores.energy(logits), torch.tensor([-math.log(total), -math.log(3)]))
    hot = -2 * math.log(math.exp(1) + 1 + math.exp(-0.5))
    torch.testing.assert_close(scores.energy(logits, temperature=2.0)[0], torch.tensor(hot))


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize(("n", "m", "d"), [(17, 100, 4), (40, 6000, 8), (5, 3001, 64)])
def test_neighbour_distances_are_those_of_scikit_learn(n: int, m: int, d: int, k: int) -> None:
    x, bank = draw(n, d), draw(m, d, seed=1)
    truth = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank.double().numpy()).kneighbors(x.double().numpy())
    found = scores.neighbours(x, bank, k=k, cells=50_000)[0]
    np.testing.assert_allclose(found.numpy(), truth[0], rtol=2e-6)


def test_neighbour_distances_keep_their_digits_far_from_the_origin() -> None:
    """|x|² + |b|² − 2xb would lose them all: the points are 1e-2 apart at a distance of 1e3."""
    bank = 1000 + 0.01 * draw(500, 16, seed=1)
    x = bank[:5] + 0.001
    truth = np.sort(cdist(x.double().numpy(), bank.double().numpy()), axis=1)[:, :3]
    np.testing.assert_allclose(scores.neighbours(x, bank, k=3)[0].numpy(), truth, rtol=1e-5)


def test_neighbours_among_ties_and_duplicates() -> None:
    bank = torch.zeros(3000, 4)
    assert scores.neighbours(torch.zeros(2, 4), bank, k=7)[0].abs().max() == 0
    with pytest.raises(HoldfastError, match="k must be in 1..3000"):
        scores.neighbours(torch.zeros(2, 4), bank, k=3001)


@pytest.mark.parametrize(("n", "d"), [(400, 6), (10, 30)])
def test_shrinkage_is_that_of_scikit_learn(n: int, d: int) -> None:
    x = (draw(n, d) @ draw(d, d, seed=1)).double()
    truth = LedoitWolf().fit(x.numpy())
    covariance, share = shrunk_covariance(x - x.mean(0))
    assert share == pytest.approx(truth.shrinkage_)
    np.testing.assert_allclose(covariance.numpy(), truth.covariance_)
    factor = whitening(covariance)
    np.testing.assert_allclose((factor @ factor.T).numpy(), truth.precision_, rtol=1e-6, atol=1e-9)


def test_knn_is_the_distance_to_the_kth_neighbour_on_the_sphere() -> None:
    x, bank = draw(9, 5), draw(50, 5, seed=1)
    unit = [t / t.norm(dim=1, keepdim=True) for t in (x, bank)]
    truth = np.sort(cdist(*(u.numpy() for u in unit)), axis=1)[:, 3]
    np.testing.assert_allclose(KNN(k=4).fit_features(bank).score_features(x).numpy(), truth, rtol=1e-5)
    plain = np.sort(cdist(x.numpy(), bank.numpy()), axis=1)[:, 3]
    found = KNN(k=4, normalise=False).fit_features(bank).score_features(x)
    np.testing.assert_allclose(found.numpy(), plain, rtol=1e-5)


def test_local_reconstruction_is_a_z_score_among_neighbours() -> None:
    x, bank = draw(9, 5), draw(60, 5, seed=1)
    own, known = draw(9, seed=2), draw(60, seed=3) * (1 + bank[:, 0].abs())
    detector = LocalReconstruction(k=7, normalise=False).fit_features(Features(features=bank, reconstruction=known))
    found = detector.score_features(Features(features=x, reconstruction=own))
    near = known.numpy()[np.argsort(cdist(x.numpy(), bank.numpy()), axis=1)[:, :7]]
    truth = (own.numpy() - near.mean(1)) / near.std(1, ddof=1)
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-4)
    with pytest.raises(HoldfastError, match="k must be >= 2"):
        LocalReconstruction(k=1)


def test_what_is_hard_to_draw_everywhere_nearby_is_no_anomaly() -> None:
    features = torch.cat([draw(100, 4) + 10, draw(100, 4, seed=1) - 10])
    reconstruction = torch.cat([100 + draw(100, seed=2), draw(100, seed=3)])
    detector = LocalReconstruction(k=20).fit_features(Features(features=features, reconstruction=reconstruction))
    new = Features(features=torch.tensor([[10.0] * 4, [-10.0] * 4]), reconstruction=torch.tensor([100.0, 50.0]))
    hard, anomalous = detector.score_features(new).tolist()
    assert abs(hard) < 1
    assert anomalous > 20


def test_mahalanobis_by_hand_with_the_plain_covariance() -> None:
    x, labels = classes(300, 4, 3)
    test = draw(20, 4, seed=5) * 6
    means = np.stack([x[labels == c].numpy().mean(0) for c in range(3)])
    centred = x.numpy() - means[labels]
    inverse = np.linalg.inv(centred.T @ centred / len(x))
    truth = np.stack([[(t - m) @ inverse @ (t - m) for m in means] for t in test.numpy()])
    found = Mahalanobis(shrinkage=0.0).fit_features(x, labels=labels).score_features(test)
    np.testing.assert_allclose(found.numpy(), truth.min(1), rtol=1e-4)
    everything = x.numpy() - x.numpy().mean(0)
    background = np.linalg.inv(everything.T @ everything / len(x))
    away = test.numpy() - x.numpy().mean(0)
    relative = RelativeMahalanobis(shrinkage=0.0).fit_features(x, labels=labels).score_features(test)
    truth = truth.min(1) - np.einsum("nd,de,ne->n", away, background, away)
    np.testing.assert_allclose(relative.numpy(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [90, 1000])
def test_what_is_far_out_in_any_direction_is_relatively_far(n: int, seed: int) -> None:
    """The covariance of all is at least that within classes (law of total covariance), so far out the difference of the
    distances rises in every direction, whatever the shrinkage is."""
    labels = torch.arange(n) % 3
    x = draw(n, 10, seed=seed) + 5 * draw(3, 10, seed=seed + 10)[labels]
    far = draw(2000, 10, seed=seed + 20) * 1e4
    fresh = draw(2000, 10, seed=seed + 30) + 5 * draw(3, 10, seed=seed + 10)[torch.arange(2000) % 3]
    plain, shrunk = (RelativeMahalanobis(shrinkage=s).fit_features(x, labels=labels) for s in (0.0, None))
    assert float(shrunk.score_features(far).min()) > float(shrunk.score_features(fresh).max())
    near = 30 * draw(2000, 10, seed=seed + 40)
    found = [auroc(torch.cat([d.score_features(fresh), d.score_features(near)]), torch.arange(4000) >= 2000)
             for d in (plain, shrunk)]  # fmt: skip
    assert found[1] > found[0] - 0.005


def test_vim_by_hand() -> None:
    x, test = draw(200, 6) @ draw(6, 6, seed=1), draw(15, 6, seed=2) * 3
    weight, bias = draw(3, 6, seed=3), draw(3, seed=4)
    seen, other = (Features(features=f, logits=f @ weight.T + bias) for f in (x, test))
    found = ViM(head=(weight, bias), dimension=4).fit_features(seen).score_features(other)
    origin = -np.linalg.pinv(weight.numpy()) @ bias.numpy()
    v = np.linalg.svd(x.numpy() - origin, full_matrices=False)[2]
    residual = v[4:].T  # the two directions with the least energy about the origin
    left = np.linalg.norm((x.numpy() - origin) @ residual, axis=1)
    alpha = seen.logits.numpy().max(1).sum() / left.sum()  # type: ignore[union-attr]
    virtual = alpha * np.linalg.norm((test.numpy() - origin) @ residual, axis=1)
    truth = virtual - np.log(np.exp(other.logits.numpy()).sum(1))  # type: ignore[union-attr]
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.dev
class TestPytorchOod:
    """The same scores by the library of that name, which takes higher for more anomalous as well."""

    def test_logits(self) -> None:
        detector = pytest.importorskip("pytorch_ood.detector")
        logits = draw(12, 5) * 3
        torch.testing.assert_close(scores.msp(logits) - 1, detector.MaxSoftmax.score(logits))
        torch.testing.assert_close(scores.max_logit(logits), detector.MaxLogit.score(logits))
        torch.testing.assert_close(scores.energy(logits), detector.EnergyBased.score(logits))

    def test_mahalanobis(self) -> None:
        detector = pytest.importorskip("pytorch_ood.detector")
        x, labels = classes(400, 5, 4)
        test = draw(30, 5, seed=3) * 5
        theirs = detector.Mahalanobis(nn.Identity())
        theirs.fit_features(x, labels)
        ours = Mahalanobis(shrinkage=0.0).fit_features(x, labels=labels)
        ratio = ours.score_features(test) / theirs.predict_features(test).float()
        torch.testing.assert_close(ratio, ratio[:1].expand(30), rtol=1e-2, atol=0)  # theirs has another factor
        relative = detector.RMD(nn.Identity())
        relative.fit_features(x, labels)
        mine = RelativeMahalanobis(shrinkage=0.0).fit_features(x, labels=labels).score_features(test)
        rank = torch.stack([mine, relative.predict_features(test).float()]).argsort(1).argsort(1).float()
        assert float(torch.corrcoef(rank)[0, 1]) > 0.99

    def test_knn(self) -> None:
        detector = pytest.importorskip("pytorch_ood.detector")
        bank, x = draw(200, 6), draw(20, 6, seed=1)
        theirs = detector.KNN(nn.Identity(), k=7)
        theirs.fit_features(bank, torch.zeros(200, dtype=torch.int64))
        ours = KNN(k=7).fit_features(bank).score_features(x)
        truth = torch.as_tensor(theirs.predict_features(x)).float().flatten()
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)

    def test_vim(self) -> None:
        detector = pytest.importorskip("pytorch_ood.detector")
        x, test = draw(300, 8) @ draw(8, 8, seed=1), draw(20, 8, seed=2)
        weight, bias = draw(3, 8, seed=3), draw(3, seed=4)
        theirs = detector.ViM(nn.Identity(), d=4, w=weight, b=bias)
        theirs.fit_features(x, torch.zeros(300, dtype=torch.int64))
        seen, other = (Features(features=f, logits=f @ weight.T + bias) for f in (x, test))
        ours = ViM(head=(weight, bias), dimension=4).fit_features(seen).score_features(other)
        both = torch.stack([ours, torch.as_tensor(theirs.predict_features(test)).float()])
        assert float(torch.corrcoef(both)[0, 1]) > 0.99


def test_every_detector_has_a_name_of_its_own() -> None:
    assert len(DETECTORS) == 14
