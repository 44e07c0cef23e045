"""A weight file with the architecture it belongs to; the head is the file's own, never a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, require
from holdfast.models.resolution import resolve, source_of, unambiguous
from holdfast.models.source_types import PICKLED, ModelSource, OpenRequest, Preprocessing, Sides, SourceModel
from holdfast.models.sources.python import make_module, maker_name
from holdfast.parts import source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from holdfast.models.adapters import Normalised


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

        from holdfast.models.adapters import Normalised, numbers
        from holdfast.models.saved_model import build_model
        from holdfast.models.weights import hash_tensors, load_tensors, read_tensors, takes_colour

        tensors = read_tensors(name)
        if request.model is None:
            remedy = "name the architecture they belong to with --model, such as --model timm:resnet18"
            raise HoldfastError(f"{name} holds weights alone; {remedy}")
        own = not isinstance(request.model, str)  # a class, function or module, from Python
        model_name = maker_name(request.model) if own else unambiguous(request.model)
        channels = 3 if takes_colour(tensors) else request.shape[0]

        def built(num_classes: int, known: Preprocessing, size: Sides | None = None) -> Normalised:
            with torch.random.fork_rng(devices=[]):
                if own:
                    net = make_module(request.model, num_classes=num_classes, channels=channels)
                    return Normalised(net, known.mean, known.std)
                like: dict[str, Any] = {
                    "in_channels": channels,
                    "mean": known.mean,
                    "std": known.std,
                    "image_size": size,
                }
                return build_model(model_name, num_classes=num_classes, **like).model

        any_input = Preprocessing().for_channels(channels)
        classes = head_size(built(2, any_input).net, tensors) or request.num_classes
        if classes is None:
            raise HoldfastError(f"{name} does not show how many classes it has; state num_classes")
        of_library, only_size = (None, None) if own else _expected_input(model_name)
        assumed = request.preprocessing or of_library
        model = built(classes, (assumed or Preprocessing()).for_channels(channels), request.image_size)
        loaded = load_tensors(model, tensors, origin=name)
        lost = f"{name} lacks the classifier of {model_name} ({'; '.join(loaded.fresh_heads)})"
        require(not loaded.fresh_heads, f"{lost}; its answers would mean nothing")
        if loaded.normalisation:
            assumed = Preprocessing(numbers(model.mean), numbers(model.std))
        net, digest = model.net.eval().to(request.device), hash_tensors(model.state_dict())
        return SourceModel(net, assumed, size=only_size, channels=channels, hash=digest, notes=loaded.notes)


def _expected_input(name: str) -> tuple[Preprocessing | None, Sides | None]:
    part, inner = resolve(name)
    return source_of(part).expected_input(inner)


def head_size(net: nn.Module, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the file's own classifier has; None where it is not found under its name in the network."""
    from holdfast.models.heads import find_heads
    from holdfast.models.weights import find_prefix

    prefix = find_prefix(tensors, net.state_dict())
    found = [tensors.get(f"{prefix}{head}.weight") for head, _ in find_heads(net)]
    return next((len(value) for value in found if value is not None), None)
