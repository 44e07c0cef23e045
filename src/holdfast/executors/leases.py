"""Who has a task, such as a cell: leases that are renewed, and folders that only their holder can write into.

Open this file to change how a dead worker is noticed, or what keeps one that wakes up from writing over its successor.
A *cell* here is any piece of work with a folder: a training of a comparison, or a shard of an audit.

While a cell is trained, its run lies in ``OUT/.cells/CELL/TOKEN/TOKEN/CELL``, beside a heartbeat; otherwise in
``OUT/CELL``. Taking a cell over renames the folder TOKEN to another: a rename has one winner on every file system, and
whoever held the cell before, asleep or cut off, has no path into it any more. Clocks of other machines are never
compared (docs/decisions/0012-leases.md).
"""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.files import LOCK, locked
from holdfast.train.progress import Progress, describe

CELLS = ".cells"
"""Where cells lie that are being trained, in the folder of a comparison."""
HEARTBEAT = "heartbeat.json"
SECONDS = 60.0
"""How long a heartbeat may stay the same before its holder counts as dead."""
BEATS = 20
"""Renewals in that time."""
TRIES = 20
"""At making the folder of a cell, while other workers tidy up around it."""


class LeaseLost(HoldfastError):
    """Another worker has taken the cell over."""


@dataclass(frozen=True)
class Holder:
    """Whoever holds a cell. said: the heartbeat as it was read; who: what it says, if it could be read."""

    token: str
    said: bytes
    who: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """How far it is, in words."""
        return str(self.who.get("status", ""))

    @property
    def surely_dead(self) -> bool:
        """Whether its process has ended, where this machine can tell."""
        where, own = {k: self.who.get(k) for k in ("boot", "pids")}, _place()
        same = self.who.get("token") == self.token and None not in where.values()
        return same and where == {k: own[k] for k in where} and _started(self.who.get("pid")) != self.who.get("started")


class Lease:
    """A cell that is this worker's. ``folder`` is where its run lies meanwhile, ``place`` where it lies otherwise."""

    def __init__(self, out: Path, name: str, token: str, *, seconds: float, driver: str) -> None:
        self.name, self.token, self.seconds = name, token, seconds
        self.place, self._own = out / name, _area(out, name) / token
        self.folder = self._own / token / name
        self.lost, self.status = False, "starting"
        self._said: dict[str, Any] = {"token": token, "driver": driver, **_place()}
        self._beats, self._ended, self._wake = 0, False, threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {name}", daemon=True)

    def start(self) -> None:
        """Begin to renew; called once the folder is ours."""
        fresh = self._own / f".{HEARTBEAT}.{self.token}"
        fresh.write_bytes(self._heartbeat())
        os.replace(fresh, self._own / HEARTBEAT)  # a new file: the last holder may have the old one open
        self._thread.start()

    def tell(self, status: str) -> None:
        """Say in the heartbeat how far the work is."""
        self.status = status
        self._wake.set()

    def require(self) -> None:
        """Refuse to continue once the cell is another's."""
        if self.lost:
            raise LeaseLost(f"{self.name} was taken over by another worker; this one leaves it alone")

    def adopt(self) -> None:
        """Bring the run of the last holder, or the one in its place, to where this one works.

        What the last holder left half-written goes. The run moves into a new folder: a machine that remembers the old
        one under its old path, as network file systems let it for a while, finds nothing in there to publish.
        """
        self.folder.parent.mkdir(exist_ok=True)
        for before in {path for path in self._own.iterdir() if path.is_dir()} - {self.folder.parent}:
            with suppress(FileNotFoundError):
                os.rename(before / self.name, self.folder)
            shutil.rmtree(before, ignore_errors=True)
        if self.folder.exists():
            (self.folder / LOCK).unlink(missing_ok=True)  # one that sleeps still holds it
            for path in [*self.folder.rglob(".*.tmp"), *self.folder.rglob(".draft-*")]:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        elif self.place.exists():
            with locked(self.place):  # not from under a training of its own
                os.rename(self.place, self.folder)

    def give_back(self) -> None:
        """Move the run, finished or not, to its place, and end the lease.

        Whoever has lost the lease has no folder to move: what it may have written since is under its own token, and is
        removed.
        """
        self._ended = True
        self._wake.set()
        self._thread.join()
        self._beat()
        try:
            self.require()
            if self.folder.exists():
                os.rename(self.folder, self.place)
        except FileNotFoundError:
            self.lost = True
            self.require()
        except OSError as error:
            what = f"{self.place} appeared while it was being worked on in {self.folder}"
            raise HoldfastError(f"{what}: {error.strerror}; remove one of them, and repeat the command") from error
        finally:
            if self.lost or not self.folder.exists():
                shutil.rmtree(self._own, ignore_errors=True)
                sweep(self.place.parent, self.name)

    def _renew(self) -> None:
        while not self.lost:
            self._wake.wait(self.seconds / BEATS)
            self._wake.clear()
            if self._ended:
                return
            self._beat()

    def _beat(self) -> None:
        """Renew the lease, or find that there is none: the file is never made anew, and never another's overwritten."""
        try:
            with open(self._own / HEARTBEAT, "r+b") as file:
                if _read(file.read()).get("token", self.token) != self.token:
                    self.lost = True
                    return
                file.seek(0)
                file.write(self._heartbeat())
                file.truncate()
        except OSError as error:  # a full disk, or a file system that is away: the next beat may get through
            self.lost = self.lost or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def _heartbeat(self) -> bytes:
        self._beats += 1
        return json.dumps(self._said | {"beat": self._beats, "status": self.status}).encode()


