"""``timm:NAME`` and ``hf-hub:OWNER/NAME``: timm's networks, to train or with their published weights and head."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from holdfast.errors import HoldfastError, explaining, require, require_known, unknown
from holdfast.models.source_types import ModelSource, OpenRequest, Preprocessing, Sides, SourceModel
from holdfast.parts import source

if TYPE_CHECKING:
    from torch import nn


RANDOM = "random weights: {} was built without its published weights, so its answers mean nothing"
HUB = "hf-hub:"
IMAGENET_CLASSES = 1000
PATIENCE = 5.0
"""Seconds that the hub of Hugging Face has to take a connection."""


@source(
    "timm",
    about="Networks of the timm library and of Hugging Face repositories in its format.",
    syntax="timm:NAME, hf-hub:OWNER/NAME",
    prefix="timm:",
    more_prefixes=(HUB,),
    order=20,
)
class TimmModels(ModelSource):
    def names(self) -> Sequence[str]:
        import timm

        return list(timm.list_models())

    def has(self, name: str) -> bool:
        """Whether timm has this architecture. A tag (``resnet18.a1_in1k``) names published weights."""
        import timm

        if not timm.is_model(name):
            return False
        architecture, _, tag = name.partition(".")
        if tag:
            require_known("timm weights", name, timm.list_models(f"{architecture}.*", include_tags=True))
        return True

    def build(
        self, name: str, *, num_classes: int, channels: int, image_size: Sides | None, pretrained: bool
    ) -> SourceModel:
        from timm.models import get_pretrained_cfg

        from holdfast.models.heads import find_head, head_note

        expected = get_pretrained_cfg(name, allow_unregistered=True)
        # timm's own sign for an architecture that is built for one image size and takes img_size
        sized = expected is not None and expected.fixed_input_size and image_size is not None
        options: dict[str, Any] = {"img_size": image_size} if sized else {}
        options |= {"num_classes": num_classes, "in_chans": channels}
        net = self._create(name, pretrained, image_size, **options)
        if not hasattr(net, "get_classifier"):
            raise HoldfastError(f"timm:{name} is an encoder without a classifier; choose another --model")
        if not pretrained:
            return SourceModel(net)
        published: Any = net.pretrained_cfg
        notes = [f"weights: timm's {published['architecture']}.{published['tag']}"]
        if published["num_classes"] != num_classes:
            notes.append(head_note(find_head(net)[0], published["num_classes"], num_classes))
        mean, std = (tuple(islice(cycle(published[key]), channels)) for key in ("mean", "std"))
        return SourceModel(net, Preprocessing.stated(mean, std), notes=tuple(notes))

    def open(self, name: str, request: OpenRequest) -> SourceModel:
        import timm

        full = name if name.startswith(HUB) else f"timm:{name}"
        if full != name:
            if not self.has(name):
                raise unknown("model", full, [f"timm:{known}" for known in self.names()])
            published = not request.pretrained or timm.is_model_pretrained(name)
            require(published, f"timm publishes no weights for {name}; bring a file along: FILE --model {full}")
        net = self._create(name, request.pretrained)
        settings = settings_of(net)
        classes, aliases = class_names(settings)
        origin = ".".join(str(settings[key]) for key in ("architecture", "tag") if settings.get(key))
        return SourceModel(
            net.eval().to(request.device),
            Preprocessing.stated(settings.get("mean"), settings.get("std")),
            classes=classes,
            aliases=aliases,
            size=input_size(settings),
            crop=float(settings.get("crop_pct") or 1),
            channels=settings["input_size"][0] if settings.get("input_size") else None,
            notes=(f"weights: timm's {origin}",) if request.pretrained and origin else (),
            warnings=() if request.pretrained else (RANDOM.format(full),),
        )

    def _create(self, name: str, pretrained: bool, size: Sides | None = None, **options: Any) -> nn.Module:
        """timm's network; every way in which it cannot be had says what to do."""
        import timm

        getting = self.getting(f"timm:{name}", size=size, pretrained=pretrained)
        if hub := name.startswith(HUB):
            remedy = "check the name (OWNER/NAME of a repository in timm's format) and the network"
            getting = explaining(f"cannot get the published weights of {name}", remedy)
        reach = cache_alone_if_unreachable() if pretrained or hub else nullcontext()  # a hub's settings are there too
        with getting, reach:
            net: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
        return net

    def expected_input(self, name: str) -> tuple[Preprocessing | None, Sides | None]:
        from timm.models import get_pretrained_cfg

        settings = get_pretrained_cfg(name, allow_unregistered=True)
        if settings is None:
            return None, None
        size = input_size({"input_size": settings.input_size}) if settings.fixed_input_size else None
        return Preprocessing.stated(settings.mean, settings.std), size


def settings_of(net: Any) -> Mapping[str, Any]:
    """What timm keeps beside a network: mean, std, input_size, label_names. Empty for others."""
    for name in ("pretrained_cfg", "default_cfg"):
        if isinstance(settings := getattr(net, name, None), Mapping):
            return settings
    return {}


def input_size(settings: Mapping[str, Any]) -> Sides | None:
    """(height, width)."""
    size = settings.get("input_size")
    return (int(size[1]), int(size[2])) if size else None


def class_names(settings: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...]]:
    """(names, other names of each): from the settings, or ImageNet's where the weights are of ImageNet-1k."""
    if labels := settings.get("label_names"):
        more = settings.get("label_descriptions") or {}
        words = more if isinstance(more, Mapping) else dict(zip(labels, more, strict=False))
        found = tuple(tuple(w.strip() for w in str(words[n]).split(",")) if n in words else () for n in labels)
        return tuple(map(str, labels)), found
    if settings.get("num_classes") == IMAGENET_CLASSES and "in1k" in str(settings.get("tag", "")):
        return imagenet_names()
    return None, ()


@cache
def imagenet_names() -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """(the WordNet number of each ImageNet class, its words). Folders on disk carry one or the other.

    >>> imagenet_names()[0][0], imagenet_names()[1][0]
    ('n01440764', ('tench', 'Tinca tinca'))
    """
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    words = (tuple(w.strip() for w in info.index_to_description(i).split(",")) for i in range(IMAGENET_CLASSES))
    return tuple(info.index_to_label_name(i) for i in range(IMAGENET_CLASSES)), tuple(words)


def reachable() -> bool:
    """Whether the hub takes connections; taken for granted behind a proxy, which alone would know."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    if address.scheme in getproxies() or "all" in getproxies():
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False


@contextmanager
def cache_alone_if_unreachable() -> Iterator[None]:
    """Files in the cache serve also where the hub cannot be reached; for others the error comes at once.

    Whether it can be reached is asked once: timm alone would ask six times over half a minute.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE or reachable():
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        lost = f"the files are not in the cache {constants.HF_HUB_CACHE} (HF_HOME names another)"
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached, and {lost}") from error
    finally:
        constants.HF_HUB_OFFLINE = False
