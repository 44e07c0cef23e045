"""SIGTERM at chosen places of whole commands: wherever it comes before a command has ended, the exit code is 143."""

from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from holdfast import signals
from holdfast.audits import audit_folder, measuring, run_audit
from holdfast.cli import main
from holdfast.comparisons import single_run
from holdfast.data.splits import FileSplit
from holdfast.train import api
from holdfast.train.engine import Trainer
from holdfast.train.rate_finder import _Trial

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from kills import make_photos

audit_command = sys.modules["holdfast.cli.audit"]  # the package has a function of that name
SHARED = ["--device", "cpu", "--batch-size", "8"]
READ = ["--device", "cpu", "--workers", "0"]
TRAINED = ["--epochs", "1", "--optimizer", "sgd", "--lr", "0.01"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    make_photos(folder / "photos", train=8, test=4)
    words = ["--data", str(folder / "photos"), "--out", str(folder / "model"), "--workers", "0", *SHARED, *TRAINED]
    assert main(["train", *words]) == 0
    return folder


@pytest.fixture(autouse=True)
def unhandled() -> Iterator[list[int]]:
    """Signals that came when no command was there to take them; by default one would end the process."""
    late: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: late.append(signum))
    yield late
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


class Removed:
    """Is told to end while it is removed, where Python drops exceptions."""

    def __del__(self) -> None:
        terminate()


def remove_an_object() -> None:
    Removed()


def remove_a_generator() -> None:
    def interrupted() -> Iterator[int]:
        try:
            yield 1
        finally:
            terminate()

    next(interrupted())


def call_a_weak_reference_back() -> None:
    """As each import does at its end, with the lock of its module."""

    class Locked:
        pass

    locked = Locked()
    _ = weakref.ref(locked, lambda _: terminate())
    del locked


def collect_garbage() -> None:
    cycle: list[Any] = [Removed()]
    cycle.append(cycle)
    del cycle
    gc.collect()


def be_excepted() -> None:
    """As in the standard library's copyreg, which has an ``except: pass``."""
    with suppress(BaseException):
        terminate()


def set_a_name() -> None:
    """Python 3.11 raises a RuntimeError instead."""

    class Named:
        def __set_name__(self, owner: object, name: str) -> None:
            terminate()

    type("Owner", (), {"field": Named()})


WAYS = (
    terminate,
    remove_an_object,
    remove_a_generator,
    call_a_weak_reference_back,
    collect_garbage,
    be_excepted,
    set_a_name,
)


QUIET = (remove_an_object, be_excepted)


def interrupt(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    *,
    way: Callable[[], None] = terminate,
    after: bool = False,
    call: int = 1,
) -> list[str]:
    """Have a function of the command be interrupted, before or after its work; what is returned tells that it was."""
    work, calls, came = getattr(owner, name), [], []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if not after and len(calls) == call:
            came.append(name)
            way()
        result = work(*args, **kwargs)
        if after and len(calls) == call:
            came.append(name)
            way()
        return result

    monkeypatch.setattr(owner, name, interrupted)
    return came


def audit(place: Path, out: Path, *more: str) -> int:
    checks = ["--checks", "accuracy", "groups", "--quiet"]
    return main(["audit", str(place / "model"), "--out", str(out), *SHARED, *checks, *(more or ("--workers", "0"))])


PLACES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "models are opened": (run_audit, "open_all", {}),
    "a batch is read": (FileSplit, "read", {}),
    "a batch was read": (FileSplit, "read", {"after": True, "call": 2}),
    "the first check begins": (measuring, "measure", {}),
    "the first check has ended": (measuring, "measure", {"after": True}),
    "between checks": (measuring, "write_check", {"after": True}),
    "the last check has ended": (measuring, "write_check", {"after": True, "call": 2}),
    "gates are judged": (run_audit, "judge_all", {}),
    "findings are written": (audit_folder, "write_findings", {}),
    "findings were written": (audit_folder, "write_findings", {"after": True}),
    "the report was written": (audit_folder, "write_report", {"after": True}),
    "results are printed": (audit_command, "_print", {}),
    "results were printed": (audit_command, "_print", {"after": True}),
}


@pytest.mark.parametrize("where", PLACES)
def test_an_audit_that_was_told_to_end_says_so_wherever_it_was(
    where: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unhandled: list[int]
) -> None:
    owner, name, how = PLACES[where]
    with monkeypatch.context() as patch:
        came = interrupt(patch, owner, name, **how)
        assert audit(place, tmp_path / "out") == 143
    assert came
    assert not unhandled
    assert audit(place, tmp_path / "out") == 0


