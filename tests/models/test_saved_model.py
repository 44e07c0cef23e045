"""Models on disk: rebuilt bit for bit, or refused with a reason; never half there."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.models import BuiltModel, ModelCard, build_model, load_model, save_model
from holdfast.models.weights import read_tensors
from tests.models.test_networks import shake

CLASSES = ("cat", "dog", "größe")


def card(name: str = "convnet", channels: int = 1, size: Any = 16) -> ModelCard:
    return ModelCard(
        name=name,
        num_classes=3,
        classes=CLASSES,
        in_channels=channels,
        image_size=size,
        mean=(0.25,) * channels,
        std=(0.5,) * channels,
        group_names=("red", "green"),
    )


def built(name: str = "convnet", channels: int = 1, size: Any = 16) -> BuiltModel:
    torch.manual_seed(1)
    made = build_model(
        name, num_classes=3, in_channels=channels, image_size=size, mean=[0.25] * channels, std=[0.5] * channels
    )
    shake(made.model)
    return made


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("convnet", 1, 16),
        ("convnet", 3, (16, 20)),
        ("cifar-preactresnet18", 3, 16),
        ("timm:test_resnet", 1, 32),
        ("timm:test_vit", 3, 32),
        ("torchvision:mnasnet0_5", 1, 64),
    ],
)
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, name: str, channels: int, size: Any) -> None:
    made = built(name, channels, size)
    save_model(tmp_path, made, card=card(name, channels, size))
    torch.manual_seed(7)
    loaded, read = load_model(tmp_path)
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(7)))
    x = torch.rand(2, channels, *((size, size) if isinstance(size, int) else size))
    assert not loaded.training
    assert torch.equal(loaded(x), made.model.eval()(x))
    assert read == replace(card(name, channels, size), mean=read.mean, std=read.std)
    assert (read.holdfast, read.format, read.classes) == (__version__, 1, CLASSES)


def test_the_card_carries_the_models_own_normalisation(tmp_path: Path) -> None:
    model = build_model("timm:test_resnet", num_classes=3, in_channels=1, mean=[0.1, 0.2, 0.3], std=[0.3] * 3).model
    save_model(tmp_path, model, card=card("timm:test_resnet"))
    loaded, read = load_model(tmp_path)
    assert read.mean == pytest.approx((0.1, 0.2, 0.3))
    x = torch.rand(1, 1, 32, 32)
    assert torch.equal(loaded(x), model.eval()(x))


class Wrapped(nn.Module):
    """What torch.compile and DistributedDataParallel make of a model, as far as names go."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


def test_wrapped_and_channels_last_models_are_saved_plain(tmp_path: Path) -> None:
    model = built().model.to(memory_format=torch.channels_last)
    save_model(tmp_path, Wrapped("_orig_mod", Wrapped("module", model)), card=card())
    x = torch.rand(2, 1, 16, 16)
    assert torch.allclose(load_model(tmp_path)[0](x), model.eval()(x), atol=1e-5)
    with pytest.raises(HoldfastError, match="only models from build_model can be saved, got Linear"):
        save_model(tmp_path, nn.Linear(1, 1), card=card())


def spoil(**changes: Any) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | changes)


def without(name: str) -> Callable[[str], str]:
    return lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != name})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "model.json: is not valid JSON"),
        (lambda text: "", "is not valid JSON"),
        (lambda text: "[1]", "must be a JSON object, got list"),
        (spoil(format=2, holdfast="9.1"), "has format 2, by holdfast 9.1; this version reads format 1"),
        (without("classes"), "lacks classes"),
        (without("format"), "lacks format"),
        (spoil(num_classes="three"), "num_classes must be a whole number, got 'three'"),
        (spoil(classes="abc"), "classes must be a list, got 'abc'"),
        (spoil(image_size=[1, 2, 3]), "image_size must have 2 values"),
        (spoil(num_classes=4), "classes must name each of 4 classes, got 3 names"),
        (spoil(name="konvnet"), "unknown model 'konvnet'; did you mean 'convnet'"),
        (spoil(name="cifar-vgg16"), "does not belong to the model.json beside it"),
    ],
)
def test_a_card_that_cannot_be_trusted_is_refused(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    save_model(tmp_path, built(), card=card())
    path = tmp_path / "model.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(HoldfastError, match=message):
        load_model(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no model in .*: model.json is missing"):
        load_model(tmp_path)
    save_model(tmp_path, built(), card=card())
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-10])
    with pytest.raises(HoldfastError, match=r"model.safetensors: .*damaged"):
        load_model(tmp_path)
    tensors.unlink()
    with pytest.raises(HoldfastError, match=r"model.safetensors do not exist"):
        load_model(tmp_path)


def test_flipped_bits_in_the_weights_are_noticed(tmp_path: Path) -> None:
    """Twenty at random, and single ones: in numbers, names, shapes or the checksum itself."""
    save_model(tmp_path, built(), card=card())
    path, chance = tmp_path / "model.safetensors", random.Random(0)
    whole, weights = path.read_bytes(), read_tensors(path)
    for count in [20] * 10 + [1] * 40:
        content = bytearray(whole)
        for bit in chance.sample(range(8 * len(whole)), count):
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(HoldfastError, match=r"model\.safetensors.* damaged"):
            load_model(tmp_path)
    path.write_bytes(whole)
    assert all(torch.equal(value, weights[name]) for name, value in load_model(tmp_path)[0].state_dict().items())


def test_weights_without_a_checksum_of_ours_are_read(tmp_path: Path) -> None:
    weights = built().model.state_dict()
    save_file(weights, tmp_path / "others.safetensors", metadata={"sha256": "of something else"})
    assert read_tensors(tmp_path / "others.safetensors").keys() == weights.keys()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    old = built()
    save_model(tmp_path, old, card=card())
    other = build_model("convnet", num_classes=3, in_channels=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(HoldfastError, match=r"cannot write .*model.safetensors: No space left.*free some room"):
            save_model(tmp_path, other, card=card())
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.safetensors"]
    x = torch.rand(1, 1, 16, 16)
    assert torch.equal(load_model(tmp_path)[0](x), old.model.eval()(x))


def test_a_card_names_every_class() -> None:
    with pytest.raises(HoldfastError, match="must name each of 2 classes, got 3 names"):
        replace(card(), num_classes=2)
