"""TorchScript files: a program and its weights, run without the Python that made them."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

from holdfast.errors import explaining
from holdfast.models.source_types import (
    MEMBER,
    PICKLED,
    ExportMetadata,
    ModelSource,
    OpenRequest,
    SourceModel,
    hash_file,
)
from holdfast.parts import source


@source(
    "torchscript",
    about="A program written by torch.jit.save.",
    syntax="a .torchscript file",
    suffixes=(".torchscript", *PICKLED),
    order=60,
)
class TorchScriptFiles(ModelSource):
    def accepts(self, path: Path) -> bool:
        """Whether a torch archive holds a program: .pt is used for weights too."""
        if path.suffix == ".torchscript":
            return True
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())

    def open(self, name: str, request: OpenRequest) -> SourceModel:
        import torch

        refused = explaining(f"cannot read {name} as TorchScript", "write it again with torch.jit.save")
        with refused, warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", kind)  # torch advises its successor; these files still exist
            extra = {MEMBER: ""}
            net = torch.jit.load(name, map_location=request.device, _extra_files=extra)  # type: ignore[no-untyped-call]
        if (says := ExportMetadata.from_json(extra[MEMBER])) is not None:
            return SourceModel(net.eval(), hash=hash_file(name), **says.stated())
        # those of the first convolution: its weight is (out, in, h, w), unless it is grouped
        first = next((value.shape[1] for value in net.state_dict().values() if value.ndim == 4), None)
        return SourceModel(net.eval(), channels=first if first in (1, 3) else None, hash=hash_file(name))
