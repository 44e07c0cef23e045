"""Models to train and to audit, by name, from files or from other libraries; their heads, weights and files.

Names are imported when first used, so that the declarations in ``sources`` can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.models.adapters import Normalised, PreprocessedModel
    from holdfast.models.heads import find_head, penultimate
    from holdfast.models.loaded_model import LoadedModel, open_model
    from holdfast.models.resolution import model_names
    from holdfast.models.saved_model import BuiltModel, ModelCard, build_model, load_model, save_model
    from holdfast.models.source_types import HALF, IMAGENET, NONE, Preprocessing
    from holdfast.models.weights import load_weights

_HOMES = (
    "source_types", "resolution", "saved_model", "heads", "loaded_model", "adapters", "weights",
)  # fmt: skip
__all__ = [
    "HALF", "IMAGENET", "NONE", "BuiltModel", "LoadedModel", "ModelCard", "Normalised", "PreprocessedModel",
    "Preprocessing", "build_model", "find_head", "load_model", "load_weights", "model_names", "open_model",
    "penultimate", "save_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if hasattr(module := import_module(f"holdfast.models.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module 'holdfast.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what completion offers and the API reference documents
