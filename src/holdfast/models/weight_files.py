"""Tensors from weight files, without running anything the files contain, and hashes of them."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from holdfast.errors import HoldfastError, first_line, require
from holdfast.files import exists
from holdfast.models.source_types import PICKLED

NESTS = ("state_dict", "model", "model_state", "model_state_dict")
"""Where training scripts keep the weights inside a checkpoint."""


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors file, or of a .pth file under torch's tensors-only unpickler."""
    path = Path(path)
    require(exists(path), f"weights {path} do not exist; give --weights a .safetensors or .pth file")
    require(path.is_file(), f"weights {path} is a folder; give a file, such as {path / 'model.safetensors'}")
    require(
        path.suffix in (".safetensors", *PICKLED),
        f"weights {path} must be .safetensors or {', '.join(PICKLED)}, not {path.suffix!r}",
    )
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _unwrap(_unpickle(path), path)
    for name, value in found.items():
        require(
            _is_plain(value),
            f"weights {path} hold {name} as {_dtype(value)}, where plain numbers are needed; "
            "convert it to float32, with its scale if it has one, and save it again",
        )
    return found


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor's numbers are what they say: dense, real, there at all, and not to be scaled by others."""
    packed = value.is_quantized or (value.is_floating_point() and value.element_size() < 2)
    return value.layout == torch.strided and not (packed or value.is_complex() or value.is_meta)


def _dtype(value: Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    if value.is_meta:
        return f"{kind} without values"
    return kind if value.layout == torch.strided else f"{kind} in {str(value.layout).removeprefix('torch.')} layout"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise HoldfastError(
            f"cannot read weights {path}: {first_line(error)}; it is damaged or not a safetensors file"
        ) from error


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise HoldfastError(
            f"weights {path} hold more than tensors, a whole pickled model perhaps, or are damaged; loading them could "
            "run any code. If you trust the file, save its tensors alone with torch.save(model.state_dict(), "
            "'weights.pth'); or, to audit it, give a function that loads and returns it: python:module:function"
        ) from error
    except Exception as error:  # damaged archives fail in many ways
        raise HoldfastError(
            f"cannot read weights {path}: {first_line(error)}; it is damaged or not from torch.save"
        ) from error


def _unwrap(value: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside what was saved, however deep a training script nested it."""
    while isinstance(value, Mapping):
        inner = next((value[key] for key in NESTS if isinstance(value.get(key), Mapping)), None)
        if inner is None:
            break
        value = inner
    tensors = {str(k): v for k, v in value.items() if isinstance(v, Tensor)} if isinstance(value, Mapping) else {}
    require(
        bool(tensors),
        f"weights {path} hold no named tensors but {_kind(value)}; save model.state_dict() with torch.save",
    )
    return tensors


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(map(str, list(value)[:5])) or 'none'}"
    return f"a {type(value).__name__}"


def takes_colour(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer takes three channels; deeper ones take more, depthwise ones take one."""
    return any(value.ndim == 4 and value.shape[1] == 3 for value in tensors.values())


def hash_tensors(tensors: Mapping[str, Tensor]) -> str | None:
    """SHA-256 of names, types, shapes and bytes, in the order of names; None where there is no tensor.

    The same numbers under the same names give the same hash, wherever they were saved.

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
