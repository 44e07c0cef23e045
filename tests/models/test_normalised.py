from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.transforms import Normalize

from holdfast.errors import HoldfastError
from holdfast.models import Normalised

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def test_it_is_torchvisions_normalize_bit_for_bit() -> None:
    x = images(4, 3, 9, 7)
    assert torch.equal(Normalised(nn.Identity(), MEAN, STD)(x), Normalize(MEAN, STD)(x))


def test_zero_mean_and_unit_deviation_change_nothing() -> None:
    x = images(2, 1, 5, 5)
    assert torch.equal(Normalised(nn.Identity(), [0.0], [1.0])(x), x)


def test_grey_images_are_seen_once_a_channel_by_a_colour_net() -> None:
    x = images(2, 1, 5, 5)
    assert torch.equal(Normalised(nn.Identity(), MEAN, STD)(x), Normalize(MEAN, STD)(x.expand(2, 3, 5, 5)))


def test_the_gradient_reaches_pixels_in_pixel_units() -> None:
    x = images(1, 3, 2, 2).requires_grad_()
    Normalised(nn.Identity(), MEAN, STD)(x).sum().backward()
    assert torch.allclose(x.grad[0, :, 0, 0], 1 / torch.tensor(STD))


def test_mean_and_std_travel_with_the_weights_and_the_type() -> None:
    model = Normalised(nn.Conv2d(3, 2, 1), MEAN, STD)
    assert {"mean", "std", "net.weight", "net.bias"} == set(model.state_dict())
    other = Normalised(nn.Conv2d(3, 2, 1), (0.0,) * 3, (1.0,) * 3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.mean.flatten(), torch.tensor(MEAN))
    assert model.double()(images(1, 3, 2, 2).double()).dtype == torch.float64


def test_channels_last_stays_and_autocast_keeps_pixels_exact() -> None:
    model = Normalised(nn.Identity(), MEAN, STD)
    x = images(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, Normalize(MEAN, STD)(x))


def test_it_exports_without_a_break() -> None:
    model = Normalised(nn.Conv2d(3, 2, 1), MEAN, STD).eval()
    x = images(1, 3, 4, 4)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))


def test_bytes_are_refused() -> None:
    with pytest.raises(HoldfastError, match=r"must be float in \[0, 1\], got torch.uint8"):
        Normalised(nn.Identity(), MEAN, STD)(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.5], [0.0], "std must be finite and > 0"),
        ([0.5], [float("nan")], "std must be finite and > 0"),
        ([float("inf")], [1.0], "mean must be finite"),
        ([0.5, 0.5], [1.0], "as long as each other"),
        ([], [], "as long as each other"),
    ],
)
def test_impossible_statistics_are_refused(mean: list[float], std: list[float], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        Normalised(nn.Identity(), mean, std)
