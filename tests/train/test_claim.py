"""A run folder belongs to one process, and a run in it is lost only to a better one."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from holdfast.data import ArraySplit, Dataset
from holdfast.errors import HoldfastError
from holdfast.files import InUse
from holdfast.train import fit
from holdfast.train.checkpoints import CHECKSUM
from holdfast.train.engine import Trainer
from holdfast.train.folder import ASIDE, claim
from tests.conftest import make_data
from tests.forking import ForkServer, until

QUICK = {"device": "cpu", "batch_size": 16, "epochs": 2}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Breaks(nn.Module):
    """Works for some calls, then fails as code of others may."""

    def __init__(self, error: Exception, calls: int = 0) -> None:
        super().__init__()
        self.layer, self.error, self.left = nn.Linear(64, 3), error, calls

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left < 0:
            raise self.error
        return self.layer(x.flatten(1))


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    fit(make_data(), out=out, track=["tensorboard"], **QUICK)
    (out / "notes.txt").write_text("mine")
    return out


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 1e30, "clip": None},
        {"data": "nowhere.npz"},
        {"model": "resnet1"},
        {"select": "val-average"},
        {"model": Breaks(ZeroDivisionError("a bug"))},
        {"model": Breaks(KeyboardInterrupt())},
        {"model": Breaks(ZeroDivisionError("a bug"), calls=4)},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_run_outlives_the_failure_of_what_was_to_replace_it(bad: dict[str, object], finished: Path) -> None:
    before = content(finished)
    data = bad.get("data", make_data())
    with pytest.raises((HoldfastError, ZeroDivisionError, KeyboardInterrupt)):
        fit(data, out=finished, overwrite=True, **{**QUICK, **{k: v for k, v in bad.items() if k != "data"}})
    assert content(finished) == before


def test_a_run_is_gone_when_its_successor_has_a_checkpoint(finished: Path) -> None:
    before = content(finished)
    with pytest.raises(ZeroDivisionError):
        fit(make_data(), out=finished, overwrite=True, model=Breaks(ZeroDivisionError(), calls=9), **QUICK)
    after = content(finished)
    assert [p for p in after if p.startswith("checkpoint")] == [
        "checkpoint/step-000000006/state.pt",
        "checkpoint/step-000000006/state.pt.sha256",
    ]
    assert not any(p.startswith(ASIDE) for p in after)
    assert after["run.yaml"] != before["run.yaml"]
    assert "model.safetensors" not in after
    assert after["notes.txt"] == b"mine"


def test_an_error_of_others_leaves_no_stub(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(make_data(), out=tmp_path / "run", model=Breaks(ZeroDivisionError("a bug")), **QUICK)
    assert list(tmp_path.iterdir()) == []


DYING = """
import os, signal, sys
from pathlib import Path
from holdfast.cli import main
count, real = int(sys.argv[1]), Path.rename
def deadly(self, target):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
Path.rename = deadly
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moved", [0, 1, 3, 7])
def test_a_kill_while_a_run_is_set_aside_loses_nothing(moved: int, tmp_path: Path, forked: ForkServer) -> None:
    """Up to the seventh rename an old file moves; the eighth would put the first new checkpoint in place."""
    out = tmp_path / "run"
    fit("digits", out=out, **{**QUICK, "epochs": 1, "batch_size": 512})
    before = content(out)
    for name in ("findings.json", "report.html"):
        (out / name).write_text(name)
        before[name] = name.encode()
    words = ["train", "--data", "digits", "--device", "cpu", "--epochs", "1", "--overwrite", "--out", str(out)]
    assert forked.run([str(moved), *words], code=DYING).wait() == -signal.SIGKILL
    with pytest.raises(HoldfastError, match="already holds a run"):
        fit("digits", out=out, **QUICK)
    assert content(out) == before


