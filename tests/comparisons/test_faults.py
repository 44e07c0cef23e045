"""Trainings side by side, and what becomes of them when workers and drivers are killed, stopped and woken up."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.cli import main
from holdfast.comparisons.running import compare
from holdfast.comparisons.single_run import CellOutcome, CellTask, train_cell, train_cells
from holdfast.errors import HoldfastError
from holdfast.executors import WorkerDied, leases, make_executor
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.executors.leased_tasks import MOST_DEATHS
from holdfast.executors.leases import CELLS, Holder, LeaseWatch, holder
from holdfast.executors.local_processes import LocalProcesses
from holdfast.settings import TrainSettings
from holdfast.settings.command_settings import EngineSettings
from tests.forking import other_process, until

NAMES = ("erm-seed0", "erm-seed1", "lff-seed0", "lff-seed1")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("data") / "d.npz"
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (300, 8, 8), np.uint8), np.arange(300) % 3
    np.savez(place, x_train=x, y_train=y, x_test=x[:60], y_test=y[:60])
    own = {"data": str(place), "device": "cpu", "epochs": 8, "batch_size": 30, "workers": 0}
    return {**own, "methods": ["erm", "lff"], "seeds": 2, "progress": False, "parallel": 1}


@pytest.fixture(scope="module")
def alone(asked: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same comparison without disturbance, in this process."""
    out = tmp_path_factory.mktemp("alone") / "c"
    compare(out=out, **asked)
    return out


def require_same(out: Path, alone: Path) -> None:
    """Weights and table of an undisturbed comparison, bit for bit, and nothing else left behind."""
    require_same_weights(out, alone, NAMES)
    assert (out / "comparison.json").read_text() == (alone / "comparison.json").read_text()


def require_same_weights(out: Path, alone: Path, names: tuple[str, ...]) -> None:
    for name in names:
        assert (out / name / "model.safetensors").read_bytes() == (alone / name / "model.safetensors").read_bytes()
    assert not (out / CELLS).exists()


def training(out: Path, names: tuple[str, ...] = NAMES) -> Holder | None:
    """A worker that is in the middle of a training, with a checkpoint to continue from."""
    found = (holder(out, name) for name in names)
    return next((one for one in found if one is not None and one.status.startswith("epoch")), None)


