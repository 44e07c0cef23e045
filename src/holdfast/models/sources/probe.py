"""What can only be found out by trying: whether a network takes these images, and whether gradients come back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import reason
from holdfast.models.sources.outputs import only_tensor, rows
from holdfast.models.sources.prepared import Prepared
from holdfast.module_state import evaluating


def sample_images(shape: tuple[int, int, int], device: torch.device, n: int = 2) -> Tensor:
    """Noise (n, C, H, W) in [0, 1], the same at every call."""
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def try_out(model: Prepared, x: Tensor, spec: str) -> tuple[str, ...]:
    """Refuse a network that cannot take these images or returns no row of outputs; what was taken of its answer."""
    images = f"{'grey' if x.shape[1] == 1 else f'{x.shape[1]}-channel'} images of {x.shape[2]}x{x.shape[3]} pixels"
    try:
        with evaluating(model), torch.no_grad():
            output = model.raw(x)
    except HoldfastError:
        raise
    except Exception as error:  # networks refuse sizes and channels in many ways
        raise HoldfastError(
            f"{spec} cannot take {images}"
            f" (as {model.channels} channels of {'x'.join(map(str, model.size or x.shape[2:]))}): {reason(error)}; "
            "load the data at the model's own size, or state its image size and channels"
        ) from error
    found, taken = only_tensor(output)
    require(
        len(rows(found)) == len(x),
        f"{spec} gives {len(found)} rows of outputs for {len(x)} images; one row an image is needed",
    )
    return (f"took {taken} that the model returns",) if taken else ()


def failed_batch(error: Exception, size: int) -> HoldfastError:
    """What to say of a network that took two images of noise, and fails on images of the data."""
    return HoldfastError(
        f"the model fails on a batch of up to {size} images: {type(error).__name__}: {reason(error)}; give a "
        "--batch-size that it takes, or a python: function that cuts batches for it"
    )


def probe_gradients(model: nn.Module, x: Tensor) -> str | None:
    """None where a gradient of the outputs reaches the images; else why not.

    Outputs are weighted before they are summed: where they always add up to the same, a plain sum would have none.
    """
    x = x.detach().clone().requires_grad_(True)
    try:
        with evaluating(model), torch.enable_grad():
            outputs = model(x)
            if not outputs.requires_grad:
                return "the outputs are cut off from the images (no_grad, detach, or another runtime)"
            weights = torch.linspace(-1, 1, outputs.shape[1], device=outputs.device)
            (gradient,) = torch.autograd.grad((outputs * weights).sum(), x, allow_unused=True)
    except Exception as error:  # what keeps gradients from flowing raises in many ways
        return f"differentiating failed: {reason(error)}"
    if gradient is None or not bool(gradient.any()):
        return "the gradient is zero everywhere (rounded or detached inside)"
    return None if bool(gradient.isfinite().all()) else "the gradient is not finite"
