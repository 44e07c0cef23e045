"""The detector that is kept: finds, explains, survives the disk, refuses what it is not for."""

from __future__ import annotations

import copy
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from holdfast.data import ArraySplit
from holdfast.detect import FittedDetector, auroc, extract, train_vae
from holdfast.errors import HoldfastError
from holdfast.models.vae import VAESettings


@pytest.mark.slow
def test_finds_unknown_digits_and_damaged_ones(fitted: FittedDetector, fresh: ArraySplit, damaged: Tensor) -> None:
    known = fitted.score(fresh.images[fresh.labels < 5])
    foreign, noisy = fitted.score(fresh.images[fresh.labels >= 5]), fitted.score(damaged)
    for anomalous in (foreign, noisy):
        assert auroc(torch.cat([known, anomalous]), torch.arange(len(known) + len(anomalous)) >= len(known)) > 0.8
    assert fitted.threshold.flag(known).float().mean() < 0.25
    assert fitted.threshold.flag(noisy).float().mean() > 0.8


def test_reasons_name_what_stood_out(fitted: FittedDetector, damaged: Tensor, fresh: ArraySplit) -> None:
    report = fitted.report(damaged)
    assert all(bool(reason) == bool(flag) for reason, flag in zip(report.reasons, report.flags, strict=True))
    assert sum("reconstruction" in reason for reason in report.reasons) > 0.8 * len(damaged)
    z = fitted.detector.z_scores(fitted.extractor.extract(damaged[:1].float() / 255))
    names = [m.name for m in fitted.detector.members]
    worst = names[int(z[0].argmax())]
    assert report.reasons[0].startswith(f"{worst} {float(z.max()):+.1f} sd")


def test_streaming_gives_the_same_as_all_at_once(fitted: FittedDetector, fresh: ArraySplit) -> None:
    whole = fitted.score(fresh.images)
    parts = torch.cat([part.scores for part in fitted.stream(fresh, batch_size=37)])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(fitted.score(fresh), whole)


def test_takes_arrays_as_fitting_does(fitted: FittedDetector, fresh: ArraySplit) -> None:
    """Arrays, with the axis of channels where it may be, data sets and loaders score as the tensor of their images."""
    few = fresh.subset(torch.arange(60))
    wanted = fitted.score(few.images)
    array = few.images.numpy()
    channels_last, grey, pairs = array.transpose(0, 2, 3, 1), array[:, 0], (array, few.labels.numpy())
    loader = DataLoader(TensorDataset(few.images.float() / 255, few.labels), batch_size=7, shuffle=True)
    for images in (array, channels_last, grey, array.astype(np.float32) / 255, pairs, loader):
        torch.testing.assert_close(fitted.score(images), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(fitted.report(array).flags, fitted.report(few).flags)
    with pytest.raises(HoldfastError, match="is for grey images, and these are colour"):
        fitted.score(np.zeros((2, 16, 16, 3), np.uint8))


def test_survives_the_disk_to_the_bit(fitted: FittedDetector, fresh: ArraySplit, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    again = FittedDetector.load(tmp_path)
    assert torch.equal(again.score(fresh.images), fitted.score(fresh.images))
    assert again.threshold == fitted.threshold
    names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"detector.json", "detector.safetensors", "vae.safetensors", "model.json", "model.safetensors"}


def test_on_a_full_disk_nothing_is_left(fitted: FittedDetector, tmp_path: Path) -> None:
    fitted.save(tmp_path / "whole")
    sizes = sorted({path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file()})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
        try:
            with pytest.raises(HoldfastError, match="cannot write .*File too large"):
                fitted.save(tmp_path / "new")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]


