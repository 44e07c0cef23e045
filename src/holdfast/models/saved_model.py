"""A model by name, ready to train: the network, a head for these classes, normalisation before it; and a trained one
on disk: ``model.safetensors`` for the weights, ``model.json`` (its card) for what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor, nn

from holdfast import __version__
from holdfast.errors import HoldfastError, explaining, require
from holdfast.files import exists, write_atomic
from holdfast.models.adapters import Normalised, numbers
from holdfast.models.resolution import resolve, source_of
from holdfast.models.source_types import NONE, Preprocessing, Sides, Size, both_sides
from holdfast.models.weights import copy, load_tensors, pack_tensors, read_tensors, takes_colour
from holdfast.module_state import evaluating
from holdfast.settings import handed_over, read_environment
from holdfast.settings.fields import convert


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A model, the full name it was found under, and what to tell the user about how it was made."""

    model: Normalised
    name: str
    notes: tuple[str, ...] = ()


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: Size | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    statistics: tuple[Sequence[float], Sequence[float]] | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> BuiltModel:
    """Build the model of that name for images (B, in_channels, H, W) in [0, 1].

    name: one of holdfast's own, ``timm:NAME``, ``torchvision:NAME``, a name of another package's source, or a bare name
    that is looked up in that order. image_size: a side, or (height, width); a model that cannot take it is refused here
    rather than in the first step. mean, std: one value per channel, in [0, 1]; weights that bring their own win. Three
    values for grey images make a colour network that sees the grey picture three times. statistics: mean and std of the
    data, which are used where nothing else says; a file of weights without any is taken to expect what the library's
    own weights do. pretrained: start from what the source publishes. weights: start from a file. Fresh layers draw from
    torch's global generator.

    >>> built = build_model("convnet", num_classes=10, in_channels=1, mean=[0.3], std=[0.2])
    >>> built.model(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    """
    require(num_classes >= 1, f"num_classes must be >= 1, got {num_classes}")
    require(in_channels >= 1, f"in_channels must be >= 1, got {in_channels}")
    size = None if image_size is None else both_sides(image_size)
    require(size is None or min(size) >= 1, f"image_size must be >= 1, got {image_size}")
    require(not (pretrained and weights), f"pretrained and weights ({weights}) exclude each other; give one of them")
    part, inner = resolve(name)
    tensors = read_tensors(weights) if weights is not None else None
    given, measured = Preprocessing.stated(mean, std), Preprocessing.stated(*(statistics or (None, None)))
    three = any(found is not None and len(found.mean) == 3 for found in (given, measured))
    colour = pretrained or three or (tensors is not None and takes_colour(tensors))
    channels = 3 if in_channels == 1 and colour else in_channels
    raw = source_of(part).build(
        inner, num_classes=num_classes, channels=channels, image_size=size, pretrained=pretrained
    )
    channels = raw.channels or channels
    full, expected = f"{part.prefix}{inner}", source_of(part).expected_input(inner)[0] if tensors is not None else None
    used = (raw.preprocessing or given or expected or measured or NONE).for_channels(channels)
    model = Normalised(raw.net, used.mean, used.std)
    notes = list(raw.notes)
    if raw.preprocessing is not None:
        notes.append(f"normalisation from the weights: {model.extra_repr()}")
    if channels == 3 and in_channels == 1:
        notes.append(f"{full} takes colour: it sees grey images three times over")
    if tensors is not None:
        notes += load_tensors(model, tensors, origin=str(weights)).notes
    if size is not None:
        _try_out(model, full, num_classes, in_channels, size)
    return BuiltModel(model, full, tuple(notes))


def _try_out(model: Normalised, name: str, num_classes: int, in_channels: int, size: Sides) -> None:
    """Refuse a network that cannot take these images or does not give one logit per class."""
    refused = explaining(f"{name} cannot take {size[0]}x{size[1]} images", "change --image-size or --model")
    with refused, evaluating(model), torch.no_grad():
        logits = model(torch.zeros(1, in_channels, *size))
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    require(got == (1, num_classes), f"{name} is not an image classifier: it gives {got} instead of {(1, num_classes)}")


TENSORS = "model.safetensors"
CARD = "model.json"
FORMAT = 1
"""Raised when an older holdfast could no longer read the files."""


@dataclass(frozen=True)
class ModelCard:
    """What model.json says about the weights beside it: the network, its classes and its normalisation.

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
    """Load the model of a run folder, in evaluation mode on the CPU, and its card; global generators are not used.

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
    own = handed_over(read_environment(folder), "model")
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


def shape_for(card: ModelCard | None) -> tuple[int, int, int] | None:
    """(C, H, W) that a classifier takes; None where it takes any size."""
    if card is None or card.image_size is None:
        return None
    size = card.image_size
    return (card.in_channels, size, size) if isinstance(size, int) else (card.in_channels, *size)
