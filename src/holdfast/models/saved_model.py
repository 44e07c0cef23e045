"""A trained model on disk: ``model.safetensors`` for the weights, ``model.json`` (its card) for what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

import torch
from torch import nn

from holdfast import __version__
from holdfast.errors import HoldfastError, require
from holdfast.files import exists, write_atomic
from holdfast.models.built_model import BuiltModel, build_model
from holdfast.models.preprocessing import Normalised, numbers
from holdfast.models.source_types import Size
from holdfast.models.weights import copy, pack_tensors, read_tensors
from holdfast.settings import read_environment
from holdfast.settings.fields import convert

TENSORS = "model.safetensors"
CARD = "model.json"
FORMAT = 1
"""Raised when an older holdfast could no longer read the files."""


@dataclass(frozen=True)
class ModelCard:
    """model.json, beside model.safetensors.

    name: as ``build_model`` takes it. classes: the name behind each logit. image_size: a side, or (height,
    width). mean, std: one value for each channel the network takes. group_names: what a group number means,
    where the training set had groups. holdfast: the version that saved it.
    """

    name: str
    num_classes: int
    classes: tuple[str, ...]
    in_channels: int
    image_size: Size | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    group_names: tuple[str, ...] = ()
    holdfast: str = __version__
    format: int = FORMAT

    def __post_init__(self) -> None:
        count, named = self.num_classes, len(self.classes)
        require(named == count, f"classes must name each of {count} classes, got {named} names")

    @classmethod
    def of(
        cls, built: BuiltModel, classes: Sequence[str], shape: tuple[int, int, int], group_names: Sequence[str] = ()
    ) -> ModelCard:
        """The card of a network that was built for images (C, H, W) of a shape."""
        mean, std = numbers(built.model.mean), numbers(built.model.std)
        return cls(built.name, len(classes), tuple(classes), shape[0], shape[1:], mean, std, tuple(group_names))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """Read a card, or say what is wrong with it.

        >>> ModelCard.from_json('{"format": 99, "holdfast": "7.0"}')
        Traceback (most recent call last):
        holdfast.errors.HoldfastError: has format 99, by holdfast 7.0; this version reads format 1
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise HoldfastError(f"is not valid JSON ({error}); the file was cut off or edited") from error
        require(isinstance(values, dict), f"must be a JSON object, got {type(values).__name__}")
        form = values.get("format", FORMAT)
        other = f"has format {form}, by holdfast {values.get('holdfast')}; this version reads format {FORMAT}"
        require(form == FORMAT, other)
        missing = [f.name for f in fields(cls) if f.name not in values]
        require(not missing, f"lacks {', '.join(missing)}; save the model anew")
        kinds = get_type_hints(cls)
        if isinstance(values["image_size"], list):
            kinds["image_size"] = tuple[int, int]
        return cls(**{name: convert(values[name], kind, name) for name, kind in kinds.items()})


def save_model(folder: str | Path, model: BuiltModel | nn.Module, *, card: ModelCard) -> None:
    """Write a model and its card into a folder; each file is there whole or not at all.

    model: what ``build_model`` made, also as wrapped by torch.compile or DistributedDataParallel. The card's
    mean and std are the model's own, whatever it says.

    >>> import tempfile
    >>> from holdfast.models import build_model, load_model
    >>> built = build_model("convnet", num_classes=2, in_channels=1, image_size=8)
    >>> card = ModelCard.of(built, ("cat", "dog"), (1, 8, 8))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     save_model(place, built.model, card=card)
    ...     load_model(place)[1].classes
    ('cat', 'dog')
    """
    folder, inner = Path(folder), _unwrapped(model)
    card = replace(card, mean=numbers(inner.mean), std=numbers(inner.std))
    write_atomic(folder / TENSORS, pack_tensors(inner.state_dict()))
    write_atomic(folder / CARD, card.to_json().encode())  # last: a folder with a card has the weights too


def save_weights(folder: str | Path, module: nn.Module) -> bool:
    """Write the state dict of any module, which has no card: only its owner can build it.

    Whether that could be done: safetensors take nothing but plain tensors.
    """
    try:
        content = pack_tensors(module.state_dict())
    except (AttributeError, KeyError, RuntimeError, ValueError):  # no tensor; a type unknown there; a layout; sparse
        return False
    write_atomic(Path(folder) / TENSORS, content)
    return True


def load_model(folder: str | Path) -> tuple[Normalised, ModelCard]:
    """The model of a folder, in evaluation mode on the CPU, and its card. No global generator moves.

    >>> import tempfile, holdfast
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = holdfast.fit("digits", epochs=1, out=f"{place}/run", device="cpu", progress=False)
    ...     model, card = load_model(f"{place}/run")
    >>> card.num_classes, model.training
    (10, False)
    """
    folder = Path(folder)
    if not exists(folder / CARD):
        raise _without_card(folder)
    try:
        card = ModelCard.from_json((folder / CARD).read_text(encoding="utf-8"))
    except (HoldfastError, OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"cannot read {folder / CARD}: {error}") from error
    options = {name: getattr(card, name) for name in ("num_classes", "in_channels", "image_size", "mean", "std")}
    with torch.random.fork_rng(devices=[]):
        model = build_model(card.name, **options).model
    tensors = read_tensors(folder / TENSORS)
    own = model.state_dict()
    ours, theirs = ({name: value.shape for name, value in each.items()} for each in (own, tensors))
    matches = f"does not belong to the {CARD} beside it ({card.name})"
    require(ours == theirs, f"{folder / TENSORS} {matches}; save the model anew")
    copy(own, tensors)
    return model.eval(), card


def _without_card(folder: Path) -> HoldfastError:
    own = read_environment(folder).get("own_model")
    if own is None:
        return HoldfastError(f"no model in {folder}: {CARD} is missing; give the folder of a finished run")
    weights = str(folder / TENSORS) if exists(folder / TENSORS) else f"its weights out of {folder / 'checkpoint'}"
    return HoldfastError(
        f"{folder} was trained with a module of its own, {own}, which only your code can build; load {weights} into it "
        "and give it to holdfast.audit, or name a function that does so: holdfast audit python:MODULE:FUNCTION"
    )


def _unwrapped(model: BuiltModel | nn.Module) -> Normalised:
    inner: object = model.model if isinstance(model, BuiltModel) else model
    while not isinstance(inner, Normalised):
        wrapped = next((getattr(inner, name) for name in ("_orig_mod", "module") if hasattr(inner, name)), None)
        if wrapped is None:
            raise HoldfastError(f"only models from build_model can be saved, got {type(inner).__name__}")
        inner = wrapped
    return inner
