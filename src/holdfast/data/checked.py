"""Arrays from anywhere, checked number by number and brought to the types that splits hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require

Array = npt.NDArray[Any]
Given = Tensor | npt.ArrayLike
"""What may be handed over for an array."""


def to_images(given: Given, what: str) -> Tensor:
    """Images as uint8 (N, C, H, W) from (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or float in [0, 1].

    C is 1 or 3. Where both the last and the second axis could be channels, the last one is taken; of a tensor the
    second, as torch has it, and where neither could, the second has as many as it has. A tensor that is such images
    already is returned as it is, and so is an empty part of one.
    """
    ordered = (
        isinstance(given, Tensor) and given.ndim == 4 and (given.shape[1] in (1, 3) or given.shape[3] not in (1, 3))
    )
    if isinstance(given, Tensor) and ordered and given.dtype == torch.uint8 and given.shape[2:].numel():
        return given.cpu()
    x = _array(given, what)
    if x.ndim == 3:
        x = x[:, None]
    elif ordered:
        pass
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in (1, 3):
        raise HoldfastError(
            f"{what} has shape {x.shape}; images are (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3"
        )
    require(x.size > 0, f"{what} has shape {x.shape} as (N, C, H, W): there is no pixel in it")
    if x.dtype == np.uint8:
        return torch.from_numpy(np.require(x, requirements=["C", "W"]))  # torch warns of what it may not write to
    if x.dtype.kind != "f":
        raise HoldfastError(
            f"{what} is of type {x.dtype}; give uint8 (as .astype('uint8') makes it), or float in [0, 1]"
        )
    finite = np.isfinite(x)
    if not finite.all():
        bad = np.argwhere(~finite)
        raise HoldfastError(
            f"{what} has {len(bad)} values that are NaN or infinite, the first in image {bad[0][0]} "
            f"(channel, row, column {tuple(bad[0][1:].tolist())}); repair or remove these images"
        )
    low, high = float(x.min()), float(x.max())
    require(
        low >= 0 and high <= 1,
        f"{what} has floats from {low:g} to {high:g}; scale them to [0, 1], or give uint8 in 0..255",
    )
    return torch.from_numpy(np.rint(x.astype(np.float32, order="C") * 255).astype(np.uint8))


def to_whole(given: Given, what: str, *, least: int) -> Tensor:
    """Labels or groups as int64 (N,) from (N,) or (N, 1) whole numbers of any type."""
    values = _array(given, what)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    require(
        values.ndim == 1,
        f"{what} has shape {values.shape}; give one whole number a sample (one-hot rows: take argmax(1))",
    )
    require(
        values.dtype.kind in "iubf",
        f"{what} is of type {values.dtype}; give whole numbers, such as type int64",
    )
    if values.dtype.kind == "f":
        # from 2**53 on a float cannot tell neighbouring whole numbers apart
        odd = ~np.isfinite(values) | (values != np.rint(values)) | (np.abs(values) > 2**53)
        if odd.any():
            at = int(odd.argmax())
            raise HoldfastError(f"{what} has {values[at]} at position {at}; give whole numbers")
    whole = np.require(values, np.int64, ["C", "W"])
    if (whole < least).any():
        at = int((whole < least).argmax())
        raise HoldfastError(f"{what} has {values[at]} at position {at}; the least allowed is {least}")
    return torch.from_numpy(whole)


def _array(given: Given, what: str) -> Array:
    try:
        if isinstance(given, Tensor):
            given = given.detach().cpu()
            given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()  # a type numpy does not have
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise HoldfastError(f"{what} is no array ({error}); give a numpy array or a tensor") from error
