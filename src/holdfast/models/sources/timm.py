"""``timm:NAME`` and ``hf-hub:OWNER/NAME``: published weights with the head they were published with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import nn

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import reason
from holdfast.models.sources import imagenet
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import stated

RANDOM = "random weights: {} was built without its published weights, so its answers mean nothing"
HUB = "hf-hub:"


def find(name: str, asked: Asked) -> Found:
    if not name.startswith(HUB):
        from holdfast.models.names import resolve

        name = resolve(f"timm:{name}")[1]
    full = name if name.startswith(HUB) else f"timm:{name}"
    net = create(name, full, pretrained=asked.pretrained)
    settings = settings_of(net)
    classes, aliases = class_names(settings)
    origin = ".".join(str(settings[key]) for key in ("architecture", "tag") if settings.get(key))
    return Found(
        net.eval().to(asked.device),
        stated(settings.get("mean"), settings.get("std")),
        classes=classes,
        aliases=aliases,
        size=input_size(settings),
        crop=float(settings.get("crop_pct") or 1),
        channels=settings["input_size"][0] if settings.get("input_size") else None,
        hash=hash_tensors(net.state_dict()),
        notes=(f"weights: timm's {origin}",) if asked.pretrained and origin else (),
        warnings=() if asked.pretrained else (RANDOM.format(full),),
    )


def create(name: str, full: str, *, pretrained: bool) -> nn.Module:
    """timm's network; every way it fails to come says what to do."""
    import timm

    from holdfast.models.hub import cache_alone_if_unreachable

    asks = pretrained or name.startswith(HUB)  # a hub model's settings lie there too
    require(
        not pretrained or name.startswith(HUB) or timm.is_model_pretrained(name),
        f"timm publishes no weights for {name}; bring a file along: FILE --model {full}",
    )
    try:
        with cache_alone_if_unreachable() if asks else nullcontext():
            return timm.create_model(name, pretrained=pretrained)
    except Exception as error:  # downloads and foreign settings fail in many ways
        hint = (
            "check the name (OWNER/NAME of a repository in timm's format) and the network"
            if name.startswith(HUB)
            else f"without a network, bring the file along: FILE --model {full}"
        )
        raise HoldfastError(f"cannot get the published weights of {full}: {reason(error)}; {hint}") from error


def settings_of(net: Any) -> Mapping[str, Any]:
    """What timm keeps beside a network: mean, std, input_size, label_names. Empty for others."""
    for name in ("pretrained_cfg", "default_cfg"):
        if isinstance(settings := getattr(net, name, None), Mapping):
            return settings
    return {}


def input_size(settings: Mapping[str, Any]) -> tuple[int, int] | None:
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
    if settings.get("num_classes") == imagenet.CLASSES and "in1k" in str(settings.get("tag", "")):
        return imagenet.names()
    return None, ()
