"""Fitting a detector: what is learned from, what is held out, what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.data import ArraySplit
from holdfast.detect import MinimiseSettings, fit
from holdfast.errors import HoldfastError
from holdfast.models import build_model
from tests.detect.conftest import QUICK, Recorder


def test_the_seed_decides_everything(normal: Tensor) -> None:
    loop = MinimiseSettings(epochs=1)
    first, again = (fit(normal, scores="elbo", vae_loop=loop, seed=3) for _ in range(2))
    other = fit(normal, scores="elbo", vae_loop=loop, seed=4)
    assert torch.equal(first.score(normal[:9]), again.score(normal[:9]))
    assert first.threshold == again.threshold != other.threshold


def test_nothing_held_out_is_trained_on(normal: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.detect import fitting as module

    seen = {}
    real = module.train_vae

    def spy(images: Tensor, *rest: object, **named: object) -> object:
        seen["vae"] = images
        return real(images, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train_vae", spy)
    fit(normal, scores="reconstruction", vae_loop=MinimiseSettings(epochs=1), held_out=0.3)
    assert len(seen["vae"]) == len(normal) - round(0.3 * len(normal))
    train, scale, level = module._parts(normal, 0.3, 0)
    assert sorted([*train.tolist(), *scale.tolist(), *level.tolist()]) == list(range(len(normal)))
    assert torch.equal(seen["vae"], normal[train])


def test_labels_go_with_the_images_that_are_learned_from(normal: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.detect import fitting as module

    given: list[Tensor | None] = []
    real = module.Fused.fit_features

    def spy(self: module.Fused, seen: Any, *, labels: Tensor | None = None, held_out: Any = None) -> Any:
        given.append(labels)
        return real(self, seen, labels=labels, held_out=held_out)

    monkeypatch.setattr(module.Fused, "fit_features", spy)
    own, unknown = torch.arange(len(normal)) % 5, torch.full((len(normal),), -1)
    model = build_model("convnet", num_classes=5, in_channels=1, image_size=16).model
    for images, labels in (
        (normal, None),
        (normal, own),
        (ArraySplit(normal, own, unknown), None),
        (ArraySplit(normal, unknown, unknown), None),
    ):
        fit(images, classifier=model, scores="mahalanobis", labels=labels, held_out=0.3)
    train, _, _ = module._parts(normal, 0.3, 0)
    assert [None if x is None else x.tolist() for x in given] == [None, own[train].tolist(), own[train].tolist(), None]


def test_what_fused_joins_depends_on_whether_there_is_a_classifier() -> None:
    from holdfast.detect.fitting import _names

    assert _names("fused", False) == _names(["fused"], False) == ["reconstruction", "knn", "mahalanobis"]
    assert _names("fused", True) == ["reconstruction", "knn", "energy"]


def test_around_a_classifier(normal: Tensor, fresh: ArraySplit, tmp_path: Path) -> None:
    model = build_model("convnet", num_classes=5, in_channels=1, image_size=16).model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    made = fit(normal, classifier=model, scores=("energy", "knn", "vim", "mahalanobis"))
    assert torch.isfinite(made.score(fresh.images)).all()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(HoldfastError, match="only encoders from build_model"):
        made.save(tmp_path / "nowhere")


class TestBadInput:
    def test_constant_images_to_learn_from(self) -> None:
        with pytest.raises(HoldfastError, match="the same score, so it has no scale"):
            fit(torch.zeros(60, 1, 8, 8, dtype=torch.uint8), scores="knn", false_alarm_rate=0.2, **QUICK)

    @pytest.mark.parametrize("n", [0, 3])
    def test_too_few_images(self, n: int) -> None:
        with pytest.raises(HoldfastError, match=f"{n} images with held_out 0.2 leave"):
            fit(torch.zeros(n, 1, 8, 8, dtype=torch.uint8))

    def test_too_few_for_the_rate(self, normal: Tensor) -> None:
        with pytest.raises(HoldfastError, match="needs at least 99 held-out normal samples"):
            fit(normal[:60], scores="elbo", vae_loop=MinimiseSettings(epochs=1), false_alarm_rate=0.01)

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ("knnn", "unknown score 'knnn'; did you mean 'knn'"),
            (("fused", "knn"), "fused is a choice of its own"),
            ("msp", "scores of logits need a classifier"),
            ((), "no score named"),
        ],
    )
    def test_scores_that_cannot_be(self, normal: Tensor, scores: str, message: str) -> None:
        with pytest.raises(HoldfastError, match=message):
            fit(normal, scores=scores)

    def test_rotation_beside_a_classifier(self, normal: Tensor) -> None:
        with pytest.raises(HoldfastError, match="rotation needs an encoder of its own"):
            fit(normal, scores="rotation", classifier=nn.Flatten())

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"false_alarm_rate": 0.0}, r"false_alarm_rate must be in \(0, 1\), got 0"),
            ({"false_alarm_rate": 0.001}, "needs at least 999 held-out normal samples, got"),
            ({"encoder": "convnets"}, "unknown model 'convnets'"),
        ],
    )
    def test_it_is_said_before_anything_is_trained(self, normal: Tensor, wrong: dict[str, Any], message: str) -> None:
        said: list[str] = []
        with pytest.raises(HoldfastError, match=message):
            fit(normal, **wrong, note=said.append)
        assert said == []


def test_every_training_and_pass_is_shown(normal: Tensor) -> None:
    shown = Recorder()
    loops = {name: MinimiseSettings(epochs=2, batch_size=50) for name in ("vae_loop", "encoder_loop")}
    fit(normal[:200], scores=("reconstruction", "knn"), false_alarm_rate=0.3, **loops, progress=shown)  # type: ignore[arg-type]
    # 160 to learn from, in whole batches; then features of all 200, in batches of 256 of each part
    assert shown.stages == [("vae", 6), ("rotation", 6), ("features", 3)]
    assert shown.left == 0
