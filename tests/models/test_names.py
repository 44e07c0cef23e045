from __future__ import annotations

import re

import pytest

from holdfast.errors import HoldfastError
from holdfast.models import build_model, model_names
from holdfast.models.names import resolve


def test_names_are_grouped_by_source() -> None:
    names = model_names()
    assert list(names) == ["holdfast", "timm", "torchvision"]
    assert names["holdfast"][0] == "convnet"
    assert "vit_tiny_patch16_224" in names["timm"]
    assert "vit_b_16" in names["torchvision"]
    assert "fasterrcnn_resnet50_fpn" not in names["torchvision"]


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("cifar-resnet18", ("holdfast", "cifar-resnet18")),
        ("resnet18", ("timm", "resnet18")),
        ("resnet18.tv_in1k", ("timm", "resnet18.tv_in1k")),
        ("timm:resnet18", ("timm", "resnet18")),
        ("torchvision:resnet18", ("torchvision", "resnet18")),
        ("vit_b_16", ("torchvision", "vit_b_16")),
    ],
)
def test_a_bare_name_is_looked_up_in_order(name: str, resolved: tuple[str, str]) -> None:
    assert resolve(name) == resolved


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("convnett", "unknown model 'convnett'; did you mean 'convnet'"),
        ("cifar-resnet-18", "did you mean 'cifar-resnet18'"),
        ("resnt18", "did you mean 'resnet18'"),
        ("torchvision:resnt18", "did you mean 'torchvision:resnet18'"),
        ("timm:convnet", "unknown model 'timm:convnet'"),
        ("timm:", "unknown model 'timm:'"),
        ("tim:resnet18", "unknown model 'tim:resnet18'"),
        ("", "unknown model ''"),
        ("resnet18.tv_in2k", "unknown timm weights 'resnet18.tv_in2k'; did you mean 'resnet18.tv_in1k'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "no plain image classifier"),
        ("deeplabv3_resnet50", "no plain image classifier"),
        ("torchvision:quantized_resnet18", "no plain image classifier"),
    ],
)
def test_unknown_names_get_a_hint(name: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=re.escape(message)):
        build_model(name, num_classes=2)
