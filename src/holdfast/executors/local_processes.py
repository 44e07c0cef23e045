"""Trainings in processes of this machine, side by side. Open this file to change how workers start, share GPUs and end.

One process, the template, is started anew (not forked: the caller may have used CUDA or threads), imports what the
calls need, and is forked into workers: so torch is imported once, and data in memory is there once. It imports nothing
of the caller's program, so a script or notebook needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn, Self

from holdfast.errors import HoldfastError, raise_interruption, require
from holdfast.executors.executor_protocol import Call, Crashed, WorkerDied
from holdfast.machine import prepare_process
from holdfast.signals import ENDING, WATCH, ended_by_term

SERVE = "from holdfast.executors.local_processes import serve; serve({number})"
GRACE = 120.0
"""Seconds that workers have to save what they are at when all is ended."""
MAIN = b"\x8c\x08__main__"
"""How pickles of protocol 4 and later name the module of the program itself."""
MPS = "nvidia-cuda-mps-control"


def gpus_for(device: str) -> list[str]:
    """The GPUs that workers may be spread over, as CUDA_VISIBLE_DEVICES has them; none where they use the processor."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names if device in ("auto", "cuda") else [""]  # "": cuda:1 is one of those that are visible, as they are


class _Template:
    """The process that workers are forked from, and what is asked of it: a worker, or how one ended."""

    def __init__(self, environment: dict[str, str], first: bytes) -> None:
        self.pipe, theirs = socket.socketpair()
        code = SERVE.format(number=theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        with suppress(OSError):  # it has died: whoever asks it next is told
            self.pipe.sendall(len(first).to_bytes(8) + first)

    def ask(self, question: dict[str, Any], handles: Sequence[int] = ()) -> Any:
        """The answer; None where the process has died."""
        try:
            socket.send_fds(self.pipe, [json.dumps(question).encode().ljust(QUESTION)], handles)
            return json.loads(self.pipe.recv(QUESTION))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        self.pipe.close()
        self.process.wait()


QUESTION = 4096
"""Bytes of a question to the template, and at most of its answer."""


class _Worker:
    """A process forked from the template, and the pipe to it. key: of the call that it is at."""

    def __init__(self, template: _Template, environment: dict[str, str]) -> None:
        self.template, self.key = template, ""
        self.pipe, theirs = Pipe()
        self.pid: int | None = template.ask({"fork": environment}, [theirs.fileno()])
        theirs.close()

    def send(self, key: str, argument: Any) -> None:
        self.key = key
        with suppress(OSError):  # it has died: wait() says so
            self.pipe.send_bytes(pickle.dumps(argument))

    def signal(self, signum: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def ended(self, seconds: float) -> int | None:
        """The exit code of a worker that ends within that time; 0 where its template is gone, which none survives."""
        until = time.monotonic() + seconds
        while True:
            code: int | None = 0 if self.pid is None else self.template.ask({"wait": self.pid})
            if code is None and self.template.process.poll() is not None:
                code = 0
            if code is not None or time.monotonic() > until:
                return code
            time.sleep(0.01)

    def died(self) -> WorkerDied:
        code = self.ended(GRACE)
        if code is None or code >= 0:
            return WorkerDied(f"its process exited with {code}")
        hint = " (was there enough memory?)" if code == -signal.SIGKILL else ""
        return WorkerDied(f"its process was ended by {signal.Signals(-code).name}{hint}")


class LocalProcesses:
    """workers: how many processes. threads: of each. gpus: spread over these, as CUDA_VISIBLE_DEVICES has them."""

    def __init__(self, workers: int, *, threads: int = 1, gpus: Sequence[str] = ()) -> None:
        require(hasattr(os, "fork"), "local processes need Linux or macOS; leave --parallel and --shards out")
        self.workers, self.threads, self.gpus = workers, threads, list(gpus)
        self._pool: list[_Worker] = []
        self._template: _Template | None = None
        self._started = 0
        self._open = ExitStack()

    def begin(self, call: Call, shared: Any) -> Self:
        try:
            self._first = pickle.dumps((call, shared, self.threads))
        except Exception as error:  # whatever a data set of the caller's raises
            why = f"this data cannot be sent to other processes: {error}"
            raise HoldfastError(f"{why}; save it to a file and name that, or leave --parallel out") from error
        own = "a class or function of the script or notebook itself, which other processes do not run"
        require(MAIN not in self._first, f"this data holds {own}; put it into a module, or leave --parallel out")
        return self

    @property
    def free(self) -> bool:
        return len(self._pool) < self.workers or any(not worker.key for worker in self._pool)

    def submit(self, key: str, argument: Any) -> None:
        idle = next((worker for worker in self._pool if not worker.key), None)
        if idle is None:
            idle = self._fork()
            self._pool.append(idle)
        idle.send(key, argument)

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        ended: list[tuple[str, Any]] = []
        for pipe in wait([worker.pipe for worker in self._pool], seconds):
            worker = next(worker for worker in self._pool if worker.pipe is pipe)
            key, worker.key = worker.key, ""
            try:
                answer: Any = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                answer = worker.died()
                self._pool.remove(worker)
                worker.pipe.close()
            if key:
                ended.append((key, answer))
        return ended

    def kill(self, key: str) -> None:
        for worker in self._pool:
            if worker.key == key:
                worker.signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        self._mps = self._open.enter_context(sharing_gpus(len(self.gpus) > 0 and self.workers > len(self.gpus)))
        return self

    def __exit__(self, *error: object) -> None:
        """Idle workers end; one at work saves what it is at first. Whoever takes too long is killed: leases hold."""
        for worker in self._pool:
            worker.signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for worker in self._pool:
            if worker.ended(max(0.1, until - time.monotonic())) is None:
                worker.signal(signal.SIGKILL)
                worker.ended(GRACE)
            worker.pipe.close()
        self._pool.clear()
        if self._template is not None:
            self._template.close()
        self._open.close()

    def _fork(self) -> _Worker:
        if self._template is not None and self._template.process.poll() is not None:
            self._template.close()
            self._template = None
        if self._template is None:
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
            path = os.pathsep.join(place or os.getcwd() for place in sys.path)
            self._template = _Template({**os.environ, **self._mps, **threads, "PYTHONPATH": path}, self._first)
        gpu = self.gpus[self._started % len(self.gpus)] if self.gpus else ""
        self._started += 1
        return _Worker(self._template, {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


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


def serve(number: int) -> NoReturn:
    """What the template does: import what calls need, and fork into workers until its parent closes the pipe."""
    pipe = socket.socket(fileno=number)
    prepare_process()
    for signum in ENDING:  # schedulers signal whole groups: workers answer, and this process stays for them
        signal.signal(signum, signal.SIG_IGN)
    with suppress(OSError, EOFError):
        size = int.from_bytes(_received(pipe, 8))
        call, shared, threads = pickle.loads(_received(pipe, size))
        import torch

        torch.set_num_threads(threads)
        while True:
            said, handles = _question(pipe)
            if "fork" in said:
                template, child = os.getpid(), os.fork()
                if child == 0:
                    pipe.close()
                    os.environ |= said["fork"]
                    _work(Connection(handles[0]), template, call, shared)
                os.close(handles[0])
                answer: int | None = child
            else:
                ended, status = os.waitpid(said["wait"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if ended else None
            pipe.sendall(json.dumps(answer).encode())
    os._exit(0)  # at once: workers end when they see it


def _received(pipe: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = pipe.recv(min(size - len(content), 1 << 20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


def _question(pipe: socket.socket) -> tuple[dict[str, Any], list[int]]:
    said, handles, _, _ = socket.recv_fds(pipe, QUESTION, 1)
    if not said:
        raise EOFError
    return json.loads(said + _received(pipe, QUESTION - len(said))), list(handles)


def _work(pipe: Connection, template: int, call: Call, shared: Any) -> NoReturn:
    """What a worker does: take calls from a pipe until it is told to end, or the template has ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(template,), daemon=True).start()
    code = 1
    try:
        with suppress(KeyboardInterrupt, EOFError, BrokenPipeError), ended_by_term():
            while True:
                _send(pipe, _answer(call, pickle.loads(pipe.recv_bytes()), shared))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(call: Call, argument: Any, shared: Any) -> Any:
    try:
        with ended_by_term():  # of its own: a call that swallows the signal is ended by it all the same
            return call(argument, shared)
    except Exception as error:
        raise_interruption(error)
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
