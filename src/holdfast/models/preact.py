"""Pre-activation residual networks for 32×32 pictures: PreActResNet-18 and WRN-28-10.

He et al., "Identity Mappings in Deep Residual Networks" (2016); Zagoruyko & Komodakis, "Wide Residual
Networks" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from holdfast.models.convnet import he_fan_out


class PreActBlock(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))); where the shape changes, x is the projected first activation."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = None if same else nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(self.relu(self.bn2(self.conv1(active))))
        return out + kept


class PreActNet(nn.Module):
    """A 3×3 stem, stages of pre-activation blocks, then batch norm, ReLU, the global mean and a linear layer.

    widths: channels of the stem and of each stage. Every stage but the first halves the resolution.
    """

    def __init__(self, num_classes: int, in_channels: int, *, widths: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        for stage, (before, width) in enumerate(pairwise(widths)):
            first = PreActBlock(before, width, stride=1 if stage == 0 else 2)
            self.stages.append(nn.Sequential(first, *(PreActBlock(width, width, 1) for _ in range(blocks - 1))))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(widths[-1], num_classes)
        he_fan_out(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        features = self.relu(self.bn(self.stages(self.conv1(x))))
        logits: Tensor = self.fc(features.mean((2, 3)))
        return logits


def preactresnet18(num_classes: int, in_channels: int) -> nn.Module:
    return PreActNet(num_classes, in_channels, widths=(64, 64, 128, 256, 512), blocks=2)


def wrn_28_10(num_classes: int, in_channels: int) -> nn.Module:
    return PreActNet(num_classes, in_channels, widths=(16, 160, 320, 640), blocks=4)