@contextmanager
def leased(
    out: Path, name: str, *, seconds: float = SECONDS, driver: str = "", evict: str = ""
) -> Iterator[Lease | None]:
    """A lease on a cell; None where another worker has one. Does not wait.

    evict: the token of a holder that the caller knows to be dead.
    """
    lease = _take(out, name, seconds=seconds, driver=driver, evict=evict)
    if lease is None:
        yield None
        return
    try:
        yield lease
    finally:
        lease.give_back()


def holder(out: Path, name: str) -> Holder | None:
    """Who holds a cell; None where nobody does."""
    for folder in _attempts(out, name):
        try:
            said = (folder / HEARTBEAT).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue  # what a worker wrote that had lost the cell
        except OSError:  # a network file system that is away; not an answer
            return Holder(folder.name, b"")
        return Holder(folder.name, said, _read(said))
    return None


def _read(said: bytes) -> dict[str, Any]:
    """What a heartbeat says; nothing where it was read while it was being written."""
    try:
        who = json.loads(said)
    except ValueError:
        who = None
    return who if isinstance(who, dict) else {}


def run_folder(out: Path, name: str) -> Path:
    """Where the run of a cell lies now: with its holder, or in its place."""
    held = holder(out, name)
    folder = None if held is None else _area(out, name) / held.token / held.token / name
    return folder if folder is not None and folder.exists() else out / name


def sweep(out: Path, name: str) -> None:
    """Remove what is left of a cell that nobody holds."""
    area = _area(out, name)
    for folder in _attempts(out, name):
        if not (folder / HEARTBEAT).exists():
            shutil.rmtree(folder, ignore_errors=True)
    for empty in (area, area.parent):
        with suppress(OSError):  # somebody uses it
            empty.rmdir()


def sweep_all(out: Path) -> None:
    """Remove what is left of all cells, unless somebody is at work."""
    areas = [path for path in (out / CELLS).iterdir() if path.is_dir()] if (out / CELLS).is_dir() else []
    if not any(holder(out, area.name) for area in areas):
        shutil.rmtree(out / CELLS, ignore_errors=True)


