"""What a process of ours does to its machine: page faults, threads that wait, processors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.machine import usable_cores

BLOCKS = """
import ctypes, resource
from holdfast.machine import keep_freed_memory
told = {told}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(12):
        block = libc.malloc(33 << 20)
        libc.memset(block, 1, 33 << 20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(told, faults())
"""


def faults(code: str) -> tuple[str, int]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS.format(told=code)],
        env=kept,
        capture_output=True,
        text=True,
        check=True,
    )
    told, count = done.stdout.split()
    return told, int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    """Twelve blocks of 33 MB, one after the other: the system is asked for one, not for twelve."""
    told, kept = faults("keep_freed_memory()")
    if told == "False":
        pytest.skip("this C library has no mallopt")
    _, returned = faults("None")
    assert kept * 6 < returned


@pytest.mark.parametrize("mine", [{"MALLOC_TRIM_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.check=0"}])
def test_what_the_environment_says_of_memory_stays(mine: dict[str, str]) -> None:
    code = "from holdfast.machine import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | mine, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


def test_cores_are_those_that_may_be_used() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        try:
            assert usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)
