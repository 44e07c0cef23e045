"""A weight file with the architecture it belongs to; the head is the file's own, never a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, require
from holdfast.models.resolution import resolve, source_of, unambiguous
from holdfast.models.source_types import PICKLED, ModelSource, OpenRequest, Preprocessing, SourceModel
from holdfast.parts import source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@source(
    "weights",
    about="The weights of an architecture that --model names.",
    syntax="a .safetensors or .pth file with --model",
    suffixes=(".safetensors", *PICKLED),
    order=65,  # after torchscript, which looks into a .pt file first
)
class WeightFiles(ModelSource):
    def open(self, name: str, request: OpenRequest) -> SourceModel:
        import torch

        from holdfast.models.built_model import build_model
        from holdfast.models.preprocessing import numbers
        from holdfast.models.weights import hash_tensors, load_tensors, read_tensors, takes_colour

        tensors = read_tensors(name)
        if request.model is None:
            remedy = "name the architecture they belong to with --model, such as --model timm:resnet18"
            raise HoldfastError(f"{name} holds weights alone; {remedy}")
        model_name = unambiguous(request.model)
        classes = head_size(model_name, tensors) or request.num_classes
        if classes is None:
            raise HoldfastError(f"{name} does not show how many classes it has; state num_classes")
        part, inner = resolve(model_name)
        of_library, only_size = source_of(part).expected_input(inner)
        assumed = request.preprocessing or of_library
        channels = 3 if takes_colour(tensors) else request.shape[0]
        known = (assumed or Preprocessing()).for_channels(channels)
        with torch.random.fork_rng(devices=[]):
            model = build_model(
                model_name,
                num_classes=classes,
                in_channels=channels,
                image_size=request.image_size,
                mean=known.mean,
                std=known.std,
            ).model
        loaded = load_tensors(model, tensors, origin=name)
        lost = f"{name} lacks the classifier of {model_name} ({'; '.join(loaded.fresh_heads)})"
        require(not loaded.fresh_heads, f"{lost}; its answers would mean nothing")
        if loaded.normalisation:
            assumed = Preprocessing(numbers(model.mean), numbers(model.std))
        net, digest = model.net.eval().to(request.device), hash_tensors(model.state_dict())
        return SourceModel(net, assumed, size=only_size, channels=channels, hash=digest, notes=loaded.notes)


def head_size(name: str, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the file's own classifier has; None where it is not found under its name."""
    import torch

    from holdfast.models.built_model import build_model
    from holdfast.models.heads import find_heads
    from holdfast.models.weights import find_prefix, takes_colour

    with torch.random.fork_rng(devices=[]):
        net = build_model(name, num_classes=2, in_channels=3 if takes_colour(tensors) else 1).model.net
    prefix = find_prefix(tensors, net.state_dict())
    found = [tensors.get(f"{prefix}{head}.weight") for head, _ in find_heads(net)]
    return next((len(value) for value in found if value is not None), None)
