"""What every detector must do. A new one is found by its registration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.detect import DETECTORS, Detector, Features, Fused, ViM, auroc, make_detector
from holdfast.errors import HoldfastError

NAMES = sorted(DETECTORS)
WIDTH, CLASSES = 12, 3


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


HEAD = (draw(CLASSES, WIDTH, seed=50) / 3, torch.zeros(CLASSES))
CENTRES = 3 * torch.linalg.qr(draw(WIDTH, CLASSES, seed=51)).Q.T


def seen(n: int, *, anomalous: bool = False, seed: int = 0) -> Features:
    """Three clusters, each with logits that know it; or a fourth, elsewhere, that the logits are unsure of."""
    labels = torch.arange(n) % CLASSES
    noise = 0.5 * draw(n, WIDTH, seed=seed)
    elsewhere = -CENTRES.sum(0)
    features = noise + (elsewhere if anomalous else CENTRES[labels])
    logits = features @ CENTRES.T + 0.1 * draw(n, CLASSES, seed=seed + 1)
    level = 2.0 if anomalous else 0.0
    names = ("reconstruction", "kl", "drawn", "regret", "rotation")
    single = {k: level + draw(n, seed=seed + 2 + i) for i, k in enumerate(names)}
    return Features(features=features, logits=logits, labels=labels, **single)


def make(name: str) -> Detector:
    return ViM(head=(CENTRES, torch.zeros(CLASSES)), dimension=4) if name == "vim" else make_detector(name)


@pytest.mark.parametrize("name", NAMES)
class TestDetector:
    def test_higher_is_more_anomalous_and_better_than_chance(self, name: str) -> None:
        detector = make(name).fit_features(seen(300))
        normal, anomalous = (
            detector.score_features(seen(99, seed=20)),
            detector.score_features(seen(99, anomalous=True, seed=30)),
        )
        truth = torch.arange(198) >= 99
        assert auroc(torch.cat([normal, anomalous]), truth) > 0.8
        assert anomalous.mean() > normal.mean()
        assert normal.std() > 0

    def test_a_score_does_not_depend_on_its_neighbours(self, name: str) -> None:
        detector, other = make(name).fit_features(seen(120)), seen(40, seed=20)
        whole = detector.score_features(other)
        parts = torch.cat([detector.score_features(other[i : i + 7]) for i in range(0, 40, 7)])  # type: ignore[misc]
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)

    def test_fitting_again_gives_the_same(self, name: str) -> None:
        first, again = (make(name).fit_features(seen(120)).score_features(seen(30, seed=20)) for _ in range(2))
        assert torch.equal(first, again)

    def test_survives_being_saved(self, name: str) -> None:
        fused = Fused([make(name)]).fit_features(seen(120))
        copy = Fused.restored(fused.settings, fused.all_state())
        other = seen(30, seed=20)
        assert torch.equal(fused.score_features(other), copy.score_features(other))

    def test_refuses_to_score_before_it_is_fitted(self, name: str) -> None:
        detector = make(name)
        if detector.learns:
            with pytest.raises(HoldfastError, match=f"{name} has not been fitted"):
                detector.score_features(seen(10))
        else:
            assert torch.isfinite(detector.score_features(seen(10))).all()

    def test_refuses_nan(self, name: str) -> None:
        detector = make(name).fit_features(seen(60))
        bad = seen(10)
        for value in (getattr(bad, need) for need in detector.reads):
            value[3] = float("nan")
        with pytest.raises(HoldfastError, match="of sample 3 are NaN or infinite"):
            detector.score_features(bad)
        with pytest.raises(HoldfastError, match="of sample 3 are NaN or infinite"):
            make(name).fit_features(bad)

    def test_refuses_no_data_and_what_it_cannot_read(self, name: str) -> None:
        detector = make(name)
        with pytest.raises(HoldfastError, match=f"{name} needs normal data to fit on, got none"):
            detector.fit_features(seen(0))
        with pytest.raises(HoldfastError, match=f"{name} needs {detector.reads[0]}, which was not computed"):
            detector.fit_features(Features(labels=torch.zeros(4)))
        with pytest.raises(HoldfastError, match="made without a model"):
            detector.score(torch.zeros(2, 1, 8, 8))

    def test_refuses_another_width(self, name: str) -> None:
        detector = make(name).fit_features(seen(60))
        if detector.learns and detector.reads == ("features",):
            with pytest.raises(HoldfastError, match=f"fitted on features of width {WIDTH}, got 5"):
                detector.score_features(torch.zeros(3, 5))

    def test_fewer_samples_than_features_and_one_class(self, name: str) -> None:
        few = seen(8)
        alone = Features(**{**dict(few.items()), "labels": torch.zeros(8, dtype=torch.int64)})
        for given in (few, alone):
            if name == "relative-mahalanobis" and given is alone:
                with pytest.raises(HoldfastError, match="at least two classes"):
                    make(name).fit_features(given)
            else:
                assert torch.isfinite(make(name).fit_features(given).score_features(seen(20, seed=20))).all()

    def test_constant_data_gives_finite_scores(self, name: str) -> None:
        same = Features(**{k: v[:1].expand_as(v).clone() for k, v in seen(40).items() if k != "labels"})
        same = same.beside(Features(labels=torch.arange(40) % 2))
        assert torch.isfinite(make(name).fit_features(same).score_features(seen(10, anomalous=True))).all()


def test_a_bare_tensor_is_what_the_detector_needs() -> None:
    logits = draw(5, 3, seed=1)
    assert torch.equal(make("energy").score_features(logits), make("energy").score_features(Features(logits=logits)))
    with pytest.raises(HoldfastError, match="vim needs features and logits"):
        make("vim").fit_features(logits)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(HoldfastError, match="unknown detector 'mahalonobis'; did you mean 'mahalanobis'"):
        make_detector("mahalonobis")
