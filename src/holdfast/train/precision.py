"""Number formats and kernel choice, borrowed from torch's global switches and given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def kernels(precision: str, *, deterministic: bool, search: bool = True) -> Iterator[None]:
    """TF32 exactly where it was asked for, and deterministic or fastest kernels.

    search: try all kernels for each new shape of batch. Where shapes change all the time that takes longer than it
    saves.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    strict = torch.are_deterministic_algorithms_enabled()
    cuda.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    cudnn.benchmark, cudnn.deterministic = search and not deterministic, deterministic
    torch.use_deterministic_algorithms(deterministic or strict)
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
        torch.use_deterministic_algorithms(strict)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """All digits of float32, for derivatives that shorter formats would drown in noise.

    No search for kernels: convolutions that are differentiated twice and thrice are so odd that it takes a minute.
    """
    plain = kernels("fp32", deterministic=False, search=False) if device.type == "cuda" else nullcontext()
    with plain, torch.autocast(device.type, enabled=False):
        yield


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The autocast region of a precision. Its weight cache is off: a CUDA graph must not keep casts of old weights."""
    return torch.autocast(
        device.type,
        dtype=AUTOCAST.get(precision, torch.bfloat16),
        enabled=precision in AUTOCAST,
        cache_enabled=False,
    )
