"""Classifiers on a VAE's encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.models import ModelCard, build_model, load_model, save_model
from holdfast.models.vae import VAE, LatentClassifier, VAESettings

SHAPE = (1, 12, 10)


def built(name: str = "vae-head") -> LatentClassifier:
    inner = build_model(name, num_classes=3, in_channels=1, image_size=SHAPE[1:], mean=[0.4], std=[0.2]).model.net
    assert isinstance(inner, LatentClassifier)
    return inner


def test_it_classifies_what_the_vae_says() -> None:
    net, vae = built(), VAE(VAESettings(SHAPE, latent=16))
    net.start_from(vae)
    x = torch.rand(5, *SHAPE)
    torch.testing.assert_close(net(x), net.head(vae(x)))
    model = build_model("vae-head", num_classes=3, in_channels=1, image_size=SHAPE[1:], mean=[0.4], std=[0.2]).model
    torch.testing.assert_close(model(x), model.net(x))  # pictures come as they are, whatever their statistics


@pytest.mark.parametrize(("name", "held"), [("vae-head", True), ("vae-classifier", False)])
def test_only_a_head_holds_the_encoder_still(name: str, held: bool) -> None:
    net = built(name)
    moving = {n.split(".")[0] for n, p in net.named_parameters() if p.requires_grad}
    assert moving == ({"head"} if held else {"encoder", "to_mean", "head"})


def test_saved_and_loaded(tmp_path: Path) -> None:
    made = build_model("vae-classifier", num_classes=3, in_channels=1, image_size=SHAPE[1:])
    card = ModelCard("vae-classifier", 3, ("a", "b", "c"), 1, SHAPE[1:], (0.0,), (1.0,))
    save_model(tmp_path, made, card=card)
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(load_model(tmp_path)[0](x), made.model.eval()(x))


def test_bad_input_is_refused() -> None:
    with pytest.raises(HoldfastError, match="must know the size"):
        build_model("vae-head", num_classes=3)
    with pytest.raises(HoldfastError, match="the VAE is"):
        built().start_from(VAE(VAESettings(SHAPE, latent=4)))
