"""``torchvision:NAME[:WEIGHTS]``: published weights with the head they were published with."""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, unknown
from holdfast.models.architecture import reason
from holdfast.models.from_torchvision import has, names
from holdfast.models.sources import imagenet
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import IMAGENET, Preprocessing, stated
from holdfast.models.sources.timm import RANDOM

NO_WEIGHTS = "none"


def find(spec: str, asked: Asked) -> Found:
    """NAME alone takes the library's default weights; NAME:none takes random ones and warns."""
    import torchvision.models as zoo

    name, _, wanted = spec.partition(":")
    if not has(name):
        raise unknown("model", f"torchvision:{name}", [f"torchvision:{known}" for known in names()])
    weights = choose(zoo.get_model_weights(name), name, wanted) if asked.pretrained else None
    try:
        net = zoo.get_model(name, weights=weights)
    except Exception as error:  # downloads fail in many ways
        raise HoldfastError(
            f"cannot get the published weights of torchvision:{name}: {reason(error)}; "
            f"without a network, bring the file along: FILE --model torchvision:{name}"
        ) from error
    random = (RANDOM.format(f"torchvision:{name}"),)
    preprocessing, size, crop = settings_of(weights)
    classes = None if weights is None else tuple(weights.meta["categories"])
    return Found(
        net.eval().to(asked.device),
        preprocessing,
        classes=classes,
        aliases=wordnet(classes),
        size=size,
        crop=crop,
        channels=3,
        hash=hash_tensors(net.state_dict()),
        notes=() if weights is None else (f"weights: torchvision's {weights}",),
        warnings=random if weights is None else (),
    )


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
    if wanted and wanted not in known and wanted != "DEFAULT":
        raise unknown(f"weights of torchvision:{name}", wanted, [*known, "DEFAULT", NO_WEIGHTS])
    return known.get(wanted, published.DEFAULT)


def settings_of(weights: Any | None) -> tuple[Preprocessing | None, tuple[int, int] | None, float]:
    """(preprocessing, input size, crop) that published weights state; ImageNet's for none, as all its recipes have."""
    if weights is None:
        return IMAGENET, None, 1.0
    transforms = weights.transforms()
    side, before = transforms.crop_size[0], transforms.resize_size[0]
    return stated(transforms.mean, transforms.std), (side, side), side / before


def wordnet(classes: tuple[str, ...] | None) -> tuple[tuple[str, ...], ...]:
    """WordNet numbers and further words of each class, where the classes are ImageNet's in the usual order."""
    if classes is None or len(classes) != imagenet.CLASSES or classes[0] != "tench":
        return ()
    numbers, words = imagenet.names()
    return tuple((number, *more) for number, more in zip(numbers, words, strict=True))
