"""Run folders: who may write, what survives a death, what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import random
import resource
import shlex
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import holdfast
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build
from holdfast.train import checkpoints, fit, folder, train
from holdfast.train.folder import RunFolder
from tests.conftest import Heard, make_data, same_weights
from tests.forking import ForkServer

QUICK = {"device": "cpu", "batch_size": 16, "epochs": 2}
TRAIN = ["train", "--data", "digits", "--device", "cpu", "--batch-size", "64", "--crop", "1", "--ema", "0.9", "--quiet"]


def test_a_used_folder_is_refused_resumed_or_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    with pytest.raises(HoldfastError, match="already holds a run; continue it with --resume, replace it with --over"):
        fit(make_data(), out=out, **QUICK)
    before = (out / "model.safetensors").read_bytes()
    fit(make_data(), out=out, resume=True, **QUICK)
    assert (out / "model.safetensors").read_bytes() == before
    (out / "notes.txt").write_text("mine")
    fit(make_data(), out=out, overwrite=True, **{**QUICK, "epochs": 1})
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    assert (out / "notes.txt").read_text() == "mine"


def test_a_run_is_not_continued_with_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, lr=0.05, **QUICK)
    with pytest.raises(HoldfastError, match=r"started with other settings \(lr: 0.05 -> 0.2\)"):
        fit(make_data(), out=out, resume=True, lr=0.2, **QUICK)


def test_the_run_records_its_settings_and_environment(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, optimizer="adam", lr="1e-3", **QUICK)
    recorded = yaml.safe_load((out / "run.yaml").read_text())
    assert recorded["lr"] == 0.001
    assert recorded["environment"]["torch"] == torch.__version__
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]


PACKAGE = Path(holdfast.__file__).parent


@pytest.mark.parametrize(
    ("started", "known"),
    [
        ("/usr/bin/holdfast", True),
        (f"{PACKAGE}/__main__.py", True),  # python -m holdfast
        (f"{PACKAGE}/cli/__main__.py", True),
        ("mine.py", False),
        ("/srv/holdfast/__main__.py", False),
        ("", False),
    ],
)
def test_the_command_is_recorded_as_a_shell_reads_it(
    started: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "--data", "digits", "--out", "runs/a run"]
    monkeypatch.setattr(sys, "argv", [started, *words])
    assert shlex.split(folder.environment()["command"]) == (["holdfast", *words] if known else [])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HoldfastError, match="cannot write to .*file/run: Not a directory; choose another --out"):
        fit(make_data(), out=tmp_path / "file" / "run", **QUICK)


def test_no_room_on_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real, calls = tmp_path / "run", torch.save, []

    def full(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(HoldfastError, match="cannot write a checkpoint.*No space left on device; free some room"):
        fit(make_data(), out=out, **QUICK)
    assert [p.name for p in (out / "checkpoint").iterdir()] == ["step-000000006"]
    monkeypatch.undo()
    resumed = fit(make_data(), out=out, resume=True, **QUICK)
    assert len(resumed.history) == 2


def test_no_room_for_the_first_checkpoint_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args, **kwargs):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(HoldfastError, match="cannot write a checkpoint"):
        fit(make_data(), out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_broken_checkpoint_is_named_with_the_remedy(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    for state in (out / "checkpoint").glob("*/state.pt"):
        state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(HoldfastError, match="cannot read checkpoint .*state.pt.*start anew with --overwrite"):
        fit(make_data(), out=out, resume=True, **QUICK)


def flip(path: Path, bits: Iterable[int]) -> None:
    content = bytearray(path.read_bytes())
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_single_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    """torch.load notices it in few places only: most of the file is numbers."""
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    checkpoints, chance = RunFolder(out).checkpoints, random.Random(0)
    assert checkpoints.newest is not None
    state = checkpoints.newest / "state.pt"
    for _ in range(40):
        bit = chance.randrange(8 * state.stat().st_size)
        flip(state, [bit])
        with pytest.raises(HoldfastError, match=r"cannot read checkpoint .*state.pt: it does not match its checksum"):
            checkpoints.load()
        flip(state, [bit])
    assert checkpoints.load() is not None


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it_and_said(tmp_path: Path) -> None:
    out, heard = tmp_path / "run", Heard()
    whole = fit(make_data(), out=out, **QUICK)
    weights = (out / "model.safetensors").read_bytes()
    assert sorted(p.name for p in (out / "checkpoint").iterdir()) == ["step-000000006", "step-000000012"]
    flip(out / "checkpoint/step-000000012/state.pt", [40_000])
    settings = build(TrainSettings, QUICK)
    again = train(settings, data=make_data(), out=out, resume=True, progress=heard)
    said = [note for note in heard.notes if "damaged" in note]
    assert len(said) == 1
    assert "step-000000012 is damaged (it does not match its checksum" in said[0]
    assert "continuing from the one before it, step-000000006" in said[0]
    assert same_weights(again.model, whole.model)
    assert (out / "model.safetensors").read_bytes() == weights
    assert sorted(p.name for p in (out / "checkpoint").iterdir()) == ["step-000000006", "step-000000012"]
    assert RunFolder(out).checkpoints.load() is not None  # the damaged one was written anew


def test_a_checkpoint_has_a_checksum_that_other_tools_can_check(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    for made in (out / "checkpoint").iterdir():
        stated, name = (made / checkpoints.CHECKSUM).read_text().split()
        assert stated == hashlib.sha256((made / name).read_bytes()).hexdigest()


def test_a_full_disk_says_which_file_and_how_much_was_needed(tmp_path: Path) -> None:
    fit(make_data(), out=tmp_path / "whole", **QUICK)
    size = (tmp_path / "whole/checkpoint/step-000000006/state.pt").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(HoldfastError) as full:
            fit(make_data(), out=tmp_path / "run", **QUICK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = str(full.value)
    assert f"{tmp_path}/run/checkpoint/step-000000006/state.pt: File too large ({size:,} bytes are needed)" in said
    assert said.endswith("; free some room or choose another --out, then start again")
    assert not (tmp_path / "run").exists()


def test_what_lies_in_a_checkpoint_is_never_executed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (trap,))

    for state in (out / "checkpoint").glob("*/state.pt"):
        torch.save({"position": Trap()}, state)
        (state.parent / checkpoints.CHECKSUM).unlink()
    with pytest.raises(HoldfastError, match="cannot read checkpoint"):
        fit(make_data(), out=out, resume=True, **QUICK)
    assert not trap.exists()


DYING = """
import os, shutil, signal, sys, torch
from holdfast.cli import main
moment, count = sys.argv[1], int(sys.argv[2])