def test_a_replacement_that_was_killed_early_can_be_continued(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(make_data(), out=finished.parent / "other", lr=0.2, **QUICK)
    (finished / ASIDE).mkdir()
    for path in finished.iterdir():
        if path.name not in (ASIDE, "notes.txt"):
            path.rename(finished / ASIDE / path.name)
    (finished.parent / "other/run.yaml").rename(finished / "run.yaml")
    before = content(finished)
    monkeypatch.setattr(Trainer, "run", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(make_data(), out=finished, resume=True, lr=0.2, **QUICK)
    monkeypatch.undo()
    assert content(finished) == before
    fit(make_data(), out=finished, resume=True, lr=0.2, **QUICK)
    assert not (finished / ASIDE).exists()
    assert content(finished)["model.safetensors"] == content(finished.parent / "other")["model.safetensors"]


HOLDING = """
import sys, time
from holdfast.train.folder import claim
with claim(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_one_processs_until_that_ends_however(tmp_path: Path, forked: ForkServer) -> None:
    out = tmp_path / "run"
    with forked.start([str(out)], code=HOLDING) as holder:
        until(lambda: holder.stdout == "held\n")
        for more in ({}, {"resume": True}, {"overwrite": True}):
            match = f"run is in use by process {holder.pid} on .*; wait until it has ended, or"
            with pytest.raises(InUse, match=match):
                fit(make_data(), out=out, **QUICK, **more)
    assert holder.wait() == -signal.SIGKILL
    fit(make_data(), out=out, **QUICK)
    assert not (out / ".lock").exists()


def test_a_worker_that_outlives_its_process_does_not_hold_the_folder(tmp_path: Path) -> None:
    with claim(tmp_path / "run"):
        worker = os.fork()
        if worker == 0:
            signal.pause()
    try:
        with claim(tmp_path / "run"):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def altered(data: Dataset, part: str) -> Dataset:
    split = getattr(data, part)
    assert isinstance(split, ArraySplit)
    images = split.images.clone()
    images[-1, 0, 0, 0] += 1
    return replace(data, **{part: replace(split, images=images)})


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_run_is_not_continued_on_other_data(part: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    before = content(out)
    with pytest.raises(
        HoldfastError, match="run was started on a set in memory, .*; continue it with that, or start anew.*--over"
    ):
        fit(altered(make_data(), part), out=out, resume=True, **QUICK)
    assert content(out) == before
    fit(make_data(), out=out, resume=True, **QUICK)


def arrays(path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2)


def test_data_may_lie_elsewhere_as_long_as_it_is_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    arrays(first, 0)
    arrays(second, 0)
    fit(first, out=tmp_path / "run", **QUICK)
    fit(second, out=tmp_path / "run", resume=True, **QUICK)
    arrays(second, 1)
    with pytest.raises(HoldfastError, match=r"other settings \(data: .*a.npz -> .*b.npz\)"):
        fit(second, out=tmp_path / "run", resume=True, **QUICK)
    arrays(first, 1)
    with pytest.raises(HoldfastError, match="the data has changed since .*run was started; put it back.*--over"):
        fit(first, out=tmp_path / "run", resume=True, **QUICK)


def test_a_module_of_the_callers_is_not_continued_with_another_model(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    fit(make_data(), model=own, out=tmp_path / "own", **QUICK)
    fit(make_data(), model=own, out=tmp_path / "own", resume=True, **QUICK)
    with pytest.raises(HoldfastError, match="started with a module of its own, Sequential; continue it with that"):
        fit(make_data(), out=tmp_path / "own", resume=True, **QUICK)
    fit(make_data(), out=tmp_path / "named", **QUICK)
    with pytest.raises(HoldfastError, match="started with the model its settings name"):
        fit(make_data(), model=own, out=tmp_path / "named", resume=True, **QUICK)


def test_a_run_of_an_older_version_is_continued_on_trust(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    record = yaml.safe_load((out / "run.yaml").read_text())
    del record["environment"]["data_sha256"]
    (out / "run.yaml").write_text(yaml.safe_dump(record))
    fit(altered(make_data(), "train"), out=out, resume=True, **QUICK)


@pytest.mark.parametrize("lost", ["run.yaml", "checkpoint"])
def test_what_cannot_be_continued_is_refused_and_kept(lost: str, finished: Path) -> None:
    (finished / lost).rename(finished.parent / lost)
    before = content(finished)
    with pytest.raises(HoldfastError, match=r"has no run.yaml|holds a trained model but no checkpoint"):
        fit(make_data(), out=finished, resume=True, **QUICK)
    assert content(finished) == before


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    for path in (out / "model.safetensors", out / "model.json"):
        path.unlink()
    shutil.rmtree(out / "checkpoint")
    fit(make_data(), out=out, resume=True, **QUICK)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def test_a_checkpoint_of_another_model_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), model=Wide(4), out=out, **QUICK)
    before = content(out)
    with pytest.raises(HoldfastError, match=r"step-0+12 does not fit this model.*size mismatch.*--overwrite"):
        fit(make_data(), model=Wide(5), out=out, resume=True, **QUICK)
    assert content(out) == before


def test_a_checkpoint_with_a_part_missing_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(make_data(), out=out, **QUICK)
    path = max(out.glob("checkpoint/*/state.pt"))
    state = torch.load(path, weights_only=True)
    del state["method"]
    torch.save(state, path)
    (path.parent / CHECKSUM).unlink()
    with pytest.raises(HoldfastError, match=r"does not fit this model and method: 'method'"):
        fit(make_data(), out=out, resume=True, **QUICK)


def test_no_room_says_continue_only_where_there_is_something_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(HoldfastError, match="No space left on device; free some room.*then start again$"):
            fit(make_data(), out=out, **QUICK)
    assert not out.exists()


def test_a_folder_that_may_not_be_searched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Path.exists raises for everyone but root."""
    real = os.stat

    def stat(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "closed")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(HoldfastError, match=r"cannot read .*closed/run: Permission denied; correct the path"):
        fit(make_data(), out=tmp_path / "closed/run", **QUICK)


@pytest.mark.parametrize("out", ["", 5])
def test_a_folder_must_have_a_name(out: object) -> None:
    with pytest.raises(HoldfastError, match=f"out must name a folder, got {out!r}; give one such as"):
        fit(make_data(), out=out, **QUICK)  # type: ignore[arg-type]


def test_resume_and_overwrite_exclude_each_other(finished: Path) -> None:
    before = content(finished)
    with pytest.raises(HoldfastError, match="resume and overwrite exclude each other"):
        fit(make_data(), out=finished, resume=True, overwrite=True, **QUICK)
    assert content(finished) == before
