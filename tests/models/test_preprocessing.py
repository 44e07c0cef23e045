"""What stands before a network, against the same arithmetic done by hand and by PIL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.functional import center_crop

from holdfast.errors import HoldfastError
from holdfast.models import IMAGENET, NONE, PreprocessedModel, Preprocessing
from holdfast.models.adapters import fit_channels, fit_size


def prepared(
    preprocessing: Preprocessing = NONE, channels: int = 3, size: tuple[int, int] | None = None
) -> PreprocessedModel:
    return PreprocessedModel(nn.Flatten(), preprocessing, channels=channels, size=size).eval()


def test_normalisation_is_as_stated() -> None:
    x = torch.rand(2, 3, 4, 4)
    mean, std = torch.tensor(IMAGENET.mean).view(3, 1, 1), torch.tensor(IMAGENET.std).view(3, 1, 1)
    assert torch.allclose(prepared(IMAGENET)(x), ((x - mean) / std).flatten(1))


def test_blue_first_reverses_what_was_normalised_by_colour() -> None:
    x = torch.rand(2, 3, 4, 4)
    swapped = Preprocessing(IMAGENET.mean, IMAGENET.std, bgr=True)
    plain = prepared(IMAGENET)(x).view(2, 3, 4, 4)
    assert torch.allclose(prepared(swapped)(x).view(2, 3, 4, 4), plain.flip(1))


def test_undone_preprocessing_cancels_the_same_inside() -> None:
    x = torch.rand(2, 3, 4, 4)
    inside = prepared(IMAGENET)
    outer = PreprocessedModel(inside.normalised, IMAGENET.undone(), channels=3, size=None)
    assert torch.allclose(outer(x), x.flatten(1), atol=1e-5)


def test_with_preprocessing_shares_the_network() -> None:
    first = prepared(IMAGENET, size=(8, 8))
    second = first.with_preprocessing(NONE)
    assert second.net is first.net
    assert (second.size, second.channels, second.preprocessing.mean) == ((8, 8), 3, (0.0, 0.0, 0.0))


def test_grey_becomes_colour_and_colour_luminance_as_in_pil() -> None:
    grey = torch.rand(2, 1, 4, 4)
    assert torch.equal(fit_channels(grey, 3), grey.repeat(1, 3, 1, 1))
    pixels = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    expected = np.asarray(Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).convert("L"))
    ours = (fit_channels(pixels / 255, 1)[0, 0] * 255).numpy()
    assert np.abs(ours - expected).max() <= 0.51
    with pytest.raises(HoldfastError, match="takes 3 channels and the images have 4"):
        fit_channels(torch.rand(1, 4, 2, 2), 3)


def test_resizing_agrees_with_pil_and_leaves_the_right_size_alone() -> None:
    x = torch.rand(1, 1, 12, 12)
    expected = Image.fromarray(x[0, 0].numpy()).resize((5, 7), Image.Resampling.BILINEAR)
    assert np.abs(fit_size(x, (7, 5))[0, 0].numpy() - np.asarray(expected)).max() < 1e-4
    assert fit_size(x, (12, 12)) is x
    assert fit_size(x, None) is x


def test_images_at_the_published_size_are_cut_as_torchvision_does() -> None:
    x = torch.rand(1, 3, 256, 256)
    assert torch.equal(fit_size(x, (224, 224), 0.875), center_crop(x, [224, 224]))
    assert fit_size(torch.rand(1, 3, 100, 100), (224, 224), 0.875).shape == (1, 3, 224, 224)


def test_settings_for_another_number_of_channels() -> None:
    assert IMAGENET.for_channels(1).mean == pytest.approx((0.449,))
    with pytest.raises(HoldfastError, match="must have 4 values"):
        IMAGENET.for_channels(4)
    with pytest.raises(HoldfastError, match="as long as each other"):
        Preprocessing((0.5,), (0.5, 0.5))


def test_evaluation_mode_is_the_networks_own() -> None:
    net = nn.BatchNorm2d(3).eval()
    assert not PreprocessedModel(net, NONE, channels=3, size=None).training
    assert PreprocessedModel(net.train(), NONE, channels=3, size=None).training
