"""What an exported file says of itself: its classes, its images and its outputs, as JSON inside the file.

Open this file to change what ``holdfast export`` writes there and what an audit of the file takes from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast import __version__
from holdfast.models.source_types import NONE, Sides

KEY: Final = "holdfast"
"""The name of the entry in an ONNX file's metadata."""
MEMBER: Final = "holdfast.json"
"""The name of the member in archives of torch."""


@dataclass(frozen=True)
class ExportMetadata:
    """classes: the name behind each output. channels, size: of its images, which are float in [0, 1], NCHW: the file
    normalises them itself. output: "logits" or "probabilities". weights: SHA-256 of the run's."""

    classes: tuple[str, ...]
    channels: int
    size: Sides
    output: str
    weights: str = ""
    holdfast: str = __version__

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportMetadata | None:
        """None for what is not ours: others may use the same names.

        >>> ExportMetadata.from_json("{}") is None
        True
        """
        try:
            values = json.loads(text)
            classes = tuple(map(str, values["classes"]))
            height, width = map(int, values["size"])
            said = (str(values[name]) for name in ("output", "weights", "holdfast"))
            return cls(classes, int(values["channels"]), (height, width), *said)
        except (ValueError, TypeError, LookupError, RecursionError):
            return None

    def stated(self) -> dict[str, Any]:
        """The fields of a ``SourceModel`` that it states."""
        return {"classes": self.classes, "preprocessing": NONE, "channels": self.channels, "size": self.size}
