"""SHA-256 of data: the same samples give the same hash, wherever they lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Split
from holdfast.errors import HoldfastError

MOST_BYTES: Final = 2**30
"""Files of more than this in all are told apart by names and sizes; reading them would take too long."""


def hash_data(data: Dataset, splits: Iterable[Split | None]) -> dict[str, str]:
    """SHA-256 of some splits of a set, and what it was taken over; the order counts."""
    digest = hashlib.sha256(json.dumps([data.classes, data.group_names]).encode())
    kinds = [_hash_split(split, digest) for split in splits if split is not None]
    return {"hash": digest.hexdigest(), "hash_over": max(kinds, key=len, default="nothing")}


def _hash_split(split: Split, digest: Any) -> str:
    digest.update(json.dumps([len(split), list(split.shape)]).encode())
    for numbers in (split.labels, split.groups):
        digest.update(numbers.cpu().contiguous().numpy().tobytes())
    inner: Any = split
    while not isinstance(inner, (ArraySplit, FileSplit)) and hasattr(inner, "inner"):
        inner = inner.inner
    if isinstance(inner, FileSplit):
        return _hash_files(inner.paths, digest)
    for part in torch.split(torch.arange(len(split)), 4096):
        digest.update(split.read(part).contiguous().numpy().tobytes())
    return "pixels"


def _hash_files(paths: Iterable[Path], digest: Any) -> str:
    listed = list(paths)
    try:
        sizes = [path.stat().st_size for path in listed]
        whole = sum(sizes) <= MOST_BYTES
        for path, size in zip(listed, sizes, strict=True):
            digest.update(f"{path.parent.name}/{path.name}/{size}/".encode("utf-8", "surrogateescape"))
            if whole:
                digest.update(path.read_bytes())
    except OSError as error:
        raise HoldfastError(
            f"cannot read {error.filename}: {error.strerror}; check the data with 'holdfast data check'"
        ) from error
    return "files" if whole else "names and sizes of files"
