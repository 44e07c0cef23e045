"""holdfast's own networks: a small one for digits, and the 32×32 networks of papers on CIFAR.

Open this file to change one or to add one; ``sources/holdfast_networks.py`` gives them their names. PreActResNet: He et
al., "Identity Mappings in Deep Residual Networks" (2016). WRN: Zagoruyko & Komodakis, "Wide Residual Networks" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

CONVNET = (32, 64, 128)
"""Width of each convolution."""
VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Width and number of convolutions between two poolings."""


class ConvNet(nn.Module):
    """Three 3×3 convolutions with batch norm and ReLU, max-pooling between, the global mean, a linear layer: for small
    pictures, trained in seconds on a CPU.

    x: (B, C, H, W) of any size: pooling rounds up.
    """

    def __init__(self, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for width in CONVNET:
            if stages:
                stages.append(nn.MaxPool2d(2, ceil_mode=True))
            stages += [nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
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


def resnet18(num_classes: int, in_channels: int) -> nn.Module:
    """torchvision's ResNet-18 with a 3×3 stem of stride 1 and no max-pooling."""
    from torchvision.models import resnet18 as imagenet_resnet18

    net: nn.Module = imagenet_resnet18(num_classes=num_classes)
    net.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    he_fan_out(net.conv1)
    return net


class VGG(nn.Module):
    """The features of VGG-16, laid out as torchvision does, under the global mean and one linear layer.

    Pooling rounds up, which changes nothing at multiples of 32 and lets smaller pictures through.
    """

    def __init__(self, num_classes: int, in_channels: int, *, batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, depth in VGG16:
            for _ in range(depth):
                layers.append(nn.Conv2d(in_channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                in_channels = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(in_channels, num_classes)
        he_fan_out(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


vgg16, vgg16_bn = partial(VGG, batch_norm=False), partial(VGG, batch_norm=True)


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


preactresnet18 = partial(PreActNet, widths=(64, 64, 128, 256, 512), blocks=2)
wrn_28_10 = partial(PreActNet, widths=(16, 160, 320, 640), blocks=4)