class TestBadInput:
    def test_colour_to_a_grey_detector(self, fitted: FittedDetector) -> None:
        with pytest.raises(HoldfastError, match="is for grey images, and these are colour; convert them"):
            fitted.score(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))

    def test_another_size(self, fitted: FittedDetector) -> None:
        with pytest.raises(HoldfastError, match="images of 16x16 pixels, and these have 8x8"):
            fitted.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))

    def test_no_channels(self, fitted: FittedDetector) -> None:
        with pytest.raises(HoldfastError, match="must be .N, C, H, W."):
            fitted.score(torch.zeros(2, 16, 16))

    def test_nan(self, fitted: FittedDetector) -> None:
        images = torch.zeros(3, 1, 16, 16)
        images[1, 0, 0, 0] = float("nan")
        with pytest.raises(HoldfastError, match="image 1 has NaN or infinite pixels"):
            fitted.score(images)

    def test_values_beyond_one(self, fitted: FittedDetector) -> None:
        with pytest.raises(HoldfastError, match="from 0 to 255; scale them"):
            fitted.score(torch.tensor([0.0, 255.0]).repeat(128).view(1, 1, 16, 16))

    def test_constant_images_are_scored(self, fitted: FittedDetector) -> None:
        images = torch.stack([torch.full((1, 16, 16), v) for v in (0, 128, 255)]).to(torch.uint8)
        scores = fitted.score(images)
        assert torch.isfinite(scores).all()
        assert fitted.threshold.flag(scores)[1:].all()

    def test_nothing_to_score(self, fitted: FittedDetector) -> None:
        with pytest.raises(HoldfastError, match="there is no image to score"):
            fitted.report(torch.zeros(0, 1, 16, 16, dtype=torch.uint8))

    def test_folders_that_hold_no_detector(self, fitted: FittedDetector, tmp_path: Path) -> None:
        with pytest.raises(HoldfastError, match="no detector in"):
            FittedDetector.load(tmp_path)
        fitted.save(tmp_path)
        card = json.loads((tmp_path / "detector.json").read_text())
        (tmp_path / "detector.json").write_text(json.dumps({**card, "format": 9}))
        with pytest.raises(HoldfastError, match="has format 9"):
            FittedDetector.load(tmp_path)
        (tmp_path / "detector.json").write_text("{")
        with pytest.raises(HoldfastError, match="cannot read the detector"):
            FittedDetector.load(tmp_path)

    def test_a_threshold_of_scores_without_a_limit(self, fitted: FittedDetector, tmp_path: Path) -> None:
        """Detectors were saved so before means had one; their threshold would flag more than was asked for."""
        fitted.save(tmp_path)
        card = json.loads((tmp_path / "detector.json").read_text())
        assert card["detector"].pop("lowest") == -2
        (tmp_path / "detector.json").write_text(json.dumps(card))
        with pytest.raises(HoldfastError, match=r"cannot use the detector in .*lower limit, or none.*fit it again"):
            FittedDetector.load(tmp_path)

    def test_a_damaged_card(self, fitted: FittedDetector, tmp_path: Path) -> None:
        fitted.save(tmp_path)
        card = tmp_path / "detector.json"
        good = json.loads(card.read_text())
        changes: list[Callable[[dict[str, Any]], object]] = [
            lambda c: c.pop("encoder"),
            lambda c: c.update(encoder="turns"),
            lambda c: c.update(shape=[1, [], 16]),
            lambda c: c.update(vae={}),
            lambda c: c.update(threshold=None),
            lambda c: c["detector"]["members"].pop(next(iter(c["detector"]["members"]))),
            lambda c: c["vae"].update(latent=10**13),
        ]
        for change in changes:
            content = copy.deepcopy(good)
            change(content)
            card.write_text(json.dumps(content))
            with pytest.raises(HoldfastError):
                FittedDetector.load(tmp_path)
        card.write_text(json.dumps(good))
        FittedDetector.load(tmp_path)

    def test_an_array_of_numpy_s(self, fitted: FittedDetector) -> None:
        images = np.zeros((60, 1, 16, 16), np.uint8)
        for call in (lambda x: extract(fitted.extractor, x), lambda x: train_vae(x, VAESettings((1, 16, 16)))):
            with pytest.raises(HoldfastError, match=r"must be a tensor or a split .*, got ndarray; torch.from_numpy"):
                call(images)  # type: ignore[operator]
