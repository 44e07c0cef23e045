"""Names to models: heads, channels, sizes, normalisation and published weights."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.models import build_model
from holdfast.models.heads import find_head
from tests.models.test_networks import shake

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "full", "channels", "size"),
    [
        ("convnet", "convnet", 1, 16),
        ("resnet18", "timm:resnet18", 3, 32),
        ("timm:resnet18", "timm:resnet18", 1, 32),
        ("timm:resnet18", "timm:resnet18", 5, 32),
        ("timm:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224", 3, 32),
        ("timm:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224", 1, (32, 48)),
        ("torchvision:resnet18", "torchvision:resnet18", 3, 32),
        ("torchvision:resnet18", "torchvision:resnet18", 1, 32),
        ("torchvision:googlenet", "torchvision:googlenet", 3, 64),
        ("torchvision:squeezenet1_1", "torchvision:squeezenet1_1", 3, 64),
    ],
)
def test_a_model_answers_with_one_logit_a_class(name: str, full: str, channels: int, size: Any) -> None:
    built = build_model(name, num_classes=7, in_channels=channels, image_size=size)
    assert built.name == full
    sides = (size, size) if isinstance(size, int) else size
    for mode in (True, False):  # some networks answer with a tuple while they train
        logits = built.model.train(mode)(rand(2, channels, *sides))
        assert logits.shape == (2, 7)


def test_without_an_image_size_an_architecture_keeps_its_own() -> None:
    with torch.device("meta"):
        net = build_model("timm:vit_tiny_patch16_224", num_classes=2).model.net
    assert net.pos_embed.shape[1] == 197


def test_the_training_sets_mean_is_the_first_layer() -> None:
    model = build_model("convnet", num_classes=2, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)).model
    x = rand(2, 3, 16, 16)
    expected = torchvision.transforms.Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))(x)
    assert torch.equal(model.eval()(x), model.net(expected))


def test_one_grey_mean_serves_a_colour_net() -> None:
    built = build_model("torchvision:resnet18", num_classes=2, in_channels=1, mean=[0.3], std=[0.2])
    assert built.model.mean.flatten().tolist() == pytest.approx([0.3] * 3)
    assert built.notes == ("torchvision:resnet18 takes colour: it sees grey images three times over",)
    x = rand(2, 1, 32, 32)
    assert torch.equal(built.model.eval()(x), built.model(x.repeat(1, 3, 1, 1)))


def test_building_tries_the_model_out_without_leaving_a_trace() -> None:
    torch.manual_seed(3)
    tried = build_model("convnet", num_classes=3, image_size=16).model
    after = torch.rand(1)
    torch.manual_seed(3)
    untried = build_model("convnet", num_classes=3).model
    assert torch.equal(after, torch.rand(1))
    assert all(
        torch.equal(a, b) for a, b in zip(tried.state_dict().values(), untried.state_dict().values(), strict=True)
    )
    assert all(module.training for module in tried.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "convnet", "num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"name": "convnet", "in_channels": 0}, "in_channels must be >= 1, got 0"),
        ({"name": "convnet", "image_size": 0}, "image_size must be >= 1, got 0"),
        ({"name": "convnet", "mean": [0.5]}, "mean and std go together"),
        ({"name": "convnet", "mean": [0.5] * 2, "std": [0.5] * 2}, "must have 3 values, one per channel"),
        ({"name": "convnet", "pretrained": True}, "convnet has no published weights; drop --pretrained"),
        ({"name": "convnet", "pretrained": True, "weights": "a.pth"}, "exclude each other"),
        ({"name": "torchvision:resnet18", "in_channels": 4}, "takes grey or colour images, got 4 channels"),
        ({"name": "torchvision:alexnet", "image_size": 16}, "torchvision:alexnet cannot take 16x16 images"),
        ({"name": "torchvision:vit_b_32", "image_size": 33}, "cannot build torchvision:vit_b_32 for 33x33 images"),
        ({"name": "timm:nest_tiny", "image_size": (32, 48)}, "cannot build timm:nest_tiny for 32x48 images"),
    ],
)
def test_impossible_wishes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=re.escape(message)):
        build_model(**{"num_classes": 2, **options})


def test_an_encoder_is_refused() -> None:
    with torch.device("meta"), pytest.raises(HoldfastError, match="is an encoder without a classifier"):
        build_model("timm:mobilenetv5_300m_enc", num_classes=2)


def test_no_network_names_the_remedy_for_timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HoldfastError, match=r"cannot get the published weights of timm:test_resnet: .*--weights FILE"):
        build_model("timm:test_resnet", num_classes=2, pretrained=True)


def test_no_network_names_the_remedy_for_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr(torch.hub, "urlopen", offline)
    with pytest.raises(HoldfastError, match=r"of torchvision:resnet18: .*not known.*--weights FILE"):
        build_model("torchvision:resnet18", num_classes=2, pretrained=True)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """What the libraries would download for their smallest nets, without a network."""
    torch.manual_seed(5)
    states: dict[str, Tensor] = {}
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", lambda *_, **__: dict(states))
    monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", lambda self, *_, **__: dict(states))
    return states


def backbone_equal(a: nn.Module, b: nn.Module) -> bool:
    head = find_head(a)[0]
    other = b.state_dict()
    return all(torch.equal(v, other[k]) for k, v in a.state_dict().items() if not k.startswith(head))


def test_published_timm_weights_bring_their_normalisation(published: dict[str, Tensor]) -> None:
    source = shake(timm.create_model("resnet18"))
    published.update(source.state_dict())
    built = build_model("timm:resnet18", num_classes=10, mean=[0.1] * 3, std=[0.1] * 3, pretrained=True)
    assert backbone_equal(built.model.net, source)
    assert built.model.mean.flatten().tolist() == pytest.approx(IMAGENET[0])
    assert built.model.std.flatten().tolist() == pytest.approx(IMAGENET[1])
    assert built.notes[0] == "weights: timm's resnet18.a1_in1k"
    assert built.notes[1] == "head fc: the weights have 1000 classes, this model 10; replaced"
    assert built.notes[2] == ("normalisation from the weights: mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)")


def test_grey_images_see_published_weights_as_colour_ones_would(published: dict[str, Tensor]) -> None:
    source = shake(timm.create_model("resnet18"))
    published.update(source.state_dict())
    model = build_model("timm:resnet18", num_classes=1000, in_channels=1, pretrained=True).model.eval()
    x = rand(2, 1, 32, 32)
    expected = source(torchvision.transforms.Normalize(*IMAGENET)(x.repeat(1, 3, 1, 1)))
    assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-4)


def test_more_channels_repeat_the_published_normalisation(published: dict[str, Tensor]) -> None:
    published.update(timm.create_model("resnet18").state_dict())
    model = build_model("timm:resnet18", num_classes=2, in_channels=4, pretrained=True).model
    assert model.mean.flatten().tolist() == pytest.approx([*IMAGENET[0], IMAGENET[0][0]])


def test_published_torchvision_weights_bring_their_normalisation(published: dict[str, Tensor]) -> None:
    source = shake(torchvision.models.resnet18())
    published.update(source.state_dict())
    built = build_model("torchvision:resnet18", num_classes=10, pretrained=True)
    assert backbone_equal(built.model.net, source)
    assert built.model.net.fc.weight.shape == (10, 512)
    assert built.model.mean.flatten().tolist() == pytest.approx(IMAGENET[0])
    assert "head fc: the weights have 1000 classes, this model 10; replaced" in built.notes
    kept = build_model("torchvision:resnet18", num_classes=1000, pretrained=True).model
    x = rand(1, 3, 32, 32)
    assert torch.equal(kept.eval()(x), source(torchvision.transforms.Normalize(*IMAGENET)(x)))


@pytest.mark.parametrize(("name", "side"), [("googlenet", 64), ("inception_v3", 80)])
def test_inceptions_own_input_transform_becomes_the_normalisation(
    published: dict[str, Tensor], name: str, side: int
) -> None:
    source = torchvision.models.get_model(name, init_weights=False, aux_logits=True, transform_input=True).eval()
    published.update(source.state_dict())
    model = build_model(f"torchvision:{name}", num_classes=1000, pretrained=True).model.eval()
    x = rand(2, 3, side, side)
    expected = source(torchvision.transforms.Normalize(*IMAGENET)(x))
    error = (model(x) - expected).abs().max()
    assert error < 1e-3 * (source(x) - expected).abs().max()  # another normalisation would show
    assert isinstance(model.train()(x), Tensor)