def dies(owner, name, before):
    real = getattr(owner, name)
    def deadly(*args, **kwargs):
        global count
        count -= 1
        if count == 0:
            before(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(owner, name, deadly)

def half(state, file):
    file.write(bytes(1000))
    file.flush()

if moment == "step":
    from holdfast.train.step import Step
    dies(Step, "__call__", lambda *args: None)
elif moment == "writing":
    dies(torch, "save", half)
elif moment == "replacing":
    dies(shutil, "rmtree", lambda *args: None)
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.slow
def test_kill_9_at_random_moments_then_resume_equals_the_uninterrupted_run(tmp_path: Path, forked: ForkServer) -> None:
    """In the middle of a step, of writing a checkpoint, and of removing the one before it."""

    def run(out: str, moment: str = "never", count: int = 0) -> int:
        words = [*TRAIN, "--epochs", "6", "--out", str(tmp_path / out), "--resume"]
        return forked.run([moment, str(count), *words], code=DYING).wait()

    assert run("whole") == 0
    chance = random.Random()
    kills = [("step", chance.randint(1, 30)), ("writing", chance.randint(1, 2)), ("replacing", 1)]
    chance.shuffle(kills)
    for moment, count in kills:
        assert run("killed", moment, count) == -signal.SIGKILL, kills
    assert run("killed") == 0
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[k], killed[k]) for k in whole), kills
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "killed/metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 7))


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_exit_with_their_code(signum: int, code: int, tmp_path: Path, forked: ForkServer) -> None:
    out = tmp_path / "run"
    with forked.start([*TRAIN, "--epochs", "500", "--out", str(out)]) as process:
        deadline = time.monotonic() + 60
        while not (out / "checkpoint").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signum)
        assert process.wait() == code
    said = process.stderr
    assert "stopped at step" in said
    assert "--resume" in said
    assert "Traceback" not in said
    assert list((out / "checkpoint").glob("step-*"))
