"""Many trainings in one process leave nothing behind; ``benchmarks/soak.py`` does a thousand of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.executors.executor_protocol import ThisProcess

ROOT = Path(__file__).parents[2]
TRAININGS = 26


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all outputs lie in")  # of networks that have learnt nothing
def test_trainings_leave_no_file_thread_tensor_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten, by which all is there that is imported or cached once, the next fifteen change nothing.

    100 KiB per training are a quarter of the network's weights.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import soak

    monkeypatch.setattr(soak, "EVERY", 5)
    _, _, before, *after = soak.soak(TRAININGS, ThisProcess(threads=1))
    assert len(after) == 3
    for later in after:
        assert [later[name] for name in ("files", "threads", "tensors")] == [
            before[name] for name in ("files", "threads", "tensors")
        ]
    assert (after[-1]["rss_kib"] - before["rss_kib"]) / 15 < 100
