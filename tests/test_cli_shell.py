"""What the shell and the terminal ask of every command: signals, pipes, encodings, widths."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.conftest import SignalAt

INTERRUPTED = {
    "train": (["train", "--data", "digits", "--device", "cpu", "--quiet"], "continue with --resume --out"),
    "demo": (["demo", "--quiet", "--epochs", "1"], "the same command starts anew"),
    "shortcuts": (["shortcuts", "--data", "digits", "--device", "cpu", "--quiet"], "the same command starts anew"),
    "compare": (["compare", "--data", "digits", "--device", "cpu", "--quiet"], "the same command continues"),
    "compare anew": (
        ["compare", "--data", "digits", "--device", "cpu", "--quiet", "--overwrite"],
        "the same command starts anew",
    ),
}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("case", INTERRUPTED)
def test_a_signal_ends_a_training_with_its_code_and_how_to_go_on(
    case: str,
    signum: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, remedy = INTERRUPTED[case]
    for place in ("audits.run_audit", "comparisons.running", "shortcuts.search", "train.rate_finder"):
        import_module(f"holdfast.{place}")  # imported later, it would keep the signal for good
    step = 1 if case == "demo" else 2  # a step of the demonstration is a whole training, in a process of its own
    monkeypatch.setattr("holdfast.train.progress.make_progress", lambda show=None: SignalAt(step, signum))
    before = signal.getsignal(signal.SIGTERM)
    assert main([*words, "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().err
    stopped = "interrupted" if case == "demo" else "stopped at step 2"
    assert said.startswith(f"{stopped}; {remedy}")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_between_trainings_ends_a_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception as error:
            pytest.fail(f"{error!r} could be taken for a crash")

    monkeypatch.setattr("holdfast.quality.check_data", killed)
    assert main(["data", "check", "digits"]) == 143
    assert capsys.readouterr().err == "interrupted; the same command starts anew\n"


def environment(**values: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | values


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ("stdout", ["list", "data"]),
        ("stdout", ["list", "--help"]),
        ("stdout", ["train", "--help"]),
        ("stdout", ["compare", "--data", "digits", "--plan"]),
        ("stderr", ["list", "nonsense"]),
    ],
)
def test_a_reader_that_leaves_ends_a_command_quietly(left: str, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    other = "stderr" if left == "stdout" else "stdout"
    streams = {left: writing, other: subprocess.PIPE}
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], text=True, **streams)  # type: ignore[call-overload]
    os.close(writing)
    assert done.returncode == 141
    assert getattr(done, other) == ""


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "--epochz", "1"]])
def test_no_color_holds_for_help_and_errors(words: list[str]) -> None:
    def shown(**values: str) -> str:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "holdfast", *words]
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment(TERM="xterm", **values)):
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # how a terminal says that its other side is closed
                while part := os.read(ours, 1 << 16):
                    text += part
        os.close(ours)
        return text.decode()

    assert "\x1b[" in shown()
    assert "\x1b[" not in shown(NO_COLOR="1")


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help"], ["compare", "--data", "digitz"], ["list"],
                                   ["compare", "--data", "digits", "--plan"], ["report", "häuser"]])  # fmt: skip
def test_a_terminal_without_unicode_ends_no_command(words: list[str]) -> None:
    bare = environment(PYTHONIOENCODING="ascii:strict", LC_ALL="C")
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, env=bare)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    assert done.stdout or done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["1", "4", "39"])
def test_help_in_a_sliver_of_a_terminal_is_that_of_the_narrowest(columns: str) -> None:
    def shown(width: str) -> str:
        command = [sys.executable, "-m", "holdfast", "train", "--help"]
        narrow = environment(COLUMNS=width)
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=narrow).stdout

    assert shown(columns) == shown("40") != ""


@pytest.mark.slow
def test_a_file_or_recipe_that_disagrees_with_the_run_is_refused_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("{data: digits, epochs: 1, device: cpu, batch_size: 512}")
    Path("two.yaml").write_text("{data: digits, epochs: 2, device: cpu, batch_size: 512}")
    assert main(["train", "--config", "one.yaml", "--out", "r", "--quiet"]) == 0
    assert main(["train", "--config", "one.yaml", "--out", "r", "--quiet", "--resume"]) == 0
    assert main(["train", "--out", "r", "--quiet", "--resume"]) == 0
    capsys.readouterr()
    assert main(["train", "--config", "two.yaml", "--out", "r", "--quiet", "--resume"]) == 2
    assert "r was started with other settings (epochs: 1 -> 2)" in capsys.readouterr().err
    assert main(["train", "--recipe", "erm/coloured-digits", "--out", "r", "--quiet", "--resume"]) == 2
    assert "r was started with other settings (data: digits -> coloured-digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mine", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_waiting_threads_leave_the_processor_to_others_unless_told_otherwise(
    mine: dict[str, str], spins: str | None
) -> None:
    """torch's threads read the environment when torch is imported, so it has to be set by then."""
    code = """
import builtins, os, sys
real = builtins.__import__
def watch(name, *args, **kwargs):
    if name.split(".")[0] == "torch":
        print(os.environ.get("GOMP_SPINCOUNT")); sys.stdout.flush(); os._exit(0)
    return real(name, *args, **kwargs)
builtins.__import__ = watch
from holdfast.cli import main
main(["train", "--data", "digits", "--epochs", "1"])
"""
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **mine}, capture_output=True, text=True)
    assert done.stdout.split() == [str(spins)], done.stderr
