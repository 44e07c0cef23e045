"""Networks by name or from anywhere, to train and to audit; their heads, weights and files. Loaded when first used, so
that the declarations in ``sources`` can be read without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.models.built_model import BuiltModel, build_model
    from holdfast.models.heads import find_head, penultimate
    from holdfast.models.loaded_model import LoadedModel, open_model
    from holdfast.models.preprocessing import Normalised, PreprocessedModel
    from holdfast.models.resolution import model_names
    from holdfast.models.saved_model import ModelCard, load_model, save_model
    from holdfast.models.source_types import HALF, IMAGENET, NONE, Preprocessing
    from holdfast.models.state_dicts import load_weights

_HOMES = {
    "built_model": ("BuiltModel", "build_model"),
    "heads": ("find_head", "penultimate"),
    "loaded_model": ("LoadedModel", "open_model"),
    "preprocessing": ("Normalised", "PreprocessedModel"),
    "resolution": ("model_names",),
    "saved_model": ("ModelCard", "load_model", "save_model"),
    "source_types": ("HALF", "IMAGENET", "NONE", "Preprocessing"),
    "state_dicts": ("load_weights",),
}

__all__ = [
    "HALF",
    "IMAGENET",
    "NONE",
    "BuiltModel",
    "LoadedModel",
    "ModelCard",
    "Normalised",
    "PreprocessedModel",
    "Preprocessing",
    "build_model",
    "find_head",
    "load_model",
    "load_weights",
    "model_names",
    "open_model",
    "penultimate",
    "save_model",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"holdfast.models.{home}"), name)
    raise AttributeError(f"module 'holdfast.models' has no attribute {name!r}")
