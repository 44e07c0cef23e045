"""A network behind everything that images of the data need before it can take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from holdfast.errors import HoldfastError
from holdfast.models.normalise import Normalised
from holdfast.models.sources.outputs import only_tensor, rows
from holdfast.models.sources.preprocessing import Preprocessing

LUMINANCE = (0.299, 0.587, 0.114)
"""ITU-R 601, as PIL converts colour to grey."""


class Prepared(nn.Module):
    """Images (B, C, H, W) in [0, 1] at the data's size to outputs (B, K) in float32.

    In order: grey to colour or back, the network's own size, channel order and normalisation, the network, the one
    tensor it returns. size: what the network takes, None for any. crop: share of each side that its published
    evaluation keeps; images that come in at size / crop are cut as there, others resized.
    """

    def __init__(
        self,
        net: nn.Module,
        preprocessing: Preprocessing,
        *,
        channels: int,
        size: tuple[int, int] | None,
        crop: float = 1.0,
    ) -> None:
        super().__init__()
        preprocessing = preprocessing.for_channels(channels)
        mean, std = preprocessing.mean, preprocessing.std
        if preprocessing.bgr:
            mean, std = mean[::-1], std[::-1]
        self.preprocessing = preprocessing
        self.channels = channels
        self.size = size
        self.crop = crop
        self.normalised = Normalised(net, mean, std)
        # Not through train(), which exported programs refuse.
        self.training = self.normalised.training = net.training

    @property
    def net(self) -> nn.Module:
        return self.normalised.net

    def with_preprocessing(self, preprocessing: Preprocessing) -> Prepared:
        """The same network, not a copy of it, behind other preprocessing."""
        other = Prepared(self.net, preprocessing, channels=self.channels, size=self.size, crop=self.crop)
        return other.to(self.normalised.mean.device)

    def forward(self, x: Tensor) -> Tensor:
        return rows(only_tensor(self.raw(x))[0]).float()

    def raw(self, x: Tensor) -> Any:
        """What the network itself returns."""
        x = fit_size(fit_channels(x, self.channels), self.size, self.crop)
        if self.preprocessing.bgr:
            x = x.flip(1)
        return self.normalised(x)


def fit_channels(x: Tensor, channels: int) -> Tensor:
    """Grey images three times over for a colour network; colour as luminance for a grey one.

    >>> fit_channels(torch.ones(1, 3, 1, 1), 1).item()
    1.0
    """
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, channels, -1, -1)
    if x.shape[1] == 3 and channels == 1:
        weights = torch.tensor(LUMINANCE, device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
        return (x * weights).sum(1, keepdim=True)
    raise HoldfastError(
        f"the model takes {channels} channels and the images have {x.shape[1]}; "
        "only grey and colour can be turned into each other"
    )


def fit_size(x: Tensor, size: tuple[int, int] | None, crop: float = 1.0) -> Tensor:
    """Images at the network's own size: their centre where they are as much larger as ``crop`` says, else resized,
    bilinear, antialiased when shrinking."""
    if size is None or tuple(x.shape[2:]) == size:
        return x
    if tuple(x.shape[2:]) == uncropped(size, crop):
        top, left = (x.shape[2] - size[0]) // 2, (x.shape[3] - size[1]) // 2
        return x[:, :, top : top + size[0], left : left + size[1]]
    return interpolate(x, size=size, mode="bilinear", antialias=True)


def uncropped(size: tuple[int, int], crop: float) -> tuple[int, int]:
    """The size images have before the centre is cut out.

    >>> uncropped((224, 224), 224 / 256)
    (256, 256)
    """
    return int(size[0] / crop + 1e-6), int(size[1] / crop + 1e-6)
