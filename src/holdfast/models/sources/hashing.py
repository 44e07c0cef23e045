"""SHA-256 of weights: the same numbers under the same names give the same hash, wherever they were saved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def hash_tensors(tensors: Mapping[str, Tensor]) -> str | None:
    """Of names, types, shapes and bytes, in the order of names; None where there is no tensor.

    >>> a, b = torch.tensor([1.0]), torch.tensor([2.0])
    >>> hash_tensors({"a": a, "b": b}) == hash_tensors({"b": b, "a": a}) != hash_tensors({"a": b, "b": a})
    True
    """
    if not tensors:
        return None
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}/{value.dtype}/{tuple(value.shape)}/".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Of a file's bytes: for formats that hold a program beside the weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
