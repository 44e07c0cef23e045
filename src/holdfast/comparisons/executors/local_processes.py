"""Trainings in processes of this machine, side by side. Open this file to change how workers start, share GPUs and end.

Workers are started anew (not forked: the caller may have used CUDA or threads) and import nothing of the caller's
program, so a script or notebook needs no ``if __name__ == "__main__"``. Each takes one call after the other.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from holdfast.comparisons.executors.executor_protocol import Call, Crashed, WorkerDied
from holdfast.errors import HoldfastError, Interrupted, require
from holdfast.signals import WATCH, ended_by_term

SERVE = "from holdfast.comparisons.executors.local_processes import serve; serve({number}, {parent})"
GRACE = 120.0
"""Seconds that workers have to save what they are at when all is ended."""
MPS = "nvidia-cuda-mps-control"


def gpus_for(device: str) -> list[str]:
    """The GPUs that workers may be spread over, as CUDA_VISIBLE_DEVICES has them; none where they use the processor."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names if device in ("auto", "cuda") else [""]  # "": cuda:1 is one of those that are visible, as they are


class _Worker:
    """One process and the pipe to it. key: of the call that it is at."""

    def __init__(self, environment: dict[str, str], first: bytes) -> None:
        self.pipe, theirs = Pipe()
        code = SERVE.format(number=theirs.fileno(), parent=os.getpid())
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self.key: str | None = None
        self.first: bytes | None = first  # sent with the first call: a pipe holds little, and nobody reads it yet

    def send(self, key: str, argument: Any) -> None:
        self.key = key
        with suppress(OSError):  # it has died: wait() says so
            if self.first is not None:
                self.pipe.send_bytes(self.first)
                self.first = None
            self.pipe.send_bytes(pickle.dumps(argument))

    def died(self) -> WorkerDied:
        code = self.process.wait()
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(code)
        hint = " (was there enough memory?)" if code == -signal.SIGKILL else ""
        return WorkerDied(f"its process was ended by {name}{hint}" if code < 0 else f"its process exited with {code}")


class LocalProcesses:
    """workers: how many processes. threads: of each. gpus: spread over these, as CUDA_VISIBLE_DEVICES has them."""

    def __init__(self, workers: int, *, threads: int = 1, gpus: Sequence[str] = ()) -> None:
        require(hasattr(os, "fork"), "local processes need Linux or macOS; leave --parallel out")
        self.workers, self.threads, self.gpus = workers, threads, list(gpus)
        self._pool: list[_Worker] = []
        self._context: Any = None
        self._started = 0

    def begin(self, call: Call, shared: Any) -> Self:
        try:
            self._first = pickle.dumps((call, shared, self.threads))
        except Exception as error:  # whatever a data set of the caller's raises
            why = f"this data cannot be sent to other processes: {error}"
            raise HoldfastError(f"{why}; save it to a file and name that, or leave --parallel out") from error
        return self

    @property
    def free(self) -> bool:
        return len(self._pool) < self.workers or any(worker.key is None for worker in self._pool)

    def submit(self, key: str, argument: Any) -> None:
        idle = next((worker for worker in self._pool if worker.key is None), None)
        if idle is None:
            idle = _Worker(self._environment(), self._first)
            self._pool.append(idle)
        idle.send(key, argument)

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        ended: list[tuple[str, Any]] = []
        for pipe in wait([worker.pipe for worker in self._pool], seconds):
            worker = next(worker for worker in self._pool if worker.pipe is pipe)
            key, worker.key = worker.key, None
            try:
                answer: Any = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                answer = worker.died()
                self._pool.remove(worker)
                worker.pipe.close()
            if key is not None:
                ended.append((key, answer))
        return ended

    def kill(self, key: str) -> None:
        for worker in self._pool:
            if worker.key == key:
                worker.process.kill()

    def __enter__(self) -> Self:
        self._context = sharing_gpus(len(self.gpus) > 0 and self.workers > len(self.gpus))
        self._mps = self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Idle workers end; one at work saves what it is at first. Whoever takes too long is killed: leases hold."""
        for worker in self._pool:
            with suppress(OSError):
                worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for worker in self._pool:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.pipe.close()
        self._pool.clear()
        self._context.__exit__(*error)

    def _environment(self) -> dict[str, str]:
        number, self._started = self._started, self._started + 1
        made = {**os.environ, **self._mps, "OMP_NUM_THREADS": str(self.threads)}
        made["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        if gpu := self.gpus[number % len(self.gpus)] if self.gpus else "":
            made["CUDA_VISIBLE_DEVICES"] = gpu
        return made


@contextmanager
def sharing_gpus(wanted: bool) -> Iterator[dict[str, str]]:
    """What workers' environment needs so that their kernels run at the same time on a GPU: NVIDIA's MPS.

    Without it processes take turns, and several are no faster than one. Nothing where it is not installed, or the
    machine runs it already.
    """
    running = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps/control").exists()
    if not wanted or running or shutil.which(MPS) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-mps-") as place:
        own = {"CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place}
        environment = {**os.environ, **own}
        began = subprocess.run([MPS, "-d"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield own if began.returncode == 0 else {}
        finally:
            if began.returncode == 0:
                subprocess.run([MPS], input=b"quit\n", env=environment, stdout=subprocess.DEVNULL, timeout=60)


def serve(number: int, parent: int) -> None:
    """What a worker does: take calls from a pipe until it is told to end, or its parent has ended."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    pipe = Connection(number)
    with suppress(KeyboardInterrupt, EOFError), ended_by_term():
        call, shared, threads = pickle.loads(pipe.recv_bytes())
        import torch

        torch.set_num_threads(threads)
        while True:
            _send(pipe, _answer(call, pickle.loads(pipe.recv_bytes()), shared))


def _answer(call: Call, argument: Any, shared: Any) -> Any:
    try:
        return call(argument, shared)
    except Interrupted:
        raise
    except Exception as error:
        return Crashed(error, traceback.format_exc())


def _send(pipe: Connection, answer: Any) -> None:
    try:
        content = pickle.dumps(answer)
        pickle.loads(content)  # some exceptions can be written and not read
    except Exception:
        error = answer.error if isinstance(answer, Crashed) else answer
        content = pickle.dumps(Crashed(RuntimeError(str(error)), getattr(answer, "trace", "")))
    pipe.send_bytes(content)


def _end_with(parent: int) -> None:
    """End at once when the parent was killed: what a training saved last is where the next one continues."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)
