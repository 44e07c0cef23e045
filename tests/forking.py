"""Commands in processes of their own, without the seconds that each takes to import torch. Use the fixture ``forked``.

A server imports torch, holdfast and what commands import later, once for each worker of pytest, and is forked for each
command. The fork is like ``python -c CODE WORDS`` in all that a test of a killed or interrupted command looks at: it
has its own process id, standard streams, working folder, environment and signal handlers, and nothing of pytest.
What only a new interpreter shows (what is imported, the environment that Python or torch read at their start) is tested
by a new interpreter: ``subprocess.run([sys.executable, "-m", "holdfast", ...])``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

MAIN = "import sys; from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"
"""``python -m holdfast``."""

SERVER = """
import atexit, gc, json, os, sys, threading, traceback
import holdfast.audits.run_audit, holdfast.cli, holdfast.comparisons.running, torch._dynamo
from holdfast.parts import CHECKS, METHODS, READERS
loaded = len(CHECKS) + len(METHODS) + len(READERS)  # a registry imports its parts when it is first looked into
os.fsync = lambda descriptor: None  # as in the tests' own process
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, place in enumerate((os.devnull, asked["out"], asked["err"])):
    os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["cwd"])
sys.argv = ["-c", *asked["words"]]
code = 0
try:
    exec(compile(asked["code"], "<forked>", "exec"), {"__name__": "__main__"})
except SystemExit as left:
    code = left.code or 0
except BaseException:
    traceback.print_exc()
    code = 1
# What Python does at its end, but for removing every module: that takes a second where torch is imported.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""


class Forked:
    """A process that was forked from the server."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.pid = int(server.answer())
        self.returncode: int | None = None

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signum)

    def wait(self) -> int:
        """The exit code; minus the signal where one has killed it."""
        if self.returncode is None:
            self.returncode = int(self._server.answer())
        return self.returncode

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return (self._folder / "out").read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "err").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()


class ForkServer:
    """Starts commands, one at a time: the one before has to have ended. path: folders that Python imports from too."""

    def __init__(self, *path: Path) -> None:
        imports = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": imports},
        )

    def answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def start(
        self,
        words: list[str],
        *,
        code: str = MAIN,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Forked:
        """A process at work; use it as a context manager, so that it has ended when the next one is asked for."""
        self._count += 1
        folder = Path(self._folder.name) / str(self._count)
        folder.mkdir()
        asked: dict[str, Any] = {"words": words, "code": code, "env": dict(os.environ if env is None else env)}
        asked["cwd"] = str(cwd or Path.cwd())
        for name in ("out", "err"):
            asked[name] = str(folder / name)
            (folder / name).touch()
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        return Forked(self, folder)

    def run(self, words: list[str], **how: Any) -> Forked:
        """A process that has ended. how: as for ``start``."""
        with self.start(words, **how) as process:
            process.wait()
            return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()


@contextmanager
def other_process(work: Callable[[], None]) -> Iterator[int]:
    """A fork of the tests' own process at work, for functions that it has at hand; gone at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        for signum in (signal.SIGKILL, signal.SIGCONT):
            os.kill(pid, signum)
        os.waitpid(pid, 0)


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
