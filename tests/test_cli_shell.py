"""What the shell and the terminal ask of every command: signals, pipes, encodings, widths."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.conftest import SignalAt

INTERRUPTED = {
    "train": (["train", "--data", "digits", "--device", "cpu", "--quiet"], "continue with --resume --out"),
    "demo": (["demo", "--quiet"], "the same command starts anew"),
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
    monkeypatch.setattr("holdfast.train.progress.make_progress", lambda show=None: SignalAt(2, signum))
    before = signal.getsignal(signal.SIGTERM)
    assert main([*words, "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"stopped at step 2; {remedy}")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_between_trainings_ends_a_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception as error:
            pytest.fail(f"{error!r} could be taken for a crash")

    monkeypatch.setattr("holdfast.data.check.check", killed)
    assert main(["data", "check", "digits"]) == 143
    assert capsys.readouterr().err == "interrupted; the same command starts anew\n"
