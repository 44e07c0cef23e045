"""A network small enough to be trained within a test, and real digits for it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holdfast.augment.basic import to_float
from holdfast.data import Dataset, load
from holdfast.models import Normalised


class Small(nn.Module):
    """One convolution, one linear layer; tanh between, so that scale matters as it does behind BatchNorm."""

    def __init__(self, channels: int = 1, classes: int = 10, side: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)
        self.fc = nn.Linear(8 * (side // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.max_pool2d(self.conv(x).tanh(), 2)
        logits: Tensor = self.fc(hidden.flatten(1))
        return logits


@cache
def digits() -> Dataset:
    return load("digits", image_size=8)


def trained(data: Dataset, mean: tuple[float, ...], std: tuple[float, ...], *, epochs: int = 3) -> Small:
    """A network that was shown (x - mean) / std of the training images, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Small(data.shape[0], data.num_classes, data.shape[1])
        model = Normalised(net, mean, std)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        x, y = to_float(data.train.read(torch.arange(len(data.train)))), data.train.labels
        for _ in range(epochs):
            for part in torch.randperm(len(y)).split(48):
                optimizer.zero_grad()
                cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
    return net.eval()


@cache
def digit_net() -> Small:
    """Wants digits as (x - 0.3) / 0.1, which is far from every usual normalisation."""
    return trained(digits(), (0.3,), (0.1,))