@contextmanager
def disturbed(out: Path, signals: tuple[int, ...]) -> Iterator[list[int]]:
    """Send each signal to another worker that is seen training, while the block runs."""
    sent: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while len(sent) < len(signals) and not ended.wait(0.01):
            if (found := training(out)) is not None and found.who["pid"] not in [*sent, os.getpid()]:
                with suppress(ProcessLookupError):
                    os.kill(found.who["pid"], signals[len(sent)])
                    sent.append(found.who["pid"])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_workers_that_are_killed_or_hang_are_replaced(asked: dict[str, Any], alone: Path, tmp_path: Path) -> None:
    """Two at once and one at a time give the same bits, also where a worker is killed and another stopped."""
    with disturbed(tmp_path, (signal.SIGKILL, signal.SIGSTOP)) as sent:
        done = compare(out=tmp_path, **asked | {"parallel": 2, "lease": 3.0})
    assert len(sent) == 2
    assert not done.failed
    require_same(tmp_path, alone)
    for pid in sent:
        with pytest.raises(ProcessLookupError):  # it was ended, and waited for
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_driver_that_is_killed_takes_its_workers_along_and_is_continued(
    asked: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    with other_process(lambda: compare(out=tmp_path, **asked | {"parallel": 2}) and None) as driver:
        until(lambda: training(tmp_path), 60)
        found = training(tmp_path)
        assert found is not None
        os.kill(driver, signal.SIGKILL)
        until(lambda: found.surely_dead, 5)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.safetensors")}
    compare(out=tmp_path, **asked)  # at once: on one machine nobody needs to wait for a lease to run out
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was finished is not repeated"
    require_same(tmp_path, alone)


@pytest.mark.slow
def test_a_driver_that_wakes_up_after_its_cell_was_taken_over(
    asked: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """Stopped in the middle of a training, which another command finishes; continued, it writes nothing into it, and
    comes to the same end."""
    woke = tmp_path.with_name(f"{tmp_path.name}-woke")

    def sleep() -> None:
        compare(out=tmp_path, **asked | {"lease": 2.0})
        woke.touch()

    with other_process(sleep) as sleeper:
        until(lambda: training(tmp_path), 60)
        os.kill(sleeper, signal.SIGSTOP)
        compare(out=tmp_path, **asked | {"lease": 2.0})
        require_same(tmp_path, alone)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*") if path.is_file()}
        os.kill(sleeper, signal.SIGCONT)
        until(lambda: os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOHANG | os.WNOWAIT), 60)
    assert woke.exists()
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*") if path.is_file()}
    assert after == before
    require_same(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [True, False])
def test_sigterm_saves_every_training(whole_group: bool, asked: dict[str, Any], alone: Path, tmp_path: Path) -> None:
    """As schedulers end a job: the command and its workers get SIGTERM at once; or the command alone."""

    def command() -> None:
        os.setpgid(0, 0)
        words = [f"--{name.replace('_', '-')}={asked[name]}" for name in ("data", "device", "epochs", "batch_size")]
        words += ["--workers=0", "--seeds=2", "--parallel=2", f"--out={tmp_path}", "--quiet"]
        code = main(["compare", *words])
        (tmp_path / "code").write_text(str(code))

    with other_process(command) as driver:
        until(lambda: training(tmp_path), 60)
        workers = {own.who["pid"] for name in NAMES if (own := holder(tmp_path, name)) is not None}
        (os.killpg if whole_group else os.kill)(driver, signal.SIGTERM)
        until((tmp_path / "code").exists, 60)
    assert (tmp_path / "code").read_text() == "143"
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert [name for name in NAMES if holder(tmp_path, name)] == [], "every lease was given back"
    begun = [name for name in NAMES if any((tmp_path / name / "checkpoint").glob("*"))]
    assert begun, "what was begun lies in its place, with a checkpoint"
    compare(out=tmp_path, **asked | {"methods": ["erm"]})
    require_same_weights(tmp_path, alone, NAMES[:2])


@pytest.mark.slow
def test_a_full_disk_ends_a_comparison_and_with_room_it_continues(
    asked: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """A file system of eight megabytes, nearly all of them taken."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        (tmp_path / "ballast").write_bytes(bytes(7_500_000))
        one = asked | {"methods": ["erm"], "seeds": 1}
        with pytest.raises(HoldfastError, match="No space left on device .* bytes are needed") as said:
            compare(out=tmp_path / "c", **one)
        assert CELLS not in str(said.value), "it names the place where the run lies afterwards"
        (tmp_path / "ballast").unlink()
        compare(out=tmp_path / "c", **one)
        require_same_weights(tmp_path / "c", alone, NAMES[:1])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.slow
def test_clocks_may_jump_while_cells_are_trained(
    asked: dict[str, Any], alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the time of day is years from the one before; another command watches the leases meanwhile."""
    jumps = itertools.cycle((0.0, 1e9, -1e9, 5e8))
    now = time.time()
    for name, scale in (("time", 1), ("time_ns", 10**9)):
        monkeypatch.setattr(time, name, lambda scale=scale: type(scale)(scale * (now + next(jumps))))
    formatted = time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *at: formatted(form, *(at or [time.gmtime(now + next(jumps))])))
    taken: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        watching = LeaseWatch(seconds=20.0)
        while not ended.wait(0.02):
            taken.extend(name for name in NAMES if watching.dead(tmp_path, name) is not None)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        compare(out=tmp_path, **asked | {"methods": ["lff"], "lease": 20.0})
    finally:
        ended.set()
        thread.join()
    assert taken == [], "nobody counts as dead because of a clock"
    require_same_weights(tmp_path, alone, NAMES[2:])


@pytest.mark.slow
def test_two_commands_in_one_folder_share_the_work(asked: dict[str, Any], alone: Path, tmp_path: Path) -> None:
    with other_process(lambda: compare(out=tmp_path, **asked) and None):
        until(lambda: training(tmp_path), 60)
        compare(out=tmp_path, **asked)
    require_same(tmp_path, alone)


def echo(argument: Any, shared: Any) -> Any:
    if argument == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if argument == "raise":
        raise HoldfastError("bad value")
    return argument, shared, torch.get_num_threads(), os.getpid()


@pytest.mark.slow
def test_local_processes_answer_raise_and_die(tmp_path: Path) -> None:
    answers: dict[str, Any] = {}
    with LocalProcesses(1, threads=2).begin(echo, {"a": 1}) as pool:
        for key in ("one", "raise", "die", "two"):
            until(lambda: pool.free)
            pool.submit(key, key)
            until(lambda key=key: answers.update(pool.wait(0.1)) or key in answers, 60)
    assert answers["one"][:3] == ("one", {"a": 1}, 2)
    assert answers["one"][3] != os.getpid()
    assert str(answers["raise"].error) == "bad value"
    assert answers["die"] == WorkerDied("its process was ended by SIGKILL (was there enough memory?)")
    assert answers["two"][3] != answers["one"][3], "a new worker in its place"
    with pytest.raises(ProcessLookupError):
        os.kill(answers["two"][3], 0)


def nap(argument: Path, shared: Any) -> None:
    argument.write_text(str(os.getpid()))
    time.sleep(60)


@pytest.mark.slow
def test_a_worker_at_work_does_not_outlive_a_killed_driver(tmp_path: Path) -> None:
    def drive() -> None:
        with LocalProcesses(1).begin(nap, None) as pool:
            pool.submit("nap", tmp_path / "pid")
            time.sleep(60)

    with other_process(drive) as driver:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
        os.kill(driver, signal.SIGKILL)
        worker = int((tmp_path / "pid").read_text())
        until(lambda: leases._started(worker) is None, 10)


class AlwaysDead:
    """An executor whose workers never answer."""

    free = True

    def begin(self, call: Any, shared: Any) -> AlwaysDead:
        self.calls: list[str] = []
        return self

    def submit(self, key: str, argument: Any) -> None:
        self.calls.append(key)

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        return [(self.calls[-1], WorkerDied("of a broken machine"))] if self.calls else []

    def kill(self, key: str) -> None: ...

    def __enter__(self) -> AlwaysDead:
        return self

    def __exit__(self, *error: object) -> None: ...


def test_a_cell_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    dead = AlwaysDead()
    with pytest.raises(HoldfastError, match=f"cell was given up after {MOST_DEATHS} workers died at it: of a broken"):
        list(train_cells([CellTask("cell", tmp_path, TrainSettings())], dead))
    assert len(dead.calls) == MOST_DEATHS


class Impatient(ThisProcess):
    """Waits in vain for a second at most."""

    waits = 0

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        self.waits += 1
        assert self.waits < 100, "nobody looks at the leases"
        return super().wait(0.01)


def test_leases_are_looked_at_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that another command holds is asked for again once it is free, also while the time of day runs back."""
    day = itertools.count(2_000_000_000, -100_000)
    monkeypatch.setattr(time, "time", lambda: float(next(day)))
    states = iter(["held", "held", "held"])
    call = lambda task, shared: CellOutcome(next(states, "done"))  # type: ignore[arg-type]  # noqa: E731
    ((_, outcome),) = train_cells([CellTask("cell", tmp_path, TrainSettings())], Impatient(), call=call, lease=1.0)
    assert outcome.state == "done"


@pytest.mark.slow
def test_a_finished_cell_is_left_as_it_is(alone: Path) -> None:
    """As when another command has finished it after this one looked what there is to do."""
    before = {path: path.stat().st_mtime_ns for path in (alone / NAMES[0]).rglob("*")}
    assert train_cell(CellTask(NAMES[0], alone, TrainSettings()), None) == CellOutcome("done")
    assert {path: path.stat().st_mtime_ns for path in (alone / NAMES[0]).rglob("*")} == before


class DiesElsewhere(AlwaysDead):
    """An executor whose first worker takes the cell on another machine, and is gone with its node."""

    def submit(self, key: str, argument: Any) -> None:
        super().submit(key, argument)
        self.given.append(argument)
        if len(self.given) == 1:
            lost = leases._take(argument.out, key, seconds=1e6, driver=argument.driver, evict="")
            assert lost is not None
            self.lost = lost

    def begin(self, call: Any, shared: Any) -> AlwaysDead:
        self.given: list[CellTask] = []
        return super().begin(call, shared)

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        if not self.calls:
            return []
        return [(self.calls.pop(), WorkerDied("its node died") if len(self.given) == 1 else CellOutcome("done"))]


@pytest.mark.parametrize("ours", [True, False])
def test_a_worker_that_died_elsewhere_is_replaced_at_once(
    ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says that it died, so nobody waits for its lease to run out; but only what this command began."""
    monkeypatch.setattr(leases, "_boot", lambda: {"host": "elsewhere", "boot": None, "pids": None})
    place = DiesElsewhere()
    if not ours:
        monkeypatch.setattr(
            leases, "_take", lambda *a, _take=leases._take, **how: _take(*a, **how | {"driver": "another"})
        )
    list(train_cells([CellTask("cell", tmp_path, TrainSettings())], place))
    assert place.given[1].evict == (place.lost.token if ours else "")
    place.lost.give_back()


def test_what_cannot_be_sent_to_other_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="cannot be sent to other processes.*leave --parallel out"):
        LocalProcesses(2).begin(echo, lambda: None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parallel": "0"}, "parallel must be auto or a whole number >= 1, got '0'"),
        ({"parallel": "many"}, "parallel must be auto or a whole number >= 1, got 'many'"),
        ({"threads": 0}, "threads must be >= 1, got 0"),
        ({"address": "1.2.3.4:6379"}, "address 1.2.3.4:6379 needs engine ray"),
        ({"lease": 0.0}, "lease must be > 0, got 0.0"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        EngineSettings(**given)


def test_as_many_workers_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.executors.usable_cores", lambda: 8)

    def workers(calls: int, **given: Any) -> int:
        return getattr(make_executor(EngineSettings(**given), device="cpu", calls=calls), "workers", 1)

    assert workers(100, parallel="auto") == 8
    assert workers(3, parallel="auto") == 3, "no more than there are trainings"
    assert workers(100, parallel="auto", threads=3) == 2
    assert workers(100, parallel="5") == 5
    assert workers(100) == 1
