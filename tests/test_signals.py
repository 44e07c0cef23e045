"""Signals: who takes them, who leaves them to the parent, and what comes twice."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from holdfast import signals
from holdfast.data import ArraySplit
from holdfast.data.loaders import StreamLoader
from holdfast.errors import Interrupted
from holdfast.signals import deferred_signals, ended_by_term, held_signals, starting_workers
from tests.conftest import make_split

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from kills import KINDS, Ending, Starter, kill_repeatedly, problems


def test_workers_leave_signals_from_others_to_the_main_process_and_obey_that() -> None:
    split = make_split(64, 3, seed=1)
    batches = StreamLoader(split, batch_size=4, device=torch.device("cpu"), workers=2).batches(torch.arange(64))
    seen = [next(batches).index]
    workers = multiprocessing.active_children()
    assert workers
    for name in ("TERM", "INT"):
        subprocess.run(["kill", f"-{name}", *(str(worker.pid) for worker in workers)], check=True)
    time.sleep(2 * signals.WATCH)
    seen += [batch.index for batch in batches]
    assert torch.cat(seen).tolist() == list(range(64))
    for worker in workers:
        worker.terminate()
        worker.join(5)
        assert worker.exitcode == 0


def test_workers_of_a_loader_in_a_cycle_are_ended_and_not_waited_for() -> None:
    """The collector closes queues before it removes torch's loader, which then waits five seconds for each worker."""
    loader = StreamLoader(make_split(64, 3, seed=1), batch_size=4, device=torch.device("cpu"), workers=2)
    next(batches := loader.batches(torch.arange(64)))
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    cycle: list[object] = [loader, batches]
    cycle.append(cycle)
    del loader, batches, cycle
    started = time.monotonic()
    gc.collect()
    assert time.monotonic() - started < 4
    assert [worker.exitcode for worker in workers] == [0, 0]


ORPHANING = """
import os, signal, sys, torch
from holdfast.data.loaders import StreamLoader
from tests.conftest import make_split
import multiprocessing
batches = StreamLoader(make_split(64, 3, seed=1), batch_size=4, device=torch.device("cpu"), workers=2).batches(
    torch.arange(64)
)
next(batches)
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_no_worker_outlives_a_main_process_that_was_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "src:."}
    with (tmp_path / "workers").open("w") as said:  # a pipe would be read until the workers, who hold it too, are gone
        done = subprocess.run([sys.executable, "-c", ORPHANING], env=environment, stdout=said)
    left = [int(word) for word in (tmp_path / "workers").read_text().split()]
    assert (done.returncode, len(left)) == (-signal.SIGKILL, 2)
    deadline = time.monotonic() + 8 * signals.WATCH  # torch's own watch takes 5 s, and only between two batches
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _runs(pid)]
        time.sleep(0.02)
    assert not left


def _runs(pid: int) -> bool:
    """Whether the process exists and has not ended: a zombie only waits for init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_signal_to_the_process_and_then_to_its_group_is_one_wish() -> None:
    """timeout(1) sends both, milliseconds apart: the second one must not cut short what the first one has begun."""
    with ended_by_term():
        with suppress(Interrupted), deferred_signals() as stop:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise Interrupted(signal.SIGTERM, "saved")
        assert stop.signum == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)  # the handlers of the command are back, and know of it too


def test_a_second_signal_some_time_later_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "TOGETHER", 0.5)
    waited = []

    def work() -> None:
        with deferred_signals() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.signum == signal.SIGTERM
            time.sleep(0.6)
            signal.raise_signal(signal.SIGTERM)
            waited.append(True)

    with pytest.raises(Interrupted), ended_by_term():
        work()
    assert not waited


def test_a_signal_after_the_last_look_for_one_acts_at_the_end() -> None:
    with pytest.raises(Interrupted), ended_by_term(), deferred_signals():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_came_before_a_failure_acts_although_the_failure_is_caught() -> None:
    """A training that diverges after SIGTERM must not let a comparison go on to the next one."""
    went_on = []

    def work() -> None:
        with suppress(ValueError), deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("the loss is not finite")
        went_on.append(True)

    with pytest.raises(Interrupted), ended_by_term():
        work()
    assert not went_on
    with pytest.raises(ValueError, match="no signal"), deferred_signals():
        raise ValueError("no signal")


def test_a_signal_while_an_object_is_removed_is_not_lost() -> None:
    """Python drops what __del__ raises, and the workers of a DataLoader are shut down there."""

    class Removed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.01)

    removed = [Removed()]
    started = time.monotonic()

    def work() -> None:
        removed.clear()
        time.sleep(5)

    with pytest.raises(Interrupted), ended_by_term():
        work()
    assert time.monotonic() - started < 4


def test_a_signal_that_another_thread_takes_does_not_cut_short_the_start_of_workers() -> None:
    """A loader that was ended between two of its workers fails when it is removed, and says so on the terminal."""
    over, started = threading.Event(), []
    other = threading.Thread(target=over.wait)
    other.start()

    def start() -> None:
        with starting_workers():
            signal.pthread_kill(other.ident or 0, signal.SIGTERM)
            time.sleep(0.05)
            started.append(True)

    try:
        with pytest.raises(Interrupted), ended_by_term():
            start()
    finally:
        over.set()
        other.join()
    assert started


def test_a_batch_is_taken_whole_before_a_signal_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = StreamLoader(make_split(8, 3, seed=1), batch_size=4, device=torch.device("cpu"), workers=0)
    read, whole = ArraySplit.read, []

    def interrupted(self: ArraySplit, positions: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGTERM)
        whole.append(positions)
        return read(self, positions)

    monkeypatch.setattr(ArraySplit, "read", interrupted)
    with pytest.raises(Interrupted), ended_by_term():
        list(loader.batches(torch.arange(8)))
    assert len(whole) == 1


def test_a_signal_does_not_wait_for_ever() -> None:
    def wait() -> None:
        with held_signals(0.1):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(20)

    started = time.monotonic()
    with pytest.raises(Interrupted), ended_by_term():
        wait()
    assert time.monotonic() - started < 10


def test_a_training_that_was_killed_after_its_last_epoch_has_saved_all() -> None:
    said = "epoch 11/12  loss 0.1\n{}interrupted; the same command with --resume continues\n"
    ended = Ending(143, said.format("epoch 12/12  loss 0.1\n"), signalled=True)
    assert not list(problems(ended, "term", "train"))
    assert list(problems(Ending(143, said.format(""), signalled=True), "term", "train"))


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as started:
        yield started


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kind"), [*(("train", kind) for kind in KINDS), ("audit", "term-group"), ("compare", "term-group")]
)
def test_what_was_killed_ends_as_if_nobody_had_disturbed_it(
    command: str, kind: str, starter: Starter, place: Path
) -> None:
    """``python benchmarks/kills.py`` does this forty times for every command and kind."""
    counted = kill_repeatedly(starter, command, kind, 1, place, chance=random.Random(), epochs=4)
    assert counted["kills"] == 1
    assert not counted["problems"]
