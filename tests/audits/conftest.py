"""What the tests of the audit share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audits.nearest import SOURCE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the model's code in it."""
    (tmp_path / "nearest.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    yield tmp_path
    sys.modules.pop("nearest", None)
