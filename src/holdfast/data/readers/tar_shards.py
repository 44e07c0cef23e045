"""Tar shards in WebDataset's layout: a folder of them, a single one, or a URL of either."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.data.listing import Listing, ReaderOptions
from holdfast.parts import reader


def holds_shards(path: Path) -> bool:
    """Whether there are shards directly in a folder, or in its folders; for a file its name says it."""
    if path.is_file():
        return True
    inner = [path, *(Path(entry.path) for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != ".")]
    return any(name.endswith(".tar") for folder in inner if os.access(folder, os.R_OK) for name in os.listdir(folder))


@reader(
    "shards",
    about="Tar shards in WebDataset's layout, as 'holdfast data shard' writes them: a folder, a file, or a URL.",
    suffixes=(".tar",),
    urls=True,
    recognises=holds_shards,
    order=850,
)
def read_shards(source: str | Path, options: ReaderOptions) -> Listing:
    """Images with their labels and groups, by the splits that the names of the shards say. Those without a label have
    -1. The index is made on first use where there is none."""
    from holdfast.data.open_shards import open_shards

    return open_shards(source)
