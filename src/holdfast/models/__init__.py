"""Networks by name, with normalisation inside; their heads, weights and files."""

from holdfast.models.build import Built, build_model
from holdfast.models.card import ModelCard
from holdfast.models.heads import find_head, penultimate
from holdfast.models.names import model_names
from holdfast.models.normalise import Normalised
from holdfast.models.store import load_model, save_model
from holdfast.models.weights import load_weights

__all__ = [
    "Built",
    "ModelCard",
    "Normalised",
    "build_model",
    "find_head",
    "load_model",
    "load_weights",
    "model_names",
    "penultimate",
    "save_model",
]
