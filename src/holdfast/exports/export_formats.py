"""How a network becomes an ONNX, TorchScript or torch.export file. Open this file to change what is written.

Each function takes a network on the CPU in evaluation mode, images (2, C, H, W) to follow it with, the file to write
and what the file says of itself. The number of images is left open; their size is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from holdfast.errors import require
from holdfast.models.export_metadata import KEY, MEMBER, ExportMetadata

ONNX_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
LARGEST_ONNX: Final = 2 * 1024**3 - 64 * 1024**2
"""Bytes of weights in one file: what protocol buffers hold, less room for the graph."""


class ExportedNetwork(nn.Module):
    """Images (B, C, H, W) in [0, 1] to logits or probabilities (B, K), by the names that a file calls them."""

    def __init__(self, net: nn.Module, *, probabilities: bool) -> None:
        super().__init__()
        self.net, self.probabilities = net, probabilities
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits.softmax(1) if self.probabilities else logits


def write_onnx(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata, *, opset: int | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on its own translation, which nobody can act on
        program: Any = torch.onnx.export(
            net,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=[says.output],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=opset,
            verbose=False,
        )
    program.model.metadata_props[KEY] = says.to_json()
    program.save(str(path), external_data=False)


def write_torchscript(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises its successor; what a trace misses the comparison finds
        traced: Any = torch.jit.trace(net, images, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={MEMBER: says.to_json()})


def write_pt2(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata) -> None:
    dynamic = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(net, (images,), dynamic_shapes=dynamic)
    torch.export.save(program, str(path), extra_files={MEMBER: says.to_json()})


WRITERS: Final[dict[str, Callable[..., None]]] = {
    "onnx": write_onnx,
    "torchscript": write_torchscript,
    "pt2": write_pt2,
}


def require_exportable(to: str, net: nn.Module) -> None:
    """Refuse what could not be written or compared, before any work."""
    if to != "onnx":
        return
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    require(not missing, f"exporting to onnx needs {', '.join(missing)}; run: pip install 'holdfast[onnx]'")
    size = sum(value.nbytes for value in net.state_dict().values())
    require(size <= LARGEST_ONNX, f"an .onnx file holds 2 GiB, and these weights are {size:,} bytes; use --to pt2")
