"""Models from anywhere: one file a source, each handing over a network and what its own settings say."""

from holdfast.models.sources.open import SOURCES, open_model, open_module
from holdfast.models.sources.opened import Found, Opened
from holdfast.models.sources.prepared import Prepared
from holdfast.models.sources.preprocessing import HALF, IMAGENET, NONE, Preprocessing

__all__ = [
    "HALF",
    "IMAGENET",
    "NONE",
    "SOURCES",
    "Found",
    "Opened",
    "Prepared",
    "Preprocessing",
    "open_model",
    "open_module",
]
