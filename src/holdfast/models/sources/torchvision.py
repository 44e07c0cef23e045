"""``torchvision:NAME[:WEIGHTS]``: torchvision's image classifiers, to train or with published weights and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, require, require_known, unknown
from holdfast.models.source_types import HALF, IMAGENET, ModelSource, OpenRequest, Preprocessing, Sides, SourceModel
from holdfast.models.sources.timm import IMAGENET_CLASSES, RANDOM, imagenet_names
from holdfast.parts import source

if TYPE_CHECKING:
    from torch import nn


INPUT_SIZE = {"vit": "image_size", "maxvit": "input_size"}
"""Families built for one image size, and what they call it."""
NO_WEIGHTS = "none"


@source(
    "torchvision",
    about="Image classifiers of torchvision.",
    syntax="torchvision:NAME[:WEIGHTS]",
    prefix="torchvision:",
    order=30,
)
class TorchvisionModels(ModelSource):
    def names(self) -> Sequence[str]:
        import torchvision.models as zoo

        return list(zoo.list_models(module=zoo))

    def has(self, name: str) -> bool:
        import torchvision.models as zoo

        if name in self.names():
            return True
        if name in zoo.list_models():
            why = "is not a plain image classifier: it detects, segments, takes video or is quantized"
            remedy = "'holdfast list models' shows the names that can be trained"
            raise HoldfastError(f"torchvision:{name} {why}; {remedy}")
        return False

    def build(
        self, name: str, *, num_classes: int, channels: int, image_size: Sides | None, pretrained: bool
    ) -> SourceModel:
        import torchvision.models as zoo

        from holdfast.models.heads import find_head, head_note, replace_head, width

        require(
            channels in (1, 3), f"torchvision:{name} takes grey or colour images, got {channels} channels; use timm"
        )
        weights = zoo.get_model_weights(name).DEFAULT if pretrained else None
        options = {} if pretrained else _options(name, num_classes, image_size)
        with self.getting(f"torchvision:{name}", size=image_size, pretrained=pretrained):
            net = zoo.get_model(name, weights=weights, **options)
        if weights is None:
            return SourceModel(_plain(net), channels=3)
        # transform_input, which is dropped, turns the usual normalisation into this
        preprocessing = HALF if getattr(net, "transform_input", False) else settings_of(weights)[0]
        notes = [f"weights: torchvision's {weights}"]
        theirs = width(find_head(net)[1])
        if theirs != num_classes:
            notes.append(head_note(replace_head(net, num_classes), theirs, num_classes))
        return SourceModel(_plain(net), preprocessing, channels=3, notes=tuple(notes))

    def open(self, name: str, request: OpenRequest) -> SourceModel:
        """NAME alone takes the library's default weights; NAME:none takes random ones and warns."""
        import torchvision.models as zoo

        name, _, wanted = name.partition(":")
        if not self.has(name):
            raise unknown("model", f"torchvision:{name}", [f"torchvision:{known}" for known in self.names()])
        weights = choose(zoo.get_model_weights(name), name, wanted) if request.pretrained else None
        with self.getting(f"torchvision:{name}", size=None, pretrained=True):
            net = zoo.get_model(name, weights=weights)
        preprocessing, size, crop = settings_of(weights)
        net = net.eval().to(request.device)
        if weights is None:
            random = RANDOM.format(f"torchvision:{name}")
            return SourceModel(net, preprocessing, size=size, crop=crop, channels=3, warnings=(random,))
        classes, notes = tuple(weights.meta["categories"]), (f"weights: torchvision's {weights}",)
        return SourceModel(net, preprocessing, classes, wordnet(classes), size, crop, channels=3, notes=notes)

    def expected_input(self, name: str) -> tuple[Preprocessing | None, Sides | None]:

        return IMAGENET, (224, 224) if name.split("_")[0] in INPUT_SIZE else None


def choose(published: Any, name: str, wanted: str) -> Any | None:
    """The weights of that name in torchvision's list for a model; its default where no name is given.

    >>> import torchvision.models as zoo
    >>> choose(zoo.ResNet18_Weights, "resnet18", "IMAGENET1K_V2")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown weights of torchvision:resnet18 'IMAGENET1K_V2'; did you mean ...
    """
    if wanted.lower() == NO_WEIGHTS:
        return None
    known = {weights.name: weights for weights in published}
    require_known(f"weights of torchvision:{name}", wanted or "DEFAULT", [*known, "DEFAULT", NO_WEIGHTS])
    return known.get(wanted, published.DEFAULT)


def settings_of(weights: Any | None) -> tuple[Preprocessing | None, Sides | None, float]:
    """(preprocessing, input size, crop) that published weights state; ImageNet's for none, as all its recipes have."""

    if weights is None:
        return IMAGENET, None, 1.0
    transforms = weights.transforms()
    side, before = transforms.crop_size[0], transforms.resize_size[0]
    return Preprocessing.stated(transforms.mean, transforms.std), (side, side), side / before


def wordnet(classes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """WordNet numbers and further words of each class, where the classes are ImageNet's in the usual order."""
    if len(classes) != IMAGENET_CLASSES or classes[0] != "tench":
        return ()
    numbers, words = imagenet_names()
    return tuple((number, *more) for number, more in zip(numbers, words, strict=True))


def _options(name: str, num_classes: int, size: Sides | None) -> dict[str, Any]:
    options: dict[str, Any] = {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": True, "aux_logits": False}
    if size is not None and (word := INPUT_SIZE.get(name.split("_")[0])):
        options[word] = size if word == "input_size" else size[0]
    return options


def _plain(net: nn.Module) -> nn.Module:
    """Drop what changes the output with the mode, or the input by a flag that no state dict holds."""
    plain = {"aux1": None, "aux2": None, "AuxLogits": None, "aux_logits": False, "transform_input": False}
    for name, value in plain.items():
        if hasattr(net, name):
            setattr(net, name, value)
    return net
