"""Trainings on a Ray cluster. Open this file to change what a task asks the cluster for, or how it is ended.

Ray is the extra ``ray``. Its own retries are off: a task whose node died is handed back, and the lease of its cell says
where to continue. The folder of the comparison has to be one that all nodes see under the same path.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from typing import Any, Self

from holdfast.errors import HoldfastError
from holdfast.executors.executor_protocol import PER_GPU, Call, Crashed, WorkerDied
from holdfast.machine import prepare_process


class RayCluster:
    """address: of a running cluster ("auto" finds this machine's); without one, a cluster of this machine alone.

    most: calls at once; as many as the cluster has room for where None. threads: processors that each takes.
    """

    def __init__(self, address: str | None, *, most: int | None = None, device: str = "auto", threads: int = 1) -> None:
        try:
            self.ray: Any = import_module("ray")
        except ImportError as error:
            raise HoldfastError("engine ray needs the package ray; pip install 'holdfast[ray]'") from error
        self.address, self.most, self.device, self.threads = address, most, device, threads
        self._calls: dict[Any, str] = {}
        self._killed: list[str] = []
        self._ours = False

    def begin(self, call: Call, shared: Any) -> Self:
        self._call, self._given = call, shared
        return self

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            path = os.pathsep.join(place or os.getcwd() for place in sys.path)
            # A cluster of our own imports what this process can; a running one has its own installation.
            own: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}} if self.address is None else {}
            try:
                # "local": without an address Ray would join whatever cluster was started last on this machine.
                self.ray.init(address=self.address or "local", log_to_driver=False, logging_level="error", **own)
            except Exception as error:  # Ray has many ways to say it
                why = f"cannot use the Ray cluster at {self.address or 'this machine'}: {error}"
                raise HoldfastError(f"{why}; start one with 'ray start --head', or correct --address") from error
            self._ours = True
        gpus = self.device != "cpu" and self.ray.cluster_resources().get("GPU", 0) > 0
        asks = {"num_cpus": self.threads, "num_gpus": 1 / PER_GPU if gpus else 0, "max_retries": 0, "max_calls": 0}
        self._remote = self.ray.remote(**asks)(_answer)
        self._shared = self.ray.put(self._given)
        return self

    @property
    def workers(self) -> int:
        return self.most or max(1, int(self.ray.cluster_resources().get("CPU", 1)) // self.threads)

    @property
    def free(self) -> bool:
        return self.most is None or len(self._calls) < self.most

    def submit(self, key: str, argument: Any) -> None:
        self._calls[self._remote.remote(self._call, argument, self._shared, self.threads)] = key

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        ended = [(key, WorkerDied("it did not answer any more")) for key in self._killed]
        self._killed = []
        calls = list(self._calls)
        ready = self.ray.wait(calls, num_returns=len(calls), timeout=0)[0] if calls else []
        if calls and not ready and not ended:
            ready = self.ray.wait(calls, num_returns=1, timeout=seconds)[0]
        for call in ready:
            try:
                answer = self.ray.get(call)
            except self.ray.exceptions.RayError as error:  # of the node, the process or its memory; ours are answers
                answer = WorkerDied(str(error).partition("\n")[0])
            ended.append((self._calls.pop(call), answer))
        return ended

    def kill(self, key: str) -> None:
        for call in [call for call, own in self._calls.items() if own == key]:
            self.ray.cancel(call, force=True)
            del self._calls[call]
            self._killed.append(key)

    def __exit__(self, *error: object) -> None:
        """Tasks at work are interrupted, which makes them save what they are at; those that wait never start."""
        for call in self._calls:
            self.ray.cancel(call, force=False)
        if self._calls:
            self.ray.wait(list(self._calls), num_returns=len(self._calls), timeout=GRACE)
        self._calls.clear()
        if self._ours:
            self.ray.shutdown()


GRACE = 120.0
"""Seconds that tasks have to save what they are at when all is ended."""


def _answer(call: Call, argument: Any, shared: Any, threads: int) -> Any:
    prepare_process()
    import torch

    torch.set_num_threads(threads)
    try:
        return call(argument, shared)
    except Exception as error:
        return Crashed(error, traceback.format_exc())
