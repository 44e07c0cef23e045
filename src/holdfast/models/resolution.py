"""Which source a model's name or specification belongs to. Open this file to change how ``--model`` and ``audit
MODEL`` are understood.

Training resolves the name of an architecture (:func:`resolve`), an audit anything that can be opened
(:func:`find_source`). Both ask the declared sources, in their order; nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from holdfast.errors import HoldfastError, plain_name, require, unknown
from holdfast.files import exists
from holdfast.models.source_types import ModelSource
from holdfast.parts import MODEL_SOURCES, SourcePart, model_syntax


def source_of(part: SourcePart) -> ModelSource:
    made: ModelSource = part.made()
    return made


def model_names() -> dict[str, list[str]]:
    """Every architecture that can be trained, by source: holdfast's own, timm's, torchvision's, other packages'.

    >>> "convnet" in model_names()["holdfast"]
    True
    """
    return {part.name: list(source_of(part).names()) for part in _trainable()}


def resolve(name: str) -> tuple[SourcePart, str]:
    """(source, name there) of an architecture to train. A bare name is looked up in the order of the sources.

    >>> [(part.name, inner) for part, inner in map(resolve, ("convnet", "resnet18", "torchvision:resnet18"))]
    [('holdfast', 'convnet'), ('timm', 'resnet18'), ('torchvision', 'resnet18')]
    >>> resolve("ResNet-18")[1]
    'resnet18'
    >>> resolve("cifar-resnet")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown model 'cifar-resnet'; did you mean 'cifar-resnet18' or ...
    """
    if (found := _by_prefix(name)) is not None:
        part, inner = found
        require(part.made.trains(), f"{part.syntax} can be audited, not trained; 'holdfast list models' shows what can")
        if not source_of(part).has(inner):
            raise unknown("model", name, [f"{part.prefix}{known}" for known in source_of(part).names()])
        return part, inner
    for part in _trainable():
        if source_of(part).has(name):
            return part, name
    for part in _trainable():  # as papers write it: ResNet-18
        for known in source_of(part).names():
            if plain_name(known) == plain_name(name):
                return part, known
    every = dict.fromkeys(known for names in model_names().values() for known in names)
    raise unknown("model", name, every, listed_by="holdfast list models")


def unambiguous(name: str) -> str:
    """The same name, refused where it is bare and several sources have it: weights fit only one of them."""
    if _by_prefix(name) is None and len(homes := [part for part in _trainable() if _has(part, name)]) > 1:
        *others, last = (f"{part.prefix}{name}" for part in homes)
        in_all = " and ".join(part.name for part in homes)
        raise HoldfastError(f"model {name!r} exists in {in_all}; say {', '.join(others)} or {last}")
    return name


def find_source(spec: str) -> tuple[SourcePart, str]:
    """(source, what follows the prefix, or the path) of a model to open.

    >>> [(part.name, rest) for part, rest in map(find_source, ("timm:resnet18", "python:mine.models:make"))]
    [('timm', 'resnet18'), ('python', 'mine.models:make')]
    >>> find_source("resnet18")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: model 'resnet18' exists in timm and torchvision; say timm:resnet18 or ...
    """
    require(bool(spec.strip()), f"no model was given; give {model_syntax()}")
    path = Path(spec)
    if exists(path):
        return _of_path(path), spec
    if (found := _by_prefix(spec)) is not None:
        require(bool(found[1]), f"model {spec!r} names nothing after the colon; give {model_syntax()}")
        return _openable(found[0], spec), found[1]
    prefix, colon, rest = spec.partition(":")
    if colon and (close := get_close_matches(f"{prefix}:", _prefixes(), n=1)):
        raise HoldfastError(f"unknown source {prefix!r} in {spec!r}; did you mean {close[0]}{rest}?")
    if len(path.parts) > 1 or any(path.suffix in part.suffixes for part in MODEL_SOURCES.values()):
        raise HoldfastError(f"model {spec} does not exist{_similar(path)}; give {model_syntax()}")
    name = unambiguous(spec)
    try:
        part = resolve(name)[0]
    except HoldfastError as error:
        raise HoldfastError(f"{error} (nor is there a run folder or file of that name)") from error
    return _openable(part, name), spec


def _trainable() -> Iterator[SourcePart]:
    """Sources of what can be trained by a bare name; a function of the user's has none that could be listed."""
    parts = (part for part in MODEL_SOURCES.values() if part.made.trains())
    return (part for part in parts if part.made.names is not ModelSource.names)


def _prefixes() -> dict[str, SourcePart]:
    parts = MODEL_SOURCES.values()
    return {prefix: part for part in parts for prefix in (part.prefix, *part.more_prefixes) if prefix}


def _by_prefix(spec: str) -> tuple[SourcePart, str] | None:
    part = next((part for prefix, part in _prefixes().items() if spec.startswith(prefix)), None)
    return None if part is None else (part, spec.removeprefix(part.prefix))


def _has(part: SourcePart, name: str) -> bool:
    try:
        return source_of(part).has(name)
    except HoldfastError:  # known there, but for something else
        return False


def _of_path(path: Path) -> SourcePart:
    folder = path.is_dir()
    for part in MODEL_SOURCES.values():
        if (part.folders if folder else path.suffix in part.suffixes) and source_of(part).accepts(path):
            return part
    kind = "a folder" if folder else path.suffix or "no suffix"
    raise HoldfastError(f"model {path} is of no known kind ({kind}); give {model_syntax()}")


def _openable(part: SourcePart, spec: str) -> SourcePart:
    remedy = f"give the folder of a run, or a weight file with --model {spec}"
    require(part.made.opens(), f"{spec} is an architecture of {part.name}'s own, without weights; {remedy}")
    return part


def _similar(path: Path) -> str:
    """`` (did you mean ...?)`` from what is in the same folder."""
    try:
        there = os.listdir(path.parent)
    except FileNotFoundError:
        return f" (there is no folder {path.parent})"
    except OSError as error:
        return f" ({path.parent}: {error.strerror})"
    close = get_close_matches(path.name, there, n=3)
    return f" (did you mean {' or '.join(str(path.parent / name) for name in close)}?)" if close else ""
