"""Open any model for an audit: find its source, put what its images need before it, try it out.

Open this file to change what an audit knows about a model before it sees the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError, explaining, first_line, require
from holdfast.models.adapters import PreprocessedModel, in_its_own_precision, only_tensor, rows, uncropped
from holdfast.models.resolution import find_source, source_of
from holdfast.models.source_types import NONE, OpenRequest, Preprocessing, Sides, SourceModel
from holdfast.models.weights import hash_tensors
from holdfast.module_state import evaluating
from holdfast.parts import MODEL_SOURCES


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedModel(SourceModel):
    """An opened model with its preprocessing, tried on an input and ready to be aligned with data.

    spec: as the user wrote it. source: which kind it is, such as "timm". model: from images (B, C, H, W) in [0, 1] at
    the data's size to one row of outputs per image (logits or not: alignment finds out). preprocessing: what the user
    or the model's own settings state, None where neither does and images go in without any. read_size: at which images
    should be read so that they are cropped as in its published evaluation. no_gradients: why none reach the input, as
    tried out; None where they do. hash: None where there are no weights to hash.
    """

    spec: str
    source: str
    model: PreprocessedModel
    channels: int
    read_size: Sides | None
    no_gradients: str | None

    @property
    def gradients(self) -> bool:
        return self.no_gradients is None


def open_model(
    spec: str | Callable[..., Any],
    *,
    shape: tuple[int, int, int],
    device: torch.device | str = "cpu",
    model: str | Callable[..., Any] | None = None,
    num_classes: int | None = None,
    pretrained: bool = True,
    preprocessing: Preprocessing | None = None,
    image_size: Sides | None = None,
    name: str = "model",
) -> LoadedModel:
    """Open any model for images (B, C, H, W) in [0, 1] of the data's shape (C, H, W).

    spec: a specification (a run folder; ``timm:NAME``, ``hf-hub:OWNER/NAME``, ``torchvision:NAME[:WEIGHTS]``; a
    .safetensors or .pth file with ``model``; ``python:package.module:function``, which runs that code; a
    .torchscript, .pt2 or .onnx file; that of another package's source), or a module, or a callable from images to
    outputs. Those may state ``classes``, ``mean`` and ``std`` (plain numbers), ``input_size`` as attributes.
    model: the architecture of a weight file, as ``build_model`` takes it, or a class or function that makes it.
    num_classes: of the data, where a file does not show its own. pretrained: without it, published architectures come
    with random weights and a warning.
    preprocessing, image_size: what the user states; they win over the model's own settings. name: what to call a module
    in messages.

    >>> import torch
    >>> opened = open_model(torch.nn.Flatten(), shape=(1, 2, 2))
    >>> opened.model(torch.zeros(3, 1, 2, 2)).shape
    torch.Size([3, 4])
    """
    where = torch.device(device)
    request = OpenRequest(shape, where, model, num_classes, pretrained, preprocessing, image_size)
    part, rest = find_source(spec) if isinstance(spec, str) else (MODEL_SOURCES["module"], spec)
    found, name = source_of(part).open(rest, request), spec if isinstance(spec, str) else name
    stated = preprocessing or found.preprocessing
    size, crop = (image_size, 1.0) if image_size else (found.size, found.crop)
    channels = found.channels or shape[0]
    net, cast = in_its_own_precision(found.net)
    prepared = PreprocessedModel(net, stated or NONE, channels=channels, size=size, crop=crop).to(where)
    images = sample_images(shape, where)
    outputs, taken = try_out(prepared, images, name)
    notes = [*found.notes, *cast, *fitting_notes(name, shape, channels, size, crop), *taken]
    if found.published and found.classes is not None and len(found.classes) != outputs:
        names = f"the {len(found.classes)} class names that its architecture was published with are not its own"
        kept = "mean, std and image size are still taken from there unless you state them"
        notes.append(f"{name} gives {outputs} outputs, so {names}; {kept}")
        found = replace(found, classes=None, aliases=())
    if no_gradients := probe_gradients(prepared, images):
        notes.append(f"no gradients reach the images: {no_gradients}")
    as_used: dict[str, Any] = {"preprocessing": stated, "size": size, "crop": crop, "channels": channels}
    as_used |= {"hash": found.hash or hash_tensors(found.net.state_dict()), "notes": tuple(notes)}
    as_used |= {"spec": name, "source": part.name, "model": prepared, "no_gradients": no_gradients}
    return LoadedModel(**{**vars(found), **as_used}, read_size=None if size is None else uncropped(size, crop))


def fitting_notes(
    spec: str, shape: tuple[int, int, int], channels: int, size: Sides | None, crop: float = 1.0
) -> tuple[str, ...]:
    """What is done to the images so that the network can take them.

    >>> fitting_notes("m", (1, 8, 8), 3, (32, 32))
    ('m takes colour: it sees grey images three times over', 'images are resized from 8x8 to 32x32 for m')
    """
    notes = []
    if shape[0] == 1 and channels == 3:
        notes.append(f"{spec} takes colour: it sees grey images three times over")
    elif shape[0] == 3 and channels == 1:
        notes.append(f"{spec} takes grey: colour images are turned to their luminance for it")
    if size is not None and size != shape[1:]:
        done = "cut at the centre" if uncropped(size, crop) == shape[1:] else "resized"
        notes.append(f"images are {done} from {shape[1]}x{shape[2]} to {size[0]}x{size[1]} for {spec}")
    return tuple(notes)


def sample_images(shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Noise (2, C, H, W) in [0, 1], the same at every call."""
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def try_out(model: PreprocessedModel, x: Tensor, spec: str) -> tuple[int, tuple[str, ...]]:
    """Refuse a network that cannot take these images or returns no row of outputs. How many outputs it gives per image,
    and what was taken of its answer."""
    images = f"{'grey' if x.shape[1] == 1 else f'{x.shape[1]}-channel'} images of {x.shape[2]}x{x.shape[3]} pixels"
    taken_as = f"{model.channels} channels of {'x'.join(map(str, model.size or x.shape[2:]))}"
    remedy = "load the data at the model's own size, or state its image size and channels"
    with explaining(f"{spec} cannot take {images} (as {taken_as})", remedy), evaluating(model), torch.no_grad():
        output = model.raw(x)
    found, taken = only_tensor(output)
    given = f"{len(found)} rows of outputs for {len(x)} images"
    require(len(rows(found)) == len(x), f"{spec} gives {given}; one row per image is needed")
    return rows(found).shape[1], (f"took {taken} that the model returns",) if taken else ()


@contextmanager
def explaining_failures(size: int) -> Iterator[None]:
    """Says what to do where a network that took two images of noise fails on images of the data."""
    try:
        yield
    except (HoldfastError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model's own code may fail in any way
        remedy = "give a --batch-size that it takes, or a python: function that cuts batches for it"
        why = f"{type(error).__name__}: {first_line(error)}"
        raise HoldfastError(f"the model fails on a batch of up to {size} images: {why}; {remedy}") from error


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
        return f"differentiating failed: {first_line(error)}"
    if gradient is None or not bool(gradient.any()):
        return "the gradient is zero everywhere (rounded or detached inside)"
    return None if bool(gradient.isfinite().all()) else "the gradient is not finite"
