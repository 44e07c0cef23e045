"""Processes that train one model together under torchrun: how they join, agree, exchange, fail and end.

Open this file to change what a rank does when another one stops, fails or is killed. ``shared_batch.py`` has the
arithmetic: how ranks share a batch.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, Interrupted, RankEnded, require

GRACE = 10.0
"""Seconds that the main thread has to end by itself once another rank is gone. It cannot where it waits for a GPU."""

_current: Ranks | None = None
_joined = count()  # a program may train more than once


class Ranks:
    """The processes of one training, seen from one of them. ``joined`` makes it.

    group: for tensors on the device. Between hosts and between main threads all else goes through ``host``, which is
    gloo on the CPU whatever the device.
    """

    def __init__(self, store: Store, *, rank: int, size: int, device: torch.device) -> None:
        self.store, self.rank, self.size, self.device = store, rank, size, device
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self.restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        self.group = dist.group.WORLD
        self.host: ProcessGroup = dist.new_group(backend="gloo")  # type: ignore[assignment]
        self.agreed_signal: int | None = None
        self._pending: tuple[Any, Tensor] | None = None
        self._lost = threading.Event()
        self._over = threading.Event()
        self._listener, self._neighbour = _ring(store, rank, size)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        if size > 1:
            self._watcher.start()

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    # ---- agreement ------------------------------------------------------------------------------------------------

    def stop_agreed(self, signum: int | None, *, wait: bool = False) -> int | None:
        """The signal that some rank got, on all ranks at the same call; None while none did.

        Asked at every step without waiting for the others: the answer is that of the question before. wait: of this
        very question.
        """
        answer = 0
        if self._pending is not None:
            work, told = self._pending
            work.wait()
            answer = int(told)
        told = torch.tensor(signum or 0)
        self._pending = dist.all_reduce(told, dist.ReduceOp.MAX, group=self.host, async_op=True), told
        if wait:
            self._pending[0].wait()
            self._pending, answer = None, max(answer, int(told))
        self.agreed_signal = answer or None
        return self.agreed_signal

    def wait_for_all(self) -> None:
        dist.barrier(group=self.host)

    @contextmanager
    def one_first(self) -> Iterator[None]:
        """On each host one rank goes through this before the others: it may download or make what they read."""
        if self.local_rank:
            self.wait_for_all()
        yield
        if not self.local_rank:
            self.wait_for_all()

    def require_same(self, what: str, value: str) -> None:
        """Refuse ranks that would not train on the same."""
        mine = self.exchange({"value": value})
        others = [rank for rank, theirs in enumerate(mine) if theirs["value"] != mine[0]["value"]]
        found = f"{what} of rank {', '.join(map(str, others))} differs from that of rank 0"
        require(not others, f"{found}; give all hosts the same, for example on a shared file system")

    # ---- exchange -------------------------------------------------------------------------------------------------

    def from_first(self, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """What rank 0 gives, on all ranks: tensors and plain values; what others give is ignored."""
        data = _packed(state) if self.first and state is not None else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor(len(data))
        dist.broadcast(size, 0, group=self.host)
        if not int(size):
            return None
        data = data if self.first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.host)
        return _unpacked(data)

    def exchange(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What every rank gives, by rank: tensors and plain values."""
        data = _packed(state)
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor(len(data)), group=self.host)
        longest = max(map(int, sizes))
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, torch.cat([data, data.new_zeros(longest - len(data))]), group=self.host)
        return [_unpacked(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]

    @torch.no_grad()
    def copy_from_first(self, *modules: nn.Module) -> None:
        """Give all ranks the weights and buffers that rank 0 has."""
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                whole = tensor.contiguous()
                dist.broadcast(whole, 0, group=self.group)
                tensor.copy_(whole)

    # ---- ends -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Notice when the next rank ends: the connection to it, on which nothing is ever sent, breaks at once."""
        with suppress(OSError):
            self._neighbour.recv(1)
        if self._over.is_set():
            return
        self._lost.set()
        if self._over.wait(GRACE):
            return
        ended = self.ended_by_another()  # the main thread waits for a GPU, or computes: it will not know
        if not ended.reported:
            print(f"error: {ended}", file=sys.stderr, flush=True)
        os._exit(ended.code)

    def part(self) -> None:
        """All ranks are done with each other: from now on each may end when it likes."""
        self.wait_for_all()
        self.stop_watching()

    def stop_watching(self) -> None:
        """Whatever happens to other ranks does not concern this one any more."""
        self._over.set()
        for end in (self._listener, self._neighbour):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        if self._watcher.is_alive():  # Python must not end while it wakes up
            self._watcher.join(GRACE)

    def claim_failure(self, code: int, text: str) -> bool:
        """Whether this rank is the first to fail, and so the one that says why."""
        try:
            if self.store.add("failures", 1) > 1:
                return False
            self.store.set("failure", json.dumps({"rank": self.rank, "code": code, "text": text}))
        except Exception:  # the host of the store is gone, and nobody can know what others say
            return self.first
        return True

    def ended_by_another(self) -> RankEnded:
        """Why this rank ends although nothing failed here."""
        with suppress(Exception):
            if self.store.check(["failure"]):
                why = json.loads(self.store.get("failure"))
                return RankEnded(f"rank {why['rank']}: {why['text']}", code=why["code"], reported=True)
        lost = "a rank was lost: it was killed, ran out of memory, or its host cannot be reached"
        remedy = "all ranks end; --resume continues from the last checkpoint"
        mine = self.claim_failure(LOST, lost)
        return RankEnded(f"{lost}; {remedy}", code=LOST, reported=not mine)

    def lost_another(self) -> bool:
        return self.size > 1 and self._lost.wait(2.0)  # a connection that failed here fails there a moment later


LOST = 4
"""Exit code of a rank that ends because another one was lost."""


@contextmanager
def joined(device: str) -> Iterator[Ranks | None]:
    """The ranks of this training, or None where torchrun did not start this process. Inside itself: the same ranks.

    An error on one rank ends them all: the first to fail raises its own, the others :class:`RankEnded`.
    """
    global _current
    if _current is not None or "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield _current
        return
    ranks = _current = _join(device)
    try:
        yield ranks
    except BaseException as error:
        if ranks.agreed_signal and isinstance(error, Interrupted):
            raise
        seen = _as_seen_by_all(ranks, error)
        if seen is error:
            raise
        raise seen from error
    else:
        if ranks.device.type == "cuda":
            dist.destroy_process_group()
    finally:
        _current = None
        ranks.stop_watching()
        if ranks.device.type == "cpu":  # after a failure NCCL would wait for ranks that are gone
            with suppress(Exception):
                dist.destroy_process_group()


def continued(ranks: Ranks | None, *, resume: bool, overwrite: bool) -> tuple[bool, bool]:
    """Whether to resume and to overwrite: ranks that torchrun started again continue what they had begun."""
    again = ranks is not None and ranks.restarted
    return resume or again, overwrite and not again


def _as_seen_by_all(ranks: Ranks, error: BaseException) -> BaseException:
    """The error that this rank raises: its own, if it is the first to fail."""
    if isinstance(error, RuntimeError) and ranks.lost_another():  # gloo and NCCL have no errors of their own
        return ranks.ended_by_another()
    signum = getattr(error, "signum", signal.SIGINT)
    code = 2 if isinstance(error, (HoldfastError, OSError)) else 1
    code = 128 + signum if isinstance(error, KeyboardInterrupt) else code
    if not ranks.claim_failure(code, str(error)):
        return RankEnded(str(error), code=code, reported=True)
    return error if ranks.first or code == 1 else RankEnded(f"rank {ranks.rank}: {error}", code=code)


def _join(device: str) -> Ranks:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    here = rank_device(device)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    # A restarted rank must not read what the ranks before it left in torchrun's store: it would wait for them.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    found, _, _ = next(rendezvous("env://", rank, size))
    store = PrefixStore(f"holdfast/{attempt}/{next(_joined)}", found)
    _meet(store, size)
    backend = "gloo" if here.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size)
    return Ranks(store, rank=rank, size=size, device=here)


