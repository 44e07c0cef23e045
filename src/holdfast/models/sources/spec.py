"""Which source a model's specification belongs to."""

from __future__ import annotations

import os
import zipfile
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, require
from holdfast.files import exists
from holdfast.models.names import LIBRARIES, resolve, source
from holdfast.models.weight_files import PICKLED

PREFIXES: Final = {
    "timm": "timm",
    "hf-hub": "timm",
    "torchvision": "torchvision",
    "python": "python",
}
"""What may stand before the first colon -> the file here that opens it."""
SUFFIXES: Final = {".onnx": "onnx", ".pt2": "exported", ".torchscript": "torchscript", ".safetensors": "weights"}
FORMS: Final = (
    "a run folder; timm:NAME, hf-hub:OWNER/NAME, torchvision:NAME[:WEIGHTS]; a .safetensors or .pth file with --model; "
    "python:package.module:function; a .torchscript, .pt2 or .onnx file"
)


def kind_of(spec: str) -> tuple[str, str]:
    """(kind, what follows the prefix, or the path) of a specification.

    >>> kind_of("timm:resnet18"), kind_of("python:mine.models:make")
    (('timm', 'resnet18'), ('python', 'mine.models:make'))
    >>> kind_of("resnet18")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: model 'resnet18' exists in timm and torchvision; say timm:resnet18 or ...
    """
    require(bool(spec.strip()), f"no model was given; give {FORMS}")
    path = Path(spec)
    if exists(path):
        return ("run" if path.is_dir() else _kind_of_file(path)), spec
    prefix, colon, rest = spec.partition(":")
    if colon and prefix in PREFIXES:
        require(bool(rest), f"model {spec!r} names nothing after the colon; give {FORMS}")
        return PREFIXES[prefix], spec if prefix == "hf-hub" else rest
    if colon and (close := get_close_matches(prefix, PREFIXES, n=1)):
        raise HoldfastError(f"unknown source {prefix!r} in {spec!r}; did you mean {close[0]}:{rest}?")
    if path.suffix in {*SUFFIXES, *PICKLED} or len(path.parts) > 1:
        raise HoldfastError(f"model {spec} does not exist{_similar(path)}; give {FORMS}")
    return _bare(spec), spec


def one_source(name: str) -> str:
    """A model's name, once it is clear whose it is: an architecture two libraries have needs its prefix."""
    if ":" not in name and len(homes := _homes(name)) > 1:
        *others, last = (f"{home}:{name}" for home in homes)
        raise HoldfastError(f"model {name!r} exists in {' and '.join(homes)}; say {', '.join(others)} or {last}")
    return name


def _bare(name: str) -> str:
    name = one_source(name)
    try:
        library = resolve(name)[0]
    except HoldfastError as error:
        raise HoldfastError(f"{error} (nor is there a run folder or file of that name)") from error
    require(
        library != "holdfast",
        f"{name} is an architecture of holdfast's own, without weights; give the folder of a run, "
        f"or a weight file with --model {name}",
    )
    return PREFIXES[library]


def _homes(name: str) -> list[str]:
    def has(library: str) -> bool:
        try:
            return bool(source(library).has(name))
        except HoldfastError:  # known there, but for something else
            return False

    own = ["holdfast"] if name in source("holdfast").names() else []
    return own + [library for library in LIBRARIES if has(library)]


def _kind_of_file(path: Path) -> str:
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    require(path.suffix in PICKLED, f"model {path} is of no known kind ({path.suffix or 'no suffix'}); give {FORMS}")
    return "torchscript" if is_torchscript(path) else "weights"


def is_torchscript(path: Path) -> bool:
    """Whether a torch archive holds a program: .pt is used for both."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def _similar(path: Path) -> str:
    """`` (did you mean ...?)`` from what lies in the same folder."""
    try:
        there = os.listdir(path.parent)
    except FileNotFoundError:
        return f" (there is no folder {path.parent})"
    except OSError as error:
        return f" ({path.parent}: {error.strerror})"
    close = get_close_matches(path.name, there, n=3)
    return f" (did you mean {' or '.join(str(path.parent / name) for name in close)}?)" if close else ""
