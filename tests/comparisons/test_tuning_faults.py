"""Searches whose workers are killed, sleep or hang; in a database of their own machine, and in PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.comparisons import optuna_study
from holdfast.comparisons.tuning import Tuning, tune
from holdfast.errors import HoldfastError
from holdfast.executors import leases
from holdfast.executors.leases import holder, leased
from holdfast.train import train
from holdfast.train.folder import read_settings
from tests.forking import other_process, until

from .test_tuning import ASKED, data

optuna: Any = pytest.importorskip("optuna")

__all__ = ["data"]
ONE: dict[str, Any] = {**ASKED, "space": {"lr": [0.01, 0.02]}, "pruning": "none"}


def require_undisturbed(found: Tuning, name: str, place: Path) -> None:
    """Assert that a trial ended with the weights that it has when nobody disturbs it."""
    assert [(trial.state, len(trial.scores)) for trial in found.trials] == [("complete", 1)] * len(found.trials)
    assert len({trial.name for trial in found.trials}) == len(found.trials)
    train(read_settings(found.out / name / "run.yaml"), out=place)
    assert (found.out / name / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()


def begun(out: Path, *but: str) -> str:
    """A trial that has a checkpoint to continue from, and is under way; none but those."""
    names = [name for number in range(3) if (name := f"trial-{number:04d}") not in but]
    found = {name: holder(out, name) for name in names}
    return next((name for name, own in found.items() if own is not None and own.status.startswith("epoch")), "")


def test_a_trial_that_was_taken_over_is_left_to_its_successor(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a sleep: others have failed the trial in the study, and hold its folder. The search continues."""
    told = optuna_study._TrialProgress.epoch

    def stolen(self: Any, record: Any, epochs: int) -> None:
        told(self, record, epochs)
        study, number = self.trial.study, self.trial.number
        if number == 0:
            found = holder(self.lease.place.parent, self.lease.name)
            assert found is not None
            study.tell(number, state=optuna.trial.TrialState.FAIL)
            optuna_study._continue_later(study, number, self.trial.params, self.trial.user_attrs)
            with leased(self.lease.place.parent, self.lease.name, evict=found.token) as mine:
                assert mine is not None
                mine.adopt()
            until(lambda: self.lease.lost)

    monkeypatch.setattr(optuna_study._TrialProgress, "epoch", stolen)
    found = tune(data, out=tmp_path / "t", **{**ONE, "trials": 2, "lease": 2.0})
    require_undisturbed(found, "trial-0000", tmp_path / "alone")
    assert len(found.trials) == 2


def test_a_worker_that_dies_before_it_tells_the_score_loses_nothing(data: Path, tmp_path: Path) -> None:
    asked = {**ONE, "trials": 1, "lease": 1.0}

    def dies() -> None:
        optuna.study._optimize._tell_with_warning = lambda **told: os._exit(9)
        tune(data, out=tmp_path / "t", **asked)

    with other_process(dies) as pid:
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), 60)
    assert (tmp_path / "t" / "trial-0000" / "model.safetensors").exists()
    found = tune(data, out=tmp_path / "t", **asked)
    require_undisturbed(found, "trial-0000", tmp_path / "alone")


@pytest.mark.slow
def test_workers_that_are_killed_or_hang_are_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed in the middle of a trial, the next stopped for good: others continue both trials."""
    monkeypatch.setattr("holdfast.comparisons.tuning.PATIENCE", 1.0)
    out, said = tmp_path / "t", tmp_path / "said"

    def disturb() -> None:
        sent: list[str] = []
        for signum in (signal.SIGKILL, signal.SIGSTOP):
            until(lambda: begun(out, *sent), 60)
            name = begun(out, *sent)
            found = holder(out, name)
            assert found is not None
            os.kill(found.who["pid"], signum)
            sent.append(name)
            said.write_text(f"{' '.join(sent)} {found.who['pid']}")
        time.sleep(600)

    with other_process(disturb):
        found = tune(data, out=out, **{**ONE, "parallel": 2, "epochs": 12, "lease": 2.0})
    killed, stopped, pid = said.read_text().split()
    assert killed != stopped
    require_undisturbed(found, killed, tmp_path / "alone")
    require_undisturbed(found, stopped, tmp_path / "alone as well")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


# ---- PostgreSQL -----------------------------------------------------------------------------------------------------


def programs() -> Path | None:
    """Where PostgreSQL's server is: Debian keeps it out of the path."""
    found = [Path(place) for name in ("postgres", "initdb") if (place := shutil.which(name))]
    if len(found) == 2:
        return found[0].parent
    return next((path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, on the loopback device, which is gone afterwards."""
    binaries = programs()
    if binaries is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL's server, and the extra postgres")
    place = Path("/tmp") / f"holdfast-pg-{secrets.token_hex(4)}"  # the path of a socket must be short
    place.mkdir()
    who: dict[str, Any] = {"user": "nobody", "cwd": "/"} if os.geteuid() == 0 else {}  # it refuses to run as root
    if who:
        shutil.chown(place, "nobody")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = ["initdb", "-D", str(place / "data"), "-A", "trust", "-U", "me", "--no-sync"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([binaries / made[0], *made[1:]], check=True, **quiet, **who)
    words = ["-D", str(place / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(place), "-F"]
    server = subprocess.Popen([binaries / "postgres", *words], **quiet, **who)
    try:
        until(lambda: _answers(port), 30)
        yield f"postgresql://me@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(30)
        shutil.rmtree(place, ignore_errors=True)


def _answers(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(f"postgresql://me@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_two_machines_share_a_study_in_postgresql_and_one_of_them_dies(
    data: Path, tmp_path: Path, database: str
) -> None:
    """The survivor cannot see the other's processes: the heartbeat in the database tells that its trial is dead."""
    out = tmp_path / "shared"
    asked = {**ONE, "epochs": 12, "storage": database, "lease": 3.0}

    def elsewhere() -> None:
        leases._boot = lambda: {"host": "elsewhere", "boot": "another", "pids": "pid:[1]"}  # type: ignore[assignment]
        tune(data, out=out, **asked)

    with other_process(elsewhere) as pid:
        until(lambda: begun(out), 60)
        name = begun(out)
        os.kill(pid, signal.SIGKILL)
        found = holder(out, name)
        assert found is not None
        assert not found.surely_dead
        done = tune(data, out=out, **asked)
    assert len(done.trials) == 3
    require_undisturbed(done, name, tmp_path / "alone")
    assert not (out / "study.db").exists()
    study = optuna.load_study(study_name="shared", storage=database.replace("://", "+psycopg://"))
    states = [trial.state.name for trial in study.trials]
    assert sorted(states) == ["COMPLETE"] * 3 + ["FAIL"], "its trial was failed, and continued as another"
    again = next(trial for trial in study.trials if "continues" in trial.user_attrs)
    assert again.user_attrs["folder"] == name


def test_a_password_is_not_shown(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"cannot use the storage postgresql\+nodriver://me:\*\*\*@h/d") as said:
        tune(data, out=tmp_path / "t", **{**ONE, "storage": "postgresql+nodriver://me:secret@h/d"})
    assert "secret" not in str(said.value)
