"""Small networks and images to attack."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make_net(seed: int, classes: int, channels: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, classes),
        )


def make_images(seed: int, n: int, dtype: torch.dtype = torch.float32, channels: int = 3) -> Tensor:
    x = torch.rand(n, channels, 6, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[0] = x[0].round()  # pixels at both ends of the range
    return x.to(dtype)


class Linear(nn.Module):
    """z_k = <w_k, x>: the worst point of the L∞ ball inside the range of pixels is known in closed form."""

    def __init__(self, classes: int, size: int, gain: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(classes, size, generator=torch.Generator().manual_seed(3)) * gain)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w.T.to(x.dtype)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
