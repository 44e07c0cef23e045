"""The run folder: who may write into it, and what lies there."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

import holdfast
from holdfast.errors import HoldfastError
from holdfast.files import write_atomic
from holdfast.settings import TrainSettings, build, flatten, read_yaml
from holdfast.train.checkpoint import Checkpoints

OWNED = ("run.yaml", "metrics.jsonl", "model.safetensors", "model.json", "findings.json", "report.html")
"""Files a run writes; nothing else in a folder is ever touched."""

MAY_CHANGE = frozenset({"root", "loader", "workers", "device", "capture", "compile", "tensorboard", "checkpoint_every"})
"""Settings that may differ when a run is continued: they do not change what is computed."""


class RunFolder:
    """A folder that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoint")
        self._made_here = not path.exists()

    @property
    def used(self) -> bool:
        return any((self.path / name).exists() for name in OWNED) or self.checkpoints.folder.exists()

    def require_free(self) -> None:
        """Refuse a folder that holds a run."""
        if self.used:
            raise HoldfastError(
                f"{self.path} already holds a run; continue it with --resume, replace it with --overwrite, "
                "or choose another --out"
            )

    def open(self, settings: TrainSettings, *, resume: bool) -> None:
        """Claim the folder for these settings: continue what is there, or replace it."""
        try:
            if not resume:
                self.clear()
            self.path.mkdir(parents=True, exist_ok=True)
            if resume and (self.path / "run.yaml").exists():
                self._require_same(settings)
            else:
                content = flatten(settings) | {"environment": environment()}
                write_atomic(self.path / "run.yaml", yaml.safe_dump(content, sort_keys=False).encode())
        except OSError as error:
            raise HoldfastError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from error

    def _require_same(self, settings: TrainSettings) -> None:
        old, new = flatten(read_settings(self.path / "run.yaml")), flatten(settings)
        changed = [f"{k}: {old[k]} -> {new[k]}" for k in new if old[k] != new[k] and k not in MAY_CHANGE]
        if changed:
            raise HoldfastError(
                f"{self.path} was started with other settings ({'; '.join(changed)}); continue it with its own "
                "(--resume and --out alone), or start anew with --overwrite"
            )

    def clear(self) -> None:
        """Remove what a run wrote here."""
        for name in OWNED:
            (self.path / name).unlink(missing_ok=True)
        for name in ("checkpoint", "tensorboard"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def abandon(self) -> None:
        """After a failure before the first checkpoint: leave nothing half-written."""
        self.clear()
        if self._made_here and self.path.exists() and not any(self.path.iterdir()):
            self.path.rmdir()

    def rewrite_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """All metrics so far; what a killed process wrote after its last checkpoint is dropped."""
        content = "".join(json.dumps(record) + "\n" for record in records)
        write_atomic(self.path / "metrics.jsonl", content.encode())

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        try:
            with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise HoldfastError(
                f"cannot write to {self.path}: {error.strerror}; free some room, then continue with --resume"
            ) from error


def read_settings(path: Path) -> TrainSettings:
    """The settings in a run.yaml."""
    return build(TrainSettings, read_yaml(path), where=path.name)


def environment() -> dict[str, str]:
    """What a result depends on besides its settings."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "holdfast": holdfast.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": gpu,
        "threads": str(torch.get_num_threads()),
        "command": " ".join(["holdfast", *sys.argv[1:]]) if Path(sys.argv[0]).name == "holdfast" else "",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
