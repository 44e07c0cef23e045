"""ONNX files through onnxruntime, where it is installed. No gradients come back from there."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, explaining, require
from holdfast.models.source_types import KEY, ExportMetadata, ModelSource, OpenRequest, SourceModel, hash_file
from holdfast.parts import source

if TYPE_CHECKING:
    import torch

    from holdfast.models.adapters import OnnxInput

TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}


@source("onnx", about="An ONNX graph; needs onnxruntime.", syntax="an .onnx file", suffixes=(".onnx",), order=80)
class OnnxFiles(ModelSource):
    def open(self, name: str, request: OpenRequest) -> SourceModel:
        from holdfast.models.adapters import OnnxModule, in_batches_of

        session = open_session(name, request.device)
        taken = read_input(session.get_inputs(), name)
        notes = ("takes images with the channels last: turned round for it",) * taken.channels_last
        net, cut = in_batches_of(taken.batch, OnnxModule(session, taken), "a dynamic batch is faster")
        stated: dict[str, Any] = {"channels": taken.channels, "size": taken.size}
        if (says := ExportMetadata.from_json(session.get_modelmeta().custom_metadata_map.get(KEY, ""))) is not None:
            stated = says.stated()
        return SourceModel(net, hash=hash_file(name), notes=notes + cut, **stated)


def open_session(path: str, device: torch.device) -> Any:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError as error:
        raise HoldfastError(f"reading {path} needs onnxruntime; run: pip install 'holdfast[onnx]'") from error
    wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    providers = [name for name in [*wanted, "CPUExecutionProvider"] if name in onnxruntime.get_available_providers()]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its warnings are about its own optimiser
    with explaining(f"cannot read {path} as ONNX", "export the model again"):  # its errors share no base class
        return onnxruntime.InferenceSession(path, options, providers=providers)


def read_input(inputs: Any, path: str) -> OnnxInput:
    """What the one image input of a graph takes."""
    import torch

    from holdfast.models.adapters import OnnxInput

    found = [(item.name, item.type, item.shape) for item in inputs]
    taken = ", ".join(f"{name} {kind} {shape}" for name, kind, shape in found) or "nothing"
    usable = len(found) == 1 and len(found[0][2]) == 4 and found[0][1] in TYPES
    require(usable, f"{path} takes {taken}; one batch of float images (B, C, H, W) is needed")
    name, kind, shape = found[0]
    batch, *rest = (side if isinstance(side, int) and side > 0 else None for side in shape)
    last = rest[2] in (1, 3) and rest[0] not in (1, 3)
    channels, height, width = (rest[2], rest[0], rest[1]) if last else rest
    size = None if height is None or width is None else (height, width)
    return OnnxInput(name, getattr(torch, TYPES[kind]), batch, channels, size, last)