class LeaseWatch:
    """Which holders are dead: those whose heartbeat did not change for so many seconds of *this* process's clock.

    It is a monotonic clock, so setting the time does nothing, and neither does a laptop that sleeps.
    """

    def __init__(self, *, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self.seconds, self.clock = seconds, clock or time.monotonic
        self.last: dict[str, Holder | None] = {}
        self._seen: dict[str, tuple[tuple[str, bytes], float]] = {}

    def dead(self, out: Path, name: str) -> Holder | None:
        """The holder of a cell if it is dead; None if it lives, may live, or there is none, which ``last`` tells."""
        found, now = holder(out, name), self.clock()
        self.last[name] = found
        if found is None:
            self._seen.pop(name, None)
            return None
        said = (found.token, found.said)
        if name not in self._seen or self._seen[name][0] != said:
            self._seen[name] = (said, now)
        return found if found.surely_dead or now - self._seen[name][1] >= self.seconds else None


class LeasedProgress(Progress):
    """Stops a training at its next step once the lease is lost, and says in the heartbeat how far it is."""

    def __init__(self, lease: Lease, inner: Progress | None = None) -> None:
        self.lease, self.inner = lease, inner or Progress()
        self.silent = self.inner.silent
        self.notes: list[str] = []

    def __enter__(self) -> LeasedProgress:
        self.inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.inner.__exit__(*error)

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.lease.require()
        self.inner.begin(stage, epochs, steps, done)

    def step(self) -> None:
        self.lease.require()
        self.inner.step()

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.lease.tell(describe(record, epochs))
        self.lease.require()
        self.inner.epoch(record, epochs)

    def doing(self, text: str) -> None:
        self.inner.doing(text)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.inner.note(text)


def _take(out: Path, name: str, *, seconds: float, driver: str, evict: str) -> Lease | None:
    area, token = _area(out, name), f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
    lease = Lease(out, name, token, seconds=seconds, driver=driver)
    held = holder(out, name)
    if held is None:
        sweep(out, name)
        if not _placed(area, token, lease._heartbeat(), tries=TRIES):
            return None
    elif held.token == evict or held.surely_dead:
        try:
            os.rename(area / held.token, area / token)
        except FileNotFoundError:  # another was faster
            return None
    else:
        return None
    lease.start()
    return lease


def _placed(area: Path, token: str, heartbeat: bytes, *, tries: int) -> bool:
    """Whether the folder of a cell that nobody holds is ours now; it appears with its heartbeat in it.

    A worker that ends at this moment removes the folder of all cells if it sees it empty (:func:`sweep`), which may be
    under the hands of this one: then it is made again.
    """
    draft = area.with_name(f".{area.name}-{token}")
    try:
        (draft / token).mkdir(parents=True)
        (draft / token / HEARTBEAT).write_bytes(heartbeat)
        os.rename(draft, area)  # refused where another's is: that is not empty
        return True
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if error.errno == errno.ENOENT and tries > 1:
            return _placed(area, token, heartbeat, tries=tries - 1)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            out = area.parent.parent
            raise HoldfastError(f"cannot write to {out}: {error.strerror}; choose another --out") from error
        return False


def _area(out: Path, name: str) -> Path:
    return out / CELLS / name


def _attempts(out: Path, name: str) -> list[Path]:
    try:
        return sorted(path for path in _area(out, name).iterdir() if path.is_dir())
    except OSError:
        return []


@cache
def _boot() -> dict[str, str | None]:
    """This start of this machine, and what process ids mean here: two containers may use the same ones."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"host": platform.node(), "boot": boot, "pids": os.readlink("/proc/self/ns/pid")}
    except OSError:  # not Linux: only heartbeats tell
        return {"host": platform.node(), "boot": None, "pids": None}


def _place() -> dict[str, Any]:
    return {**_boot(), "pid": os.getpid(), "started": _started(os.getpid())}


def _started(pid: object) -> str | None:
    """When a process started, in ticks since the machine did; None where there is none, or it only waits to be reaped.

    >>> _started(os.getpid()) == _started(os.getpid()), _started(None)
    (True, None)
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
