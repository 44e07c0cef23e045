"""Published models: settings, names and hints, with the download replaced where there would be one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torchvision.models as zoo
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.models import IMAGENET, LoadedModel, open_model
from holdfast.models.sources.timm import class_names


def opened(spec: str, **options: Any) -> LoadedModel:
    return open_model(spec, **{"shape": (3, 32, 32), **options})


def test_a_timm_model_keeps_its_head_and_states_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    create: Callable[..., nn.Module] = timm.create_model

    def without_download(name: str, *, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        return create(name)

    monkeypatch.setattr(timm, "create_model", without_download)
    found = opened("timm:test_resnet.r160_in1k")
    assert asked == [("test_resnet.r160_in1k", True)]
    assert found.model(torch.rand(1, 3, 32, 32)).shape == (1, 1000)
    assert found.size == (160, 160)
    assert found.preprocessing is not None
    assert found.preprocessing.mean == (0.5, 0.5, 0.5)
    assert found.classes is not None
    assert (found.classes[0], found.aliases[0]) == ("n01440764", ("tench", "Tinca tinca"))
    assert not found.warnings
    assert "weights: timm's test_resnet.r160_in1k" in found.notes


@pytest.mark.parametrize(
    ("spec", "options"), [("timm:test_resnet", {"pretrained": False}), ("torchvision:mnasnet0_5:none", {})]
)
def test_random_weights_are_warned_of(spec: str, options: dict[str, Any]) -> None:
    found = opened(spec, **options)
    assert any("random weights" in text for text in found.warnings)
    assert found.gradients


def test_torchvision_weights_bring_size_names_and_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    build: Callable[..., nn.Module] = zoo.get_model
    monkeypatch.setattr(zoo, "get_model", lambda name, weights: build(name, weights=None))
    found = opened("torchvision:mnasnet0_5", shape=(1, 32, 32))
    assert (found.preprocessing, found.size, found.read_size) == (IMAGENET, (224, 224), (256, 256))
    assert found.classes is not None
    assert found.classes[207] == "golden retriever"
    assert "n02099601" in found.aliases[207]
    assert not found.warnings
    assert "weights: torchvision's MNASNet0_5_Weights.IMAGENET1K_V1" in found.notes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:resnet118", "unknown model 'timm:resnet118'; did you mean"),
        ("timm:resnet18.a9_in1k", "unknown timm weights"),
        ("torchvision:resnet19", "unknown model 'torchvision:resnet19'; did you mean 'torchvision:resnet18'"),
        ("torchvision:resnet18:IMAGENET", "did you mean 'IMAGENET1K_V1'"),
        ("torchvision:fcn_resnet50", "is not a plain image classifier"),
    ],
)
def test_mistyped_names_have_close_ones(spec: str, message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        opened(spec)
    assert message in str(caught.value)


def no_network(*args: Any, **options: Any) -> nn.Module:
    raise OSError("Name or service not known")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("timm:test_resnet", "FILE --model timm:test_resnet"),
        ("hf-hub:someone/something", "check the name (OWNER/NAME of a repository in timm's format)"),
        ("torchvision:mnasnet0_5", "FILE --model torchvision:mnasnet0_5"),
    ],
)
def test_without_a_network_the_way_round_is_named(monkeypatch: pytest.MonkeyPatch, spec: str, hint: str) -> None:
    monkeypatch.setattr(timm, "create_model", no_network)
    monkeypatch.setattr(zoo, "get_model", no_network)
    with pytest.raises(HoldfastError, match="cannot get the published weights of .*: Name or service") as caught:
        opened(spec)
    assert hint in str(caught.value)


def test_an_architecture_without_published_weights_is_refused() -> None:
    name = next(n for n in timm.list_models() if not timm.is_model_pretrained(n))
    with pytest.raises(HoldfastError, match=f"timm publishes no weights for {name}"):
        opened(f"timm:{name}")


def test_images_read_at_the_published_size_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    build: Callable[..., nn.Module] = zoo.get_model
    monkeypatch.setattr(zoo, "get_model", lambda name, weights: build(name, weights=None))
    found = opened("torchvision:mnasnet0_5", shape=(3, 256, 256))
    assert "images are cut at the centre from 256x256 to 224x224 for torchvision:mnasnet0_5" in found.notes


def test_names_in_a_hub_models_own_settings() -> None:
    settings = {"label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat, tabby"}}
    assert class_names(settings) == (("n1", "n2"), (("cat", "tabby"), ()))
    assert class_names(SimpleNamespace().__dict__) == (None, ())
    assert class_names({"num_classes": 1000, "tag": "in21k"}) == (None, ())
