"""Comparisons on a Ray cluster; skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import executors
from holdfast.errors import HoldfastError
from holdfast.executors import make_executor, require_engine
from holdfast.settings.command_settings import EngineSettings

HAVE_RAY = importlib.util.find_spec("ray") is not None
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_RAY, reason="needs the extra ray")
@pytest.mark.parametrize("way", ["ray-killed", "ray-driver-killed"])
def test_a_killed_node_or_driver_changes_nothing(way: str, tmp_path: Path) -> None:
    """Two nodes. One of them, or the command, is killed in the middle of a training: weights and table of one process,
    bit for bit."""
    words = ["benchmarks/same_table.py", "--seeds", "1", "--ways", "one", way]
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"killed_at"' in done.stdout


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    missing = "engine ray needs the package ray; pip install 'holdfast.ray.'"
    with pytest.raises(HoldfastError, match=missing):
        require_engine("ray")
    with pytest.raises(HoldfastError, match=missing):
        make_executor(EngineSettings(engine="ray"))


class FakeRay(ModuleType):
    """What of Ray a cluster's start needs."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.asked: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **asked: Any) -> None:
        self.asked = asked

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def remote(self, **asks: Any) -> Any:
        return lambda call: call

    def put(self, value: Any) -> Any:
        return value

    def shutdown(self) -> None: ...


@pytest.mark.parametrize(("given", "asked"), [(None, "local"), ("auto", "auto"), ("head:6379", "head:6379")])
def test_without_an_address_no_cluster_of_others_is_joined(
    given: str | None, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would join the one that was started last on this machine."""
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    with make_executor(EngineSettings(engine="ray", address=given)).begin(print, None) as cluster:
        assert fake.asked["address"] == asked
        assert cluster.workers == 4
