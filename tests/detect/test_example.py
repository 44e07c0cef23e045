"""The example runs as it stands and finds what it was never shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "detect_own_images.py"


@pytest.mark.slow
def test_the_example_runs_and_detects(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--epochs", "4"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    found = re.search(r"AUROC (\d\.\d+)", run.stdout)
    assert found, run.stdout
    assert float(found[1]) > 0.7
    assert not list(tmp_path.iterdir())
    assert len(SCRIPT.read_text().splitlines()) < 60
