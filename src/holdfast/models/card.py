"""What must be known to rebuild a saved model and to read its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from holdfast import __version__
from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import Size
from holdfast.settings.loader import convert

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
        require(
            len(self.classes) == self.num_classes,
            f"classes must name each of {self.num_classes} classes, got {len(self.classes)} names",
        )

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
            raise HoldfastError(f"is no valid JSON ({error}); the file was cut off or edited") from error
        require(isinstance(values, dict), f"must be a JSON object, got {type(values).__name__}")
        require(
            values.get("format", FORMAT) == FORMAT,
            f"has format {values.get('format')}, by holdfast {values.get('holdfast')}; "
            f"this version reads format {FORMAT}",
        )
        missing = [f.name for f in fields(cls) if f.name not in values]
        require(not missing, f"lacks {', '.join(missing)}; save the model anew")
        return cls(**{f.name: _field(f.name, values) for f in fields(cls)})


def _field(name: str, values: Mapping[str, Any]) -> Any:
    value, kind = values[name], get_type_hints(ModelCard)[name]
    if name == "image_size" and isinstance(value, list):
        kind = tuple[int, int]
    return convert(value, kind, name)