@pytest.mark.parametrize("way", WAYS)
def test_no_signal_is_lost_where_python_drops_exceptions(
    way: Callable[[], None],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unhandled: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for where in ("the first check begins", "results were printed"):  # with time to come again, and without
        owner, name, how = PLACES[where]
        with monkeypatch.context() as patch:
            came = interrupt(patch, owner, name, way=way, **how)
            assert audit(place, tmp_path / "out") == 143
        assert came
        assert not unhandled
    said = capsys.readouterr().err
    assert "Exception ignored" not in said
    assert "interrupted; the same command continues" in said


def test_a_signal_that_was_dropped_does_not_wait_for_the_end(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, run_audit, "open_all", way=call_a_weak_reference_back)
    printed = interrupt(monkeypatch, audit_command, "_print", way=lambda: None)
    monkeypatch.setattr(signals, "AGAIN", 0.001)
    assert audit(place, tmp_path / "out") == 143
    assert not printed


def test_an_audit_that_starts_workers_is_ended(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (False, True):
        with monkeypatch.context() as patch:
            came = interrupt(patch, DataLoader, "__iter__", after=after)
            assert audit(place, tmp_path / "out", "--workers", "2") == 143
        assert came


@pytest.mark.parametrize("number", range(8))
def test_a_signal_while_handlers_are_swapped_is_not_lost(
    number: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unhandled: list[int]
) -> None:
    """Each batch swaps them twice, of two signals."""
    swap, swaps, came = signal.signal, [], []

    def interrupted(signum: int, handler: Any) -> Any:
        if signum in signals.ENDING:
            swaps.append(signum)
            if len(swaps) == 2 + number:  # the first one is that of the command
                came.append(signum)
                os.kill(os.getpid(), signal.SIGTERM)
        return swap(signum, handler)

    monkeypatch.setattr(signals.signal, "signal", interrupted)
    assert audit(place, tmp_path / "out") == 143
    assert came
    assert not unhandled
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_before_is_back_after_a_signal_at_the_very_end(unhandled: list[int]) -> None:
    """The last moment at which the command takes it; later it is for whoever started the command."""
    with pytest.raises(KeyboardInterrupt), signals.ended_by_term():
        be_excepted()
    terminate()
    assert unhandled == [signal.SIGTERM]


def train(place: Path, out: Path, *more: str) -> int:
    words = ["--data", str(place / "photos"), "--out", str(out), "--workers", "0", *SHARED, *TRAINED]
    return main(["train", *words, *more])


TRAINING = {
    "a stage begins": (Trainer, "_enter", {"after": True}),
    "the last epoch was looked at": (Trainer, "_end_epoch", {"after": True}),
    "the best weights are taken": (Trainer, "_keep_selected", {}),
    "the model is saved": (api, "save_model", {}),
    "the test set is measured": (single_run, "audit", {}),
}


@pytest.mark.parametrize(
    ("where", "way"), [*((where, terminate) for where in TRAINING), *(("the model is saved", way) for way in QUIET)]
)
def test_a_training_that_was_told_to_end_says_so_and_resumes(
    where: str,
    way: Callable[[], None],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unhandled: list[int],
) -> None:
    """After the last look for a signal too: what follows is the measuring and the writing of the model."""
    owner, name, how = TRAINING[where]
    with monkeypatch.context() as patch:
        came = interrupt(patch, owner, name, way=way, **how)
        assert train(place, tmp_path / "out") == 143
    assert came
    assert not unhandled
    assert train(place, tmp_path / "out", "--resume") == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "out", place / "model")]
    assert weights[0] == weights[1]


def test_a_comparison_that_was_told_to_end_after_its_last_step_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", "--data", str(place / "photos"), "--out", str(tmp_path / "out"), "--workers", "0", *SHARED]
    words += [*TRAINED, "--methods", "erm", "--seeds", "1"]
    with monkeypatch.context() as patch:
        came = interrupt(patch, Trainer, "_end_epoch", after=True)
        assert main(words) == 143
    assert came
    assert main(words) == 0


def test_a_search_for_a_rate_that_was_told_to_end_after_its_last_step_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, came = _Trial._done, []

    def interrupted(losses: list[float], most: int) -> bool:
        if over := done(losses, most):
            came.append(over)
            terminate()
        return over

    monkeypatch.setattr(_Trial, "_done", staticmethod(interrupted))
    assert train(place, tmp_path / "out", "--find-lr") == 143
    assert came


@pytest.mark.parametrize("way", QUIET)
def test_predictions_are_ended_too(
    way: Callable[[], None], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["predict", str(place / "model"), "--data", str(place / "photos"), "--out", str(tmp_path / "table.csv")]
    came = interrupt(monkeypatch, FileSplit, "read", way=way)
    assert main([*words, *READ]) == 143
    assert came


@pytest.mark.parametrize("way", QUIET)
def test_detectors_are_ended_too(
    way: Callable[[], None], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["detect", "fit", "--data", str(place / "photos"), "--run", str(place / "model")]
    came = interrupt(monkeypatch, FileSplit, "read", way=way)
    assert main([*words, "--out", str(tmp_path / "detector"), "--false-alarm-rate", "0.5", "--device", "cpu"]) == 143
    assert came
