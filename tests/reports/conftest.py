"""Fake runs, as files and as read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.reports import RunFiles
from tests.reports.fake_runs import write_run, write_runs


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFiles]:
    """Two methods, three seeds each."""
    return [RunFiles.read(folder) for folder in write_runs(tmp_path / "runs")]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "erm-0", "erm", 0)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFiles]:
    """A run made of a name, findings and settings; what is not given is as in every other."""

    def make(name: str, method: str = "erm", seed: int = 0, **changes: Any) -> RunFiles:
        return RunFiles.read(write_run(tmp_path / "made" / name, method, seed, **changes))

    return make
