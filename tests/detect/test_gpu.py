"""Captured training on a GPU is the same sequence of updates as eager training.

Needs nothing of the fixtures beside it: ``pytest --noconftest tests/detect/test_gpu.py`` runs it anywhere.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.detect import MinimiseSettings, train_rotation, train_vae
from holdfast.models.vae import VAESettings, report_settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def normal() -> Tensor:
    """Soft bars of five directions, uint8 (500, 1, 16, 16): enough order for every network here to learn."""
    draw = torch.Generator().manual_seed(0)
    row, column = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    angle = (torch.arange(500) % 5).view(-1, 1, 1) * torch.pi / 5
    offset = 0.6 * torch.rand(500, 1, 1, generator=draw) - 0.3
    across = row * angle.cos() + column * angle.sin() - offset
    return (255 * torch.exp(-((across / 0.2) ** 2))).to(torch.uint8)[:, None]


def loops(**changes: object) -> list[MinimiseSettings]:
    return [MinimiseSettings(epochs=2, batch_size=50, capture=c, **changes) for c in (True, False)]  # type: ignore[arg-type]


@pytest.mark.parametrize("network", ["strided", "report"])
def test_a_captured_vae_is_the_eager_one(normal: Tensor, network: str) -> None:
    settings = VAESettings((1, 16, 16), network, 8)
    captured, eager = (train_vae(normal, settings, loop, device="cuda") for loop in loops())
    for a, b in zip(captured.history, eager.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_short_formats_learn_as_well(normal: Tensor, precision: str) -> None:
    loop = MinimiseSettings(epochs=6, batch_size=50, lr=3e-3, precision=precision)
    exact = MinimiseSettings(epochs=6, batch_size=50, lr=3e-3)
    short, full = (train_vae(normal, report_settings((1, 16, 16)), own, device="cuda") for own in (loop, exact))
    assert short.history[-1]["loss"] == pytest.approx(full.history[-1]["loss"], rel=0.02)


def test_a_captured_encoder_is_the_eager_one(normal: Tensor) -> None:
    seen: list[list[float]] = []
    for loop in loops(schedule="cosine"):
        own: list[float] = []
        for changes in (False, True):
            train_rotation(
                normal, loop, changes=changes, device="cuda", on_epoch=lambda _, r, own=own: own.append(r["loss"])
            )  # type: ignore[misc]
        seen.append(own)
    assert seen[0] == pytest.approx(seen[1], rel=2e-2)
