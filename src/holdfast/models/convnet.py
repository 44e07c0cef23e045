"""A small network for small pictures: digits and their like, trained in seconds on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (32, 64, 128)


class ConvNet(nn.Module):
    """Three 3×3 convolutions with batch norm and ReLU, max-pooling between, the global mean, a linear layer.

    x: (B, C, H, W) of any size: pooling rounds up.
    """

    def __init__(self, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for width in WIDTHS:
            if stages:
                stages.append(nn.MaxPool2d(2, ceil_mode=True))
            stages += [
                nn.Conv2d(in_channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            in_channels = width
        self.features = nn.Sequential(*stages)
        self.fc = nn.Linear(in_channels, num_classes)
        he_fan_out(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x).mean((2, 3)))
        return logits


def he_fan_out(net: nn.Module) -> None:
    """Draw every convolution from N(0, 2 / fan_out) and clear its bias (He et al., 2015)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
