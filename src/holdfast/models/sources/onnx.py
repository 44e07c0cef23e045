"""ONNX files through onnxruntime, where it is installed. No gradients come back from there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import reason
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.called import FixedBatch
from holdfast.models.sources.hashing import hash_file
from holdfast.models.sources.opened import Found

TYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(double)": torch.float64}


@dataclass(frozen=True)
class Layout:
    """How a graph wants its images. None: any."""

    name: str
    dtype: torch.dtype
    batch: int | None
    channels: int | None
    size: tuple[int, int] | None
    channels_last: bool


def find(path: str, asked: Asked) -> Found:
    session = open_session(path, asked.device)
    layout = read_layout(session.get_inputs(), path)
    net: nn.Module = Session(session, layout)
    notes = []
    if layout.channels_last:
        notes.append("takes images with the channels last: turned round for it")
    if layout.batch is not None:
        net = FixedBatch(net, layout.batch)
        notes.append(f"takes batches of exactly {layout.batch}: they are cut and padded; a dynamic batch is faster")
    return Found(net, channels=layout.channels, size=layout.size, hash=hash_file(Path(path)), notes=tuple(notes))


def open_session(path: str, device: torch.device) -> Any:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError as error:
        raise HoldfastError(f"reading {path} needs onnxruntime; run: pip install 'holdfast[onnx]'") from error
    wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    providers = [name for name in [*wanted, "CPUExecutionProvider"] if name in onnxruntime.get_available_providers()]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its warnings are about its own optimiser
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # its errors share no base class
        raise HoldfastError(f"cannot read {path} as ONNX: {reason(error)}; export the model again") from error


def read_layout(inputs: Any, path: str) -> Layout:
    """Of the one image input of a graph."""
    found = [(item.name, item.type, item.shape) for item in inputs]
    require(
        len(found) == 1 and len(found[0][2]) == 4 and found[0][1] in TYPES,
        f"{path} takes {', '.join(f'{name} {kind} {shape}' for name, kind, shape in found) or 'nothing'}; "
        "one batch of float images (B, C, H, W) is needed",
    )
    name, kind, shape = found[0]
    batch, *rest = (side if isinstance(side, int) and side > 0 else None for side in shape)
    last = rest[2] in (1, 3) and rest[0] not in (1, 3)
    channels, height, width = (rest[2], rest[0], rest[1]) if last else rest
    size = None if height is None or width is None else (height, width)
    return Layout(name, TYPES[kind], batch, channels, size, last)


class Session(nn.Module):
    """A graph in onnxruntime, called with torch tensors; its outputs by name."""

    def __init__(self, session: Any, layout: Layout) -> None:
        super().__init__()
        self.session = session
        self.layout = layout
        self.names = [item.name for item in session.get_outputs()]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        images = x.detach().to(self.layout.dtype)
        if self.layout.channels_last:
            images = images.permute(0, 2, 3, 1)
        answers = self.session.run(None, {self.layout.name: images.cpu().contiguous().numpy()})
        pairs = zip(self.names, answers, strict=True)
        return {name: torch.from_numpy(value).to(x.device) for name, value in pairs if hasattr(value, "shape")}
