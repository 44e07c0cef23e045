"""The detector that is kept: finds, explains, survives the disk, refuses what it is not for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.data import ArraySplit
from holdfast.detect import LoopSettings, auroc
from holdfast.detect.monitor import Monitor, as_split, fit_monitor
from holdfast.errors import HoldfastError
from holdfast.models import build_model
from tests.detect.conftest import QUICK


def test_finds_unknown_digits_and_damaged_ones(monitor: Monitor, fresh: ArraySplit, damaged: Tensor) -> None:
    known = monitor.score(fresh.images[fresh.labels < 5])
    foreign, noisy = monitor.score(fresh.images[fresh.labels >= 5]), monitor.score(damaged)
    for strange in (foreign, noisy):
        assert auroc(torch.cat([known, strange]), torch.arange(len(known) + len(strange)) >= len(known)) > 0.8
    assert monitor.threshold.flag(known).float().mean() < 0.25
    assert monitor.threshold.flag(noisy).float().mean() > 0.8


def test_reasons_name_what_stood_out(monitor: Monitor, damaged: Tensor, fresh: ArraySplit) -> None:
    report = monitor.report(damaged)
    assert all(bool(reason) == bool(flag) for reason, flag in zip(report.reasons, report.flags, strict=True))
    assert sum("reconstruction" in reason for reason in report.reasons) > 0.8 * len(damaged)
    z = monitor.detector.z_scores(monitor.sight.look(damaged[:1].float() / 255))
    names = [m.name for m in monitor.detector.members]
    worst = names[int(z[0].argmax())]
    assert report.reasons[0].startswith(f"{worst} {float(z.max()):+.1f} sd")


def test_streaming_gives_the_same_as_all_at_once(monitor: Monitor, fresh: ArraySplit) -> None:
    whole = monitor.score(fresh.images)
    parts = torch.cat([part.scores for part in monitor.stream(fresh, batch_size=37)])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(monitor.score(as_split(fresh.images)), whole)


def test_survives_the_disk_to_the_bit(monitor: Monitor, fresh: ArraySplit, tmp_path: Path) -> None:
    monitor.save(tmp_path)
    again = Monitor.load(tmp_path)
    assert torch.equal(again.score(fresh.images), monitor.score(fresh.images))
    assert again.threshold == monitor.threshold
    names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"detector.json", "detector.safetensors", "vae.safetensors", "model.json", "model.safetensors"}


def test_the_seed_decides_everything(normal: Tensor) -> None:
    loop = LoopSettings(epochs=1)
    first, again = (fit_monitor(normal, scores="elbo", vae_loop=loop, seed=3) for _ in range(2))
    other = fit_monitor(normal, scores="elbo", vae_loop=loop, seed=4)
    assert torch.equal(first.score(normal[:9]), again.score(normal[:9]))
    assert first.threshold == again.threshold != other.threshold


def test_nothing_held_out_is_trained_on(normal: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.detect import monitor as module

    seen = {}
    real = module.train_vae

    def spy(images: Tensor, *rest: object, **named: object) -> object:
        seen["vae"] = images
        return real(images, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train_vae", spy)
    fit_monitor(normal, scores="reconstruction", vae_loop=LoopSettings(epochs=1), held_out=0.3)
    assert len(seen["vae"]) == len(normal) - round(0.3 * len(normal))
    train, scale, level = module._parts(normal, 0.3, 0)
    assert sorted([*train.tolist(), *scale.tolist(), *level.tolist()]) == list(range(len(normal)))
    assert torch.equal(seen["vae"], normal[train])


def test_around_a_classifier(normal: Tensor, fresh: ArraySplit, tmp_path: Path) -> None:
    model = build_model("convnet", num_classes=5, in_channels=1, image_size=16).model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    made = fit_monitor(normal, classifier=model, scores=("energy", "knn", "vim", "mahalanobis"))
    assert torch.isfinite(made.score(fresh.images)).all()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(HoldfastError, match="only encoders from build_model"):
        made.save(tmp_path / "nowhere")


class TestBadInput:
    def test_colour_to_a_grey_detector(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="is for grey images, and these are colour; convert them"):
            monitor.score(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))

    def test_another_size(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="images of 16x16 pixels, and these have 8x8"):
            monitor.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))

    def test_no_channels(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="must be .N, C, H, W."):
            monitor.score(torch.zeros(2, 16, 16))

    def test_nan(self, monitor: Monitor) -> None:
        images = torch.zeros(3, 1, 16, 16)
        images[1, 0, 0, 0] = float("nan")
        with pytest.raises(HoldfastError, match="image 1 has NaN or infinite pixels"):
            monitor.score(images)

    def test_values_beyond_one(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="from 0 to 255; scale them"):
            monitor.score(torch.tensor([0.0, 255.0]).repeat(128).view(1, 1, 16, 16))

    def test_constant_images_are_scored(self, monitor: Monitor) -> None:
        images = torch.stack([torch.full((1, 16, 16), v) for v in (0, 128, 255)]).to(torch.uint8)
        scores = monitor.score(images)
        assert torch.isfinite(scores).all()
        assert monitor.threshold.flag(scores)[1:].all()

    def test_constant_images_to_learn_from(self) -> None:
        with pytest.raises(HoldfastError, match="the same score, so it has no scale"):
            fit_monitor(torch.zeros(60, 1, 8, 8, dtype=torch.uint8), scores="knn", **QUICK)

    @pytest.mark.parametrize("n", [0, 3])
    def test_too_few_images(self, n: int) -> None:
        with pytest.raises(HoldfastError, match=f"{n} images with held_out 0.2 leave"):
            fit_monitor(torch.zeros(n, 1, 8, 8, dtype=torch.uint8))

    def test_too_few_for_the_rate(self, normal: Tensor) -> None:
        with pytest.raises(HoldfastError, match="needs at least 99 held-out normal samples"):
            fit_monitor(normal[:60], scores="elbo", vae_loop=LoopSettings(epochs=1), false_alarm_rate=0.01)

    def test_nothing_to_score(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="there is no image to score"):
            monitor.report(torch.zeros(0, 1, 16, 16, dtype=torch.uint8))

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
            fit_monitor(normal, scores=scores)

    def test_rotation_beside_a_classifier(self, normal: Tensor) -> None:
        with pytest.raises(HoldfastError, match="rotation needs an encoder of its own"):
            fit_monitor(normal, scores="rotation", classifier=nn.Flatten())

    def test_folders_that_hold_no_detector(self, monitor: Monitor, tmp_path: Path) -> None:
        with pytest.raises(HoldfastError, match="no detector in"):
            Monitor.load(tmp_path)
        monitor.save(tmp_path)
        card = json.loads((tmp_path / "detector.json").read_text())
        (tmp_path / "detector.json").write_text(json.dumps({**card, "format": 9}))
        with pytest.raises(HoldfastError, match="has format 9"):
            Monitor.load(tmp_path)
        (tmp_path / "detector.json").write_text("{")
        with pytest.raises(HoldfastError, match="cannot read the detector"):
            Monitor.load(tmp_path)
