"""Tasks under leases, brought to an end whatever becomes of their workers: cells of a comparison, shards of an audit.

Open this file to change what happens when a worker dies, or when another command works in the same folder.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.errors import HoldfastError, require
from holdfast.executors.executor_protocol import Crashed, Executor, WorkerDied
from holdfast.executors.leases import BEATS, SECONDS, LeaseWatch, holder

POLL = 0.25
"""Seconds to wait for a worker's answer at a time."""
LOOK = 1.0
"""Seconds between two looks at the leases."""
MOST_DEATHS = 3
"""Workers that may die at one task before it is given up."""


@dataclass(frozen=True)
class LeasedTask:
    """What a worker needs to take a lease. driver, evict: of ``leased``."""

    name: str
    out: Path
    lease: float = field(default=SECONDS, kw_only=True)
    driver: str = field(default="", kw_only=True)
    evict: str = field(default="", kw_only=True)

    @property
    def place(self) -> Path:
        return self.out / self.name


class Outcome(Protocol):
    """What came of a task. state: "held" where another worker has it, else as the task likes."""

    @property
    def state(self) -> str: ...


T = TypeVar("T", bound=LeasedTask)
O = TypeVar("O", bound=Outcome)  # noqa: E741


def run_tasks(
    tasks: Sequence[T],
    executor: Executor,
    *,
    finished: Callable[[T], O | None],
    lease: float = SECONDS,
    show: Callable[[Mapping[str, str], Sequence[str]], None] = lambda running, held: None,
) -> Iterator[tuple[T, O]]:
    """Every task with what came of it, as they end. executor: open, and told what to call with a task.

    A worker that dies is replaced, and its task continued. Tasks that other commands hold are waited for, and taken
    over should those die. finished: what came of a task that another command held, once it has. show: told about once
    a second what is running, with how far it is, and what others hold.
    """
    require(lease > 0, f"lease must be > 0 seconds, got {lease}")
    driver, deaths = secrets.token_hex(8), Counter[str]()
    todo = deque(replace(task, lease=lease, driver=driver) for task in tasks)
    running: dict[str, T] = {}
    held: dict[str, T] = {}
    watch, looked = LeaseWatch(seconds=lease), 0.0
    while todo or running or held:
        while todo and executor.free:
            task = todo.popleft()
            running[task.name] = task
            executor.submit(task.name, task)
        for name, outcome in executor.wait(POLL):
            task = running.pop(name)
            if isinstance(outcome, WorkerDied):
                deaths[name] += 1
                lost = f"{name} was given up after {MOST_DEATHS} workers died at it: {outcome.why}"
                require(deaths[name] < MOST_DEATHS, f"{lost}; the same command continues")
                todo.appendleft(replace(task, evict=_held_for(driver, task)))
            elif isinstance(outcome, Crashed):
                raise _as_error(name, outcome)
            elif outcome.state == "held":
                held[name] = replace(task, evict="")
            else:
                yield task, outcome
        if time.monotonic() - looked < min(LOOK, lease / BEATS):
            continue
        looked = time.monotonic()
        for name, task in list(held.items()):
            dead = watch.dead(task.out, name)
            if (done := finished(task)) is not None:
                del held[name]
                yield task, done
            elif dead is not None or watch.last[name] is None:
                todo.append(replace(held.pop(name), evict="" if dead is None else dead.token))
        for name, task in running.items():
            dead = watch.dead(task.out, name)
            if dead is not None and dead.who.get("driver") == driver and dead.token != task.evict:
                executor.kill(name)  # it hangs, or is stopped; handed back as a worker that died
        show({name: found.status if (found := watch.last[name]) else "" for name in running}, list(held))


def _held_for(driver: str, task: LeasedTask) -> str:
    """The token under which a worker of ours held a task; empty where it is another's by now."""
    found = holder(task.out, task.name)
    return found.token if found is not None and found.who.get("driver") == driver else ""


def _as_error(name: str, crash: Crashed) -> Exception:
    if isinstance(crash.error, HoldfastError):
        return crash.error
    return RuntimeError(f"{name} crashed in another process:\n{crash.trace}")
