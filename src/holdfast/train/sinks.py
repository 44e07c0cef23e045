"""Where metrics go besides the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import HoldfastError


class Sink(Protocol):
    """Receives the record of each epoch."""

    def write(self, record: Mapping[str, Any]) -> None: ...


class TensorBoardSink:
    """Scalars as TensorBoard events. Needs the extra ``holdfast[tensorboard]``."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise HoldfastError("--tensorboard needs a package: pip install 'holdfast[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: Mapping[str, Any]) -> None:
        for key, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"{record['stage']}/{key}", value, record["step"])
        self._writer.flush()
