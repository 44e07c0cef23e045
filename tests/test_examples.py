"""Every script in examples/ runs and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {"sam_plain_loop": None, "sam_lightning": "lightning", "sam_accelerate": "accelerate"}
"""Each script, and the package it is about if that is none of ours."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.dev] if package else []) for name, package in NEEDS.items()]
)
def test_runs_and_learns(name: str, tmp_path: Path) -> None:
    package = NEEDS[name]
    if package and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    command = [sys.executable, EXAMPLES / f"{name}.py", "--epochs", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    found = re.search(r"test accuracy (\d\.\d+)", run.stdout)
    assert found, run.stdout
    assert float(found[1]) > 0.9
    assert not list(tmp_path.iterdir())


def test_every_example_of_the_ascents_is_run_and_short() -> None:
    scripts = sorted(EXAMPLES.glob("sam_*.py"))
    assert [s.stem for s in scripts] == sorted(NEEDS)
    assert all(len(s.read_text().splitlines()) < 60 for s in scripts)
