"""Leases: one holder at a time, dead ones found, and none that can write over its successor."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.executors.leases import (
    CELLS,
    HEARTBEAT,
    Holder,
    Lease,
    LeasedProgress,
    LeaseLost,
    LeaseWatch,
    holder,
    leased,
    run_folder,
    sweep,
    sweep_all,
)
from holdfast.files import InUse
from holdfast.train.folder import claim
from holdfast.train.progress import Progress
from tests.forking import other_process, until

SHORT = 0.4


def written(lease: Lease, text: str) -> None:
    lease.adopt()
    lease.folder.mkdir(exist_ok=True)
    (lease.folder / "run.yaml").write_text(text)


def holding(out: Path) -> Callable[[], None]:
    def work() -> None:
        with leased(out, "cell", seconds=SHORT) as lease:
            assert lease is not None
            written(lease, "first")
            time.sleep(60)

    return work


def test_one_holder_at_a_time_and_the_run_lies_in_its_place_afterwards(tmp_path: Path) -> None:
    with leased(tmp_path, "cell") as lease, leased(tmp_path, "cell") as second, leased(tmp_path, "other") as other:
        assert lease is not None
        assert second is None
        assert other is not None
        written(lease, "a")
        assert run_folder(tmp_path, "cell") == lease.folder
        assert lease.folder.name == "cell", "a run is called by its folder"
        assert not (tmp_path / "cell").exists()
    assert (tmp_path / "cell" / "run.yaml").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["cell"], "nothing else is left"


def test_an_unfinished_run_is_taken_from_its_place_and_given_back_whatever_happens(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "run.yaml").write_text("begun")
    with pytest.raises(ZeroDivisionError), leased(tmp_path, "cell") as lease:  # noqa: PT012
        assert lease is not None
        lease.adopt()
        assert (lease.folder / "run.yaml").read_text() == "begun"
        raise ZeroDivisionError
    assert (tmp_path / "cell" / "run.yaml").read_text() == "begun"


def test_a_run_is_not_taken_from_under_a_training(tmp_path: Path) -> None:
    with claim(tmp_path / "cell"), pytest.raises(InUse, match="in use"), leased(tmp_path, "cell") as lease:  # noqa: PT012
        assert lease is not None
        lease.adopt()


def test_a_killed_holder_is_known_at_once_and_its_run_is_taken_over(tmp_path: Path) -> None:
    with other_process(holding(tmp_path)) as pid:
        until(lambda: (run_folder(tmp_path, "cell") / "run.yaml").exists() and not (tmp_path / "cell").exists())
        watch = LeaseWatch(seconds=60)
        assert watch.dead(tmp_path, "cell") is None
        with leased(tmp_path, "cell") as refused:
            assert refused is None
        half = run_folder(tmp_path, "cell") / ".model.safetensors.1.tmp"
        half.write_text("half")
        os.kill(pid, signal.SIGKILL)
        until(lambda: watch.dead(tmp_path, "cell"))  # it is a zombie: nobody has waited for it yet
        with leased(tmp_path, "cell") as lease:
            assert lease is not None
            lease.adopt()
            assert (lease.folder / "run.yaml").read_text() == "first"
            assert not (lease.folder / half.name).exists()


def test_a_holder_that_wakes_up_cannot_write_over_its_successor(tmp_path: Path) -> None:
    """Stopped (SIGSTOP), taken over, finished by another, and continued: it must find that the cell is not its own."""
    said = tmp_path / "said"

    def work() -> None:
        try:
            with leased(tmp_path, "cell", seconds=SHORT) as lease:
                assert lease is not None
                written(lease, "first")
                until((tmp_path / "taken").exists, 60)
                lease.folder.mkdir(parents=True, exist_ok=True)  # as one does who saves a checkpoint before he looks
                (lease.folder / "run.yaml").write_text("late")
        except LeaseLost as error:
            said.write_text(str(error))

    with other_process(work) as pid:
        until(lambda: (run_folder(tmp_path, "cell") / "run.yaml").exists())
        os.kill(pid, signal.SIGSTOP)
        watch = LeaseWatch(seconds=SHORT)
        until(lambda: watch.dead(tmp_path, "cell"))
        dead = holder(tmp_path, "cell")
        assert dead is not None
        assert not dead.surely_dead, "the process is there: only its heartbeat tells"
        with leased(tmp_path, "cell", evict=dead.token) as lease:
            assert lease is not None
            written(lease, "second")
            (tmp_path / "taken").touch()
            os.kill(pid, signal.SIGCONT)
            until(said.exists)
            assert (lease.folder / "run.yaml").read_text() == "second"
        assert (tmp_path / "cell" / "run.yaml").read_text() == "second"
    assert said.read_text() == "cell was taken over by another worker; this one leaves it alone"


def test_what_a_lost_holder_wrote_before_it_noticed_is_not_in_the_way(tmp_path: Path) -> None:
    late = tmp_path / CELLS / "cell" / "old" / "old" / "cell"
    late.mkdir(parents=True)
    (late / "run.yaml").write_text("late")
    assert holder(tmp_path, "cell") is None
    with leased(tmp_path, "cell") as lease:
        assert lease is not None
        lease.adopt()
        assert not lease.folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_liveness_is_the_observers_own_clock_and_a_change(tmp_path: Path) -> None:
    """Whatever the clocks say: a heartbeat that changes is alive, one that does not for so long is dead."""
    now = 0.0
    watch = LeaseWatch(seconds=10, clock=lambda: now)
    with leased(tmp_path, "cell", seconds=1e6) as lease:
        assert lease is not None
        beat = lease._own / HEARTBEAT
        for now, changed, dead in [
            (0, 0, 0),
            (9, 0, 0),
            (9.5, 1, 0),
            (19, 0, 0),
            (19.6, 0, 1),
            (20, 1, 0),
            (29.9, 0, 0),
        ]:
            if changed:
                lease._beat()
            assert (watch.dead(tmp_path, "cell") is not None) == bool(dead), now
        os.utime(beat, (0, 0))  # a clock that was set back to 1970 says nothing
        assert watch.dead(tmp_path, "cell") is None


def test_the_time_of_day_may_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = [0.0]
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + jumps[-1])
    watch = LeaseWatch(seconds=20)
    with leased(tmp_path, "cell", seconds=SHORT) as lease:
        assert lease is not None
        assert watch.dead(tmp_path, "cell") is None
        for jump in (0.0, 1e9, -1e9):
            jumps.append(jump)
            assert watch.dead(tmp_path, "cell") is None
            beats = json.loads((lease._own / HEARTBEAT).read_bytes())["beat"]
            until(lambda beats=beats: json.loads((lease._own / HEARTBEAT).read_bytes() or "{}").get("beat", 0) > beats)
            assert watch.dead(tmp_path, "cell") is None
        assert not lease.lost


def test_a_process_of_another_machine_or_container_is_not_known_to_be_dead(tmp_path: Path) -> None:
    with leased(tmp_path, "cell", seconds=1e6) as lease:
        assert lease is not None
        beat = lease._own / HEARTBEAT
        said = json.loads(beat.read_bytes()) | {"pid": 2**22 + 1}  # no process has such a number
        for changed, dead in [
            ({}, True),
            ({"pids": "pid:[1]"}, False),
            ({"boot": "another"}, False),
            ({"boot": None}, False),
            ({"token": "of a heartbeat that was copied"}, False),
            ({"pid": os.getpid()}, False),
            ({"pid": os.getpid(), "started": "0"}, True),  # the number is another process's by now
        ]:
            found = Holder(lease.token, b"", said | changed)
            assert found.surely_dead == dead, changed


def test_a_heartbeat_of_another_is_never_overwritten(tmp_path: Path) -> None:
    """A machine that still has the old folder under the old path, as network file systems let it for a while."""
    with pytest.raises(LeaseLost), leased(tmp_path, "cell", seconds=1e6) as lease:  # noqa: PT012
        assert lease is not None
        beat = lease._own / HEARTBEAT
        theirs = json.dumps(json.loads(beat.read_bytes()) | {"token": "theirs"})
        beat.write_text(theirs)
        lease._beat()
        assert beat.read_text() == theirs
        assert lease.lost


def test_a_full_disk_does_not_lose_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with leased(tmp_path, "cell", seconds=1e6) as lease:
        assert lease is not None

        def full() -> bytes:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(lease, "_heartbeat", full)
            lease._beat()
        assert not lease.lost
        lease._beat()
        lease.require()


def test_a_training_stops_at_its_next_step_once_the_lease_is_lost(tmp_path: Path) -> None:
    steps = []

    class Counted(Progress):
        def step(self) -> None:
            steps.append(1)

    with pytest.raises(LeaseLost), leased(tmp_path, "cell", seconds=SHORT) as lease:  # noqa: PT012
        assert lease is not None
        progress = LeasedProgress(lease, Counted())
        progress.step()
        (lease._own).rename(lease._own.with_name("another"))
        until(lambda: lease.lost)
        progress.step()
    assert len(steps) == 1


def test_a_heartbeat_says_how_far_a_training_is(tmp_path: Path) -> None:
    with leased(tmp_path, "cell", seconds=1e6) as lease:  # at once, not at the next renewal
        assert lease is not None
        LeasedProgress(lease).epoch({"stage": "main", "epoch": 2, "train_loss": 0.5}, 3)
        until(lambda: (found := holder(tmp_path, "cell")) and found.status == "epoch 2/3  loss 0.5000")


def test_sweeping_leaves_alone_what_is_held(tmp_path: Path) -> None:
    with leased(tmp_path, "cell", seconds=SHORT) as lease:
        assert lease is not None
        sweep(tmp_path, "cell")
        sweep_all(tmp_path)
        lease._beat()
        lease.require()
    (tmp_path / CELLS / ".cell-left").mkdir(parents=True)
    sweep_all(tmp_path)
    assert not (tmp_path / CELLS).exists()


def test_a_worker_that_tidies_up_does_not_make_a_free_cell_look_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gives back the last cell removes the folder of all, perhaps while another makes its own in there."""
    real, removed = Path.mkdir, 0

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        nonlocal removed
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.name == ".cells" and removed < 3:
            removed += 1
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with leased(tmp_path, "cell") as lease:
        assert lease is not None
    assert removed == 3
