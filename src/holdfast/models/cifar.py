"""ImageNet architectures cut to 32×32 pictures, as papers on CIFAR use them: ResNet-18 and VGG-16."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.models.convnet import he_fan_out

VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Width and number of convolutions between two poolings."""


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


def vgg16(num_classes: int, in_channels: int) -> nn.Module:
    return VGG(num_classes, in_channels, batch_norm=False)


def vgg16_bn(num_classes: int, in_channels: int) -> nn.Module:
    return VGG(num_classes, in_channels, batch_norm=True)
