"""How a process of ours behaves on its machine: which processors it uses, how its threads wait, what becomes of freed
memory. Open this file when a command is slow beside other work, or when most of its time is the system's."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_INT = 2**31 - 1


def prepare_process() -> None:
    """For a process that is ours alone, before torch is imported: a command, or a worker that one has started."""
    share_the_processor()
    keep_freed_memory()


def share_the_processor() -> None:
    """Threads that wait for each other sleep after some microseconds, unless the environment says otherwise.

    By default they spin for milliseconds. Beside other busy processes a small training then falls from thousands of
    images per second to dozens. Works only before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_freed_memory() -> bool:
    """Have the C library keep large blocks that were freed, for the next ones of their size; whether it does.

    By default it returns them to the system, which hands them out again page by page and zeroed. A network on a CPU
    frees and takes its activations at every layer, and at 224 pixels spends most of its time so. The price: a
    process keeps the most memory that it ever needed until it ends. What the environment sets stays.
    """
    told = [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    if told or not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):  # a C library without mallopt, such as musl
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(option, LARGEST_INT) for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))
    return False


def usable_cores() -> int:
    """Processors that this process may use: those it is bound to, and no more than its container has a share of."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(bound, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or "max": no limit
        return bound


def may_have_gpu() -> bool:
    """Whether a GPU is possible here, without importing torch to know: False only where the driver has left no trace."""
    traces = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, Windows' subsystem, AMD
    return not sys.platform.startswith("linux") or any(Path(trace).exists() for trace in traces)
