"""A trained model on disk: ``model.safetensors`` for the numbers, ``model.json`` for what they mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.errors import HoldfastError, require
from holdfast.files import exists, write_atomic
from holdfast.models.build import Built, build_model
from holdfast.models.card import ModelCard
from holdfast.models.files import read_tensors
from holdfast.models.normalise import Normalised, numbers
from holdfast.models.weights import copy

TENSORS = "model.safetensors"
CARD = "model.json"


def save_model(folder: str | Path, model: Built | nn.Module, *, card: ModelCard) -> None:
    """Write a model and its card into a folder; each file is there whole or not at all.

    model: what ``build_model`` made, also as wrapped by torch.compile or DistributedDataParallel. The card's
    mean and std are the model's own, whatever it says.
    """
    folder, inner = Path(folder), _unwrapped(model)
    card = replace(card, mean=numbers(inner.mean), std=numbers(inner.std))
    # Cloned: safetensors refuses tensors that share memory or lie in channels_last order.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in inner.state_dict().items()
    }
    write_atomic(folder / TENSORS, save(tensors))
    write_atomic(folder / CARD, card.to_json().encode())  # last: a folder with a card has the weights too


def load_model(folder: str | Path) -> tuple[Normalised, ModelCard]:
    """The model of a folder, in evaluation mode on the CPU, and its card. No global generator moves."""
    folder = Path(folder)
    require(exists(folder / CARD), f"no model in {folder}: {CARD} is missing; give the folder of a finished run")
    try:
        card = ModelCard.from_json((folder / CARD).read_text(encoding="utf-8"))
    except (HoldfastError, OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"cannot read {folder / CARD}: {error}") from error
    with torch.random.fork_rng(devices=[]):
        model = build_model(
            card.name,
            num_classes=card.num_classes,
            in_channels=card.in_channels,
            image_size=card.image_size,
            mean=card.mean,
            std=card.std,
        ).model
    tensors = read_tensors(folder / TENSORS)
    own = model.state_dict()
    require(
        _shapes(own) == _shapes(tensors),
        f"{folder / TENSORS} does not belong to the {CARD} beside it ({card.name}); save the model anew",
    )
    copy(own, tensors)
    return model.eval(), card


def _unwrapped(model: Built | nn.Module) -> Normalised:
    inner: object = model.model if isinstance(model, Built) else model
    while not isinstance(inner, Normalised):
        wrapped = next((getattr(inner, name) for name in ("_orig_mod", "module") if hasattr(inner, name)), None)
        if wrapped is None:
            raise HoldfastError(f"only models from build_model can be saved, got {type(inner).__name__}")
        inner = wrapped
    return inner


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}
