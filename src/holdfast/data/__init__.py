"""Sets of labelled images, wherever they come from.

Names are imported when first used, so that the readers can be declared without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.data.load_data import load
    from holdfast.data.open_shards import index
    from holdfast.data.sharding import shard
    from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Split, aligned_groups

__all__ = ["ArraySplit", "Dataset", "FileSplit", "Split", "aligned_groups", "index", "load", "shard"]
_HOMES = {"load": "load_data", "index": "open_shards", "shard": "sharding"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'splits')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what completion offers and the API reference documents
