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

from holdfast.data import ArraySplit
from holdfast.detect import Monitor, auroc, fit_monitor, train_vae
from holdfast.errors import HoldfastError
from holdfast.models.vae import VAESettings


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
    assert torch.equal(monitor.score(fresh), whole)


def test_survives_the_disk_to_the_bit(monitor: Monitor, fresh: ArraySplit, tmp_path: Path) -> None:
    monitor.save(tmp_path)
    again = Monitor.load(tmp_path)
    assert torch.equal(again.score(fresh.images), monitor.score(fresh.images))
    assert again.threshold == monitor.threshold
    names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"detector.json", "detector.safetensors", "vae.safetensors", "model.json", "model.safetensors"}


def test_on_a_full_disk_nothing_is_left(monitor: Monitor, tmp_path: Path) -> None:
    monitor.save(tmp_path / "whole")
    sizes = sorted({path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file()})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
        try:
            with pytest.raises(HoldfastError, match="cannot write .*File too large"):
                monitor.save(tmp_path / "new")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]


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

    def test_nothing_to_score(self, monitor: Monitor) -> None:
        with pytest.raises(HoldfastError, match="there is no image to score"):
            monitor.report(torch.zeros(0, 1, 16, 16, dtype=torch.uint8))

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

    def test_a_damaged_card(self, monitor: Monitor, tmp_path: Path) -> None:
        monitor.save(tmp_path)
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
                Monitor.load(tmp_path)
        card.write_text(json.dumps(good))
        Monitor.load(tmp_path)

    def test_an_array_of_numpy_s(self, monitor: Monitor) -> None:
        images = np.zeros((60, 1, 16, 16), np.uint8)
        for call in (fit_monitor, monitor.score, lambda x: train_vae(x, VAESettings((1, 16, 16)))):
            with pytest.raises(HoldfastError, match=r"must be a tensor or a split .*, got ndarray; torch.from_numpy"):
                call(images)  # type: ignore[operator]
