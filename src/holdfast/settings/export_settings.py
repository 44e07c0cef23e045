"""The settings of an export: flags of ``holdfast export``, and keyword arguments of :func:`holdfast.export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from holdfast.settings.fields import Bounded, Root, Several, Unset, Within

ExportKind = Literal["onnx", "torchscript", "pt2"]


@dataclass(frozen=True)
class ExportSettings(Bounded):
    """What to write, and how closely it must agree with the run."""

    to: ExportKind = "onnx"
    """The kind of file: ONNX, TorchScript, or an archive of torch.export."""
    out: Unset[str] = None
    """The file to write (default: export/model.KIND in the run folder); its card is beside it."""
    output: Literal["logits", "probabilities"] = "logits"
    """What the file returns for each image, one number per class."""
    opset: Annotated[Unset[int], Within(18, 30, "..")] = None
    """The version of ONNX's operators (default: torch's choice)."""
    data: Unset[str] = None
    """Images to compare on: a set, a file or a folder (default: the run's own test split, or noise)."""
    root: Root = None
    images: Annotated[int, Within(1)] = 1000
    """How many of them."""
    tolerance: Annotated[float, Within(0, ends="()")] = 1e-4
    """Largest difference from the run's outputs, as a share of the largest output where that is above 1; a file that
    differs more is not kept."""
    audits: Several[str] = ()
    """Audit folders of this model, for the card; what the run itself measured is always in it."""
    redact_paths: bool = False
    """Leave folder names out of the card: files are shown by their name only."""
    overwrite: bool = False
    """Replace a file that is there."""
