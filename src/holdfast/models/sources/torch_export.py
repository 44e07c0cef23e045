"""``torch.export`` archives (.pt2): a graph and its weights, for images of the shape it was exported with."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from typing import Any

from holdfast.errors import HoldfastError, explaining, require
from holdfast.models.source_types import MEMBER, ExportMetadata, ModelSource, OpenRequest, SourceModel, hash_file
from holdfast.parts import source

OBJECTS = ("custom_obj", "opaque_obj")
"""How torch names members that hold pickled objects."""


@source("exported", about="A graph written by torch.export.save.", syntax="a .pt2 file", suffixes=(".pt2",), order=70)
class ExportedPrograms(ModelSource):
    def open(self, name: str, request: OpenRequest) -> SourceModel:
        import torch

        from holdfast.models.adapters import in_batches_of

        check_no_code(name)
        refused = explaining(f"cannot read {name} as a torch.export archive", "write it again with torch.export.save")
        with refused, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.11's own reading
            extra: dict[str, Any] = {MEMBER: ""}
            program = torch.export.load(name, extra_files=extra)
            net = program.module()
        shape = input_shape(program, name)
        batch, channels, height, width = (side if isinstance(side, int) else None for side in shape)
        taken, notes = in_batches_of(batch, net.to(request.device), "export it with a dynamic batch")
        size = None if height is None or width is None else (height, width)
        stated: dict[str, Any] = {"channels": channels, "size": size}
        if (says := ExportMetadata.from_json(extra[MEMBER])) is not None:
            stated = says.stated()
        return SourceModel(taken, hash=hash_file(name), notes=notes, **stated)


def input_shape(program: Any, path: str) -> tuple[Any, ...]:
    """(B, C, H, W) of the one image input; what is dynamic is not an int."""
    inputs = set(program.graph_signature.user_inputs)
    nodes = (node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs)
    shapes = [node.meta["val"].shape for node in nodes]
    taken = f"{path} takes {len(shapes)} inputs of shape {', '.join(str(tuple(s)) for s in shapes)}"
    one = len(shapes) == 1 and len(shapes[0]) == 4
    require(one, f"{taken}; one batch of images (B, C, H, W) is needed")
    return tuple(shapes[0])


def check_no_code(path: str) -> None:
    """Refuse an archive whose reading would unpickle objects: torch falls back to a loader that runs what it finds."""
    import torch

    remedy = "If you trust it, write a function that loads and returns it, and give python:module:function"
    refusal = f"{path} holds pickled objects, and reading them could run any code. {remedy}"
    with explaining(f"cannot read {path}", "it is damaged, or not a .pt2 file"), zipfile.ZipFile(path) as archive:
        members = {name.split("/", 1)[-1]: name for name in archive.namelist()}
        other = f"{path} is not an archive of this kind, or of an older torch"
        require("archive_format" in members, f"{other}; write it again with torch.export.save")
        require(not any(part in name for name in members for part in OBJECTS), refusal)
        for name, full in members.items():
            if name.endswith("_config.json"):
                entries = json.loads(archive.read(full)).get("config", {}).values()
                require(not any(entry.get("use_pickle") for entry in entries), refusal)
            elif name.startswith("data/sample_inputs/"):
                try:
                    torch.load(io.BytesIO(archive.read(full)), weights_only=True)
                except Exception as error:  # whatever it is, it is not plain tensors
                    raise HoldfastError(refusal) from error
