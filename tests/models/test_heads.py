from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.models import build_model, find_head, penultimate
from holdfast.models.heads import find_heads, replace_head
from holdfast.models.sources.holdfast_networks import NETWORKS, network


@pytest.mark.parametrize(
    ("library", "name", "head"),
    [
        (timm, "resnet18", "fc"),
        (timm, "vit_tiny_patch16_224", "head"),
        (timm, "resnetv2_18", "head.fc"),
        (timm, "caformer_s18", "head.fc.fc2"),
        (timm, "deit_tiny_distilled_patch16_224", "head"),
        (timm, "levit_128s", "head.linear"),
        (torchvision, "resnet18", "fc"),
        (torchvision, "squeezenet1_1", "classifier.1"),
        (torchvision, "mobilenet_v3_small", "classifier.3"),
        (torchvision, "densenet121", "classifier"),
        (torchvision, "vit_b_32", "heads.head"),
        (torchvision, "maxvit_t", "classifier.5"),
    ],
)
def test_heads_of_the_libraries_are_found(library: object, name: str, head: str) -> None:
    with torch.device("meta"):
        if library is timm:
            net = timm.create_model(name, num_classes=7)
        else:
            net = torchvision.models.get_model(name, num_classes=7)
    found, layer = find_head(net)
    assert found == head
    assert getattr(layer, "out_features", None) == 7 or layer.out_channels == 7
    assert net.get_submodule(found) is layer


@pytest.mark.parametrize("name", NETWORKS)
def test_heads_of_our_own_nets_are_found(name: str) -> None:
    with torch.device("meta"):
        net = network(name)(7, 1)
    assert find_head(net)[1].out_features == 7


def test_a_distilled_net_has_two_heads() -> None:
    with torch.device("meta"):
        net = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=7)
    assert [name for name, _ in find_heads(net)] == ["head", "head_dist"]


def test_the_name_holds_through_normalisation() -> None:
    model = build_model("convnet", num_classes=3).model
    name, layer = find_head(model)
    assert name == "net.fc"
    assert layer is model.net.fc


@pytest.mark.parametrize("net", [nn.Sequential(nn.ReLU()), timm.create_model("test_resnet", num_classes=0)])
def test_a_net_without_a_head_is_refused(net: nn.Module) -> None:
    with pytest.raises(HoldfastError, match="no layer that makes logits"):
        find_head(net)


@pytest.mark.parametrize("name", ["squeezenet1_1", "maxvit_t", "mobilenet_v3_small"])
def test_a_replaced_head_keeps_its_kind(name: str) -> None:
    with torch.device("meta"):
        net = torchvision.models.get_model(name)
        old = find_head(net)[1]
        replace_head(net, 3)
    new = find_head(net)[1]
    assert new.weight.shape == (3, *old.weight.shape[1:])
    assert (new.bias is None) == (old.bias is None)


def test_features_times_head_are_the_logits() -> None:
    model = build_model("convnet", num_classes=5, in_channels=1).model.eval()
    x = torch.rand(3, 1, 16, 16)
    with penultimate(model) as seen:
        logits = model(x)
        first = seen.features
        model(1 - x)
    head = model.net.fc
    assert torch.allclose(first @ head.weight.T + head.bias, logits)
    assert not torch.allclose(seen.features, first)
    assert first.requires_grad


def test_a_convolutional_head_gives_features_averaged_over_space() -> None:
    net = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.rand(3, 4, 5, 5)
    with penultimate(net) as seen:
        net(x)
    assert torch.allclose(seen.features, x.mean((2, 3)))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def test_the_hook_goes_even_when_the_forward_raises() -> None:
    net = Broken()
    with pytest.raises(ValueError, match="no"), penultimate(net):
        net(torch.rand(1, 2))
    assert not net.fc._forward_pre_hooks


def test_features_without_a_forward_pass_say_so() -> None:
    net = nn.Linear(2, 2)
    with penultimate(net) as seen, pytest.raises(HoldfastError, match="run the model inside the with"):
        _ = seen.features
    assert not net._forward_pre_hooks
