"""``torch.export`` archives (.pt2): a graph and its weights, for images of the shape it was exported with."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import reason
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.called import FixedBatch
from holdfast.models.sources.hashing import hash_file
from holdfast.models.sources.opened import Found

OBJECTS = ("custom_obj", "opaque_obj")
"""How torch names members that hold pickled objects."""


def find(path: str, asked: Asked) -> Found:
    check_no_code(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.11's own reading
            program = torch.export.load(path)
        net = program.module()
    except Exception as error:  # damaged archives and other versions fail in many ways
        raise HoldfastError(
            f"cannot read {path} as a torch.export archive: {reason(error)}; write it again with torch.export.save"
        ) from error
    shape = input_shape(program, path)
    batch, channels, height, width = (side if isinstance(side, int) else None for side in shape)
    notes = []
    module: nn.Module = net.to(asked.device)
    if batch is not None:
        module = FixedBatch(module, batch)
        notes.append(f"takes batches of exactly {batch}: they are cut and padded; export it with a dynamic batch")
    return Found(
        module,
        channels=channels,
        size=None if height is None or width is None else (height, width),
        hash=hash_file(Path(path)),
        notes=tuple(notes),
    )


def input_shape(program: Any, path: str) -> tuple[Any, ...]:
    """(B, C, H, W) of the one image input; what is dynamic is no int."""
    inputs = set(program.graph_signature.user_inputs)
    shapes = [
        node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs
    ]
    require(
        len(shapes) == 1 and len(shapes[0]) == 4,
        f"{path} takes {len(shapes)} inputs of shape {', '.join(str(tuple(s)) for s in shapes)}; "
        "one batch of images (B, C, H, W) is needed",
    )
    return tuple(shapes[0])


def check_no_code(path: str) -> None:
    """Refuse an archive whose reading would unpickle objects: torch falls back to a loader that runs what it finds."""
    refusal = (
        f"{path} holds pickled objects, and reading them could run foreign code. If you trust it, "
        "write a function that loads and returns it, and give python:module:function"
    )
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.split("/", 1)[-1]: name for name in archive.namelist()}
            require(
                "archive_format" in members,
                f"{path} is no archive of this kind, or of an older torch; write it again with torch.export.save",
            )
            require(not any(part in name for name in members for part in OBJECTS), refusal)
            for name, full in members.items():
                if name.endswith("_config.json"):
                    entries = json.loads(archive.read(full)).get("config", {}).values()
                    require(not any(entry.get("use_pickle") for entry in entries), refusal)
                elif name.startswith("data/sample_inputs/"):
                    _only_tensors(archive.read(full), refusal)
    except (zipfile.BadZipFile, ValueError) as error:
        raise HoldfastError(f"cannot read {path}: {reason(error)}; it is damaged, or no .pt2 file") from error


def _only_tensors(content: bytes, refusal: str) -> None:
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # whatever it is, it is not plain tensors
        raise HoldfastError(refusal) from error
