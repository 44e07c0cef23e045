"""Where tasks run, such as many trainings: in this process, in local processes or on a Ray cluster.

An executor calls one function on many arguments, several at once, and hands back what came of each, in the order in
which they end. It knows nothing of the tasks: what a worker did before it died is for leases to sort out.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import require
from holdfast.executors.executor_protocol import PER_GPU, Crashed, Executor, ThisProcess, WorkerDied
from holdfast.machine import usable_cores
from holdfast.settings.command_settings import EngineSettings

__all__ = ["Crashed", "Executor", "WorkerDied", "make_executor", "require_engine"]


def require_engine(engine: str) -> None:
    """Refuse an engine whose package is missing, before any work is done for it."""
    able = engine != "ray" or find_spec("ray") is not None
    require(able, "engine ray needs the package ray; pip install 'holdfast[ray]'")


def make_executor(settings: EngineSettings, *, device: str = "auto", calls: int = 1) -> Executor:
    """The executor that settings ask for. calls: how many there will be, at most.

    On Ray, as many run at once as the cluster has room for, unless ``parallel`` is a number.
    """
    wanted, threads = settings.parallel, settings.threads or 1
    if settings.engine == "ray":
        from holdfast.executors.ray_cluster import RayCluster

        most = int(wanted) if wanted and wanted != "auto" else None
        return RayCluster(settings.address, most=most, device=device, threads=threads)
    from holdfast.executors.local_processes import LocalProcesses, gpus_for

    if wanted is None:
        return ThisProcess(threads=settings.threads)
    gpus = gpus_for(device)
    fit = len(gpus) * PER_GPU if gpus else max(1, usable_cores() // threads)
    workers = min(fit if wanted == "auto" else int(wanted), max(1, calls))
    if workers == 1:
        return ThisProcess(threads=settings.threads if gpus else threads)
    return LocalProcesses(workers, threads=threads, gpus=gpus)
