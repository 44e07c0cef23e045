"""Networks from timm."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any

import timm
from timm.models import get_pretrained_cfg

from holdfast.errors import HoldfastError, unknown
from holdfast.models.architecture import Raw, Size, failure, head_note
from holdfast.models.heads import find_head
from holdfast.models.hub import cache_alone_if_unreachable


def names() -> list[str]:
    return list(timm.list_models())


def has(name: str) -> bool:
    """Whether timm has this architecture. A tag (``resnet18.a1_in1k``) names published weights."""
    if not timm.is_model(name):
        return False
    architecture, _, tag = name.partition(".")
    tags = timm.list_models(f"{architecture}.*", include_tags=True) if tag else []
    if tag and name not in tags:
        raise unknown("timm weights", name, tags)
    return True


def make(name: str, *, num_classes: int, channels: int, size: Size | None, pretrained: bool) -> Raw:
    expected = get_pretrained_cfg(name, allow_unregistered=True)
    # timm's own sign for an architecture that is built for one image size and takes img_size
    sized = expected is not None and expected.fixed_input_size and size is not None
    options: dict[str, Any] = {"img_size": size} if sized else {}
    try:
        with cache_alone_if_unreachable() if pretrained else nullcontext():
            net = timm.create_model(
                name,
                pretrained=pretrained,
                num_classes=num_classes,
                in_chans=channels,
                **options,
            )
    except Exception as error:  # builders assert, and downloads fail, in many ways
        raise HoldfastError(failure(f"timm:{name}", size, pretrained, error)) from error
    if not hasattr(net, "get_classifier"):
        raise HoldfastError(f"timm:{name} is an encoder without a classifier; choose another --model")
    if not pretrained:
        return Raw(net, channels)
    published: Any = net.pretrained_cfg
    notes = [f"weights: timm's {published['architecture']}.{published['tag']}"]
    if published["num_classes"] != num_classes:
        notes.append(head_note(find_head(net)[0], published["num_classes"], num_classes))
    mean, std = (tuple(islice(cycle(published[key]), channels)) for key in ("mean", "std"))
    return Raw(net, channels, mean, std, tuple(notes))