def _meet(store: Store, size: int) -> None:
    """Wait until all ranks are here: in short naps, since torch's own wait cannot be interrupted."""
    store.add("here", 1)
    while store.add("here", 0) < size:
        time.sleep(0.02)


def _ring(store: Store, rank: int, size: int) -> tuple[socket.socket, socket.socket]:
    """(where the rank before this one is connected, the connection to the one after it)."""
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as way:
        here = way.getsockname()[0]  # the address of this host that others can reach
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    listener = socket.create_server((here, 0), family=family)  # connections need not be accepted to be there
    store.set(f"watch/{rank}", f"{here}|{listener.getsockname()[1]}")
    address, port = store.get(f"watch/{(rank + 1) % size}").decode().split("|")
    neighbour = socket.create_connection((address, int(port)))
    neighbour.settimeout(None)
    neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone does not say so
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            neighbour.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return listener, neighbour


def rank_device(name: str) -> torch.device:
    """The device of this rank: its own GPU of the host, where ``name`` does not say which."""
    device = resolve_device(name)
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        index, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        few = f"rank {index} of this host has no GPU: there are {count}"
        require(index < count, f"{few}; use --nproc-per-node {count}, or --device cpu")
        return torch.device("cuda", index)
    return device


def _packed(state: Mapping[str, Any]) -> Tensor:
    file = io.BytesIO()
    torch.save(dict(state), file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8).clone()


def _unpacked(data: Tensor) -> dict[str, Any]:
    """Tensors and plain values only: nothing is unpickled."""
    made: dict[str, Any] = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
    return made
