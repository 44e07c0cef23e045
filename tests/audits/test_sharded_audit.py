"""An audit in shards gives the numbers of an audit in one process, whatever becomes of the shards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import holdfast
from holdfast.audits import shard_workers, sharded_audit
from holdfast.audits.checks.attacks import AttackBudget
from holdfast.audits.run_audit import Audit
from holdfast.audits.sample_passes import SamplePass, share_out
from holdfast.cli import main
from holdfast.data import Dataset
from holdfast.errors import HoldfastError
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.executors.leases import CELLS, holder
from holdfast.models import build_model
from tests.conftest import make_data

pytest.importorskip("pyarrow")

LITTLE: dict[str, Any] = {
    "attacks": {"images": 20, "radii": (0.1,), "budget": AttackBudget(20, 3, 3, 12, 4, 6, 16, 1, "convnet")},
    "corruptions": {"images": 40, "strengths": (1.0,)},
    "saliency": {"images": 8},
}
FILE = {"class_map": "order", "architecture": "convnet"}
MOST = ("accuracy", "groups", "slices", "corruptions", "attacks", "ood", "saliency")


class Net(nn.Module):
    """Features, a last layer, and a place where a test may look in."""

    def __init__(self, seed: int = 3, sign: int = 1) -> None:
        super().__init__()
        self.sign = sign
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv, self.fc = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(48, 3)
        self.seen: Callable[[Tensor], None] = no_one

    def forward(self, x: Tensor) -> Tensor:
        self.seen(x)
        logits: Tensor = self.fc(self.conv(x).tanh().mean(3).flatten(1))
        return self.sign * logits


def no_one(x: Tensor) -> None:
    """Nobody looks."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards one after the other in this process: the same code but for the processes."""
    monkeypatch.setattr(sharded_audit, "make_executor", lambda *_, **__: ThisProcess())


def run(out: Path | None, model: Any = None, data: Dataset | None = None, **more: Any) -> Audit:
    how = {"device": "cpu", "workers": 0, "batch_size": 8, "settings": LITTLE, "tell": lambda text: None, **more}
    how.setdefault("checks", MOST)
    return holdfast.audit(model or Net(), data or make_data(30, 3, test=50, groups=2), out=out, **how)


def numbers(folder: Path) -> Any:
    """All of findings.json but times, and the table of samples."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("seconds", "finished", "command", "digest")}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return plain(json.loads((folder / "findings.json").read_text())), (folder / "samples.csv").read_text()


@contextmanager
def computed_here() -> Iterator[list[str]]:
    """Names of passes whose rows nobody had kept, so that the audit itself computed them."""
    names: list[str] = []
    inner = SamplePass.all_rows

    def noted(one: SamplePass) -> dict[str, Tensor]:
        names.append(one.name)
        return inner(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SamplePass, "all_rows", noted)
        yield names


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    with computed_here() as names:
        run(out)
    assert {"predictions", "slices-features", "slices-looks", "corruptions-eight", "ood-features"} < set(names)
    return out


def written(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in (out / "shards").rglob("*.parquet")}


# ---- sharing out ----------------------------------------------------------------------------------------------------


def sample_pass(name: str, n: int, size: int, cost: float = 1.0, together: str = "") -> SamplePass:
    return SamplePass(name, torch.arange(n), size, lambda blocks: [], cost, together=together)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_block_is_somebodys_and_loads_are_level(count: int) -> None:
    passes = [sample_pass("predictions", 1000, 10), sample_pass("few", 25, 10, 3.0)]
    passes += [sample_pass(f"attack {i}", 100, 256, 20.0) for i in range(12)]
    shared = share_out(passes, count)
    for one in passes:
        own = [blocks for shard in shared for blocks in [shard.get(one.name, [])]]
        assert sorted(block for blocks in own for block in blocks) == list(range(one.blocks))
    sizes = {one.name: one for one in passes}
    loads = [sum(sizes[k].cost * len(sizes[k].order(b)) for k, b in shard.items()) for shard in shared]
    assert max(loads) - min(loads) <= 20 * 100, "no more than one attack apart"
    first = [shard["predictions"] for shard in shared]
    each = 100 // count
    assert [blocks[:each] for blocks in first] == [list(range(i * each, (i + 1) * each)) for i in range(count)]


def test_passes_that_share_something_go_to_one_shard() -> None:
    passes = [sample_pass(f"transfer {i}", 10, 10, together="surrogate") for i in range(6)]
    shared = share_out([*passes, *(sample_pass(f"own {i}", 10, 10) for i in range(6))], 2)
    assert sorted(len(shard) for shard in shared) == [6, 6]
    assert [{name.split()[0] for name in shard} for shard in shared] in (
        [{"transfer"}, {"own"}],
        [{"own"}, {"transfer"}],
    )


# ---- the same numbers -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("count", [1, 4])
def test_an_audit_in_shards_is_the_audit_in_one_process(count: int, alone: Path, tmp_path: Path) -> None:
    looked: list[int] = []
    model = Net()
    model.seen = lambda x: looked.append(len(x))
    with computed_here() as names:
        run(tmp_path, model, shards=count)
    assert names == [], "statistics run on rows of the shards: nothing is computed again"
    assert numbers(tmp_path) == numbers(alone)
    assert len(list(tmp_path.glob(f"shards/*-of-{count}/Net/*.parquet"))) > count
    assert not (tmp_path / "shards" / CELLS).exists()
    looked.clear()
    run(tmp_path, model, shards=count)
    kept = sum(looked)
    looked.clear()
    run(None, model, checks=("accuracy",))
    assert kept == sum(looked), "checks are kept, and a model without a name is aligned and asked for predictions alone"


@pytest.mark.usefixtures("here")
def test_several_models_are_compared_on_the_joined_rows(tmp_path: Path) -> None:
    for out, more in ((tmp_path / "one", {}), (tmp_path / "four", {"shards": 4})):
        run(out, against=Net(5), checks=("accuracy", "slices", "corruptions"), max_drop={"accuracy": 0.5}, **more)
    for name in ("Net", "Net-2"):
        assert numbers(tmp_path / "four" / name) == numbers(tmp_path / "one" / name)


@pytest.mark.usefixtures("here")
def test_a_budget_leaves_what_it_cuts_to_one_process(tmp_path: Path) -> None:
    made = run(tmp_path, checks=("accuracy", "slices", "corruptions"), budget="10m", shards=2)
    assert made["mean_corruption_accuracy"].n > 0
    names = {path.stem for path in tmp_path.rglob("shards/*/Net/*.parquet")}
    assert names == {"predictions", "slices-features", "slices-looks"}


@pytest.mark.usefixtures("here")
def test_a_model_that_runs_out_of_memory_ends_in_the_batches_of_one_process(tmp_path: Path) -> None:
    def narrow(x: Tensor) -> None:
        if len(x) > 4:
            raise torch.OutOfMemoryError("little room")

    for out, more in ((tmp_path / "one", {}), (tmp_path / "three", {"shards": 3})):
        told: list[str] = []
        model = Net()
        model.seen = narrow
        run(out, model, checks=("accuracy", "slices", "corruptions"), tell=told.append, **more)
        assert "Net: out of memory: batches of 4 instead of 8" in told
    assert numbers(tmp_path / "three") == numbers(tmp_path / "one")
    assert len(list(tmp_path.glob("three/shards/*/Net/predictions.parquet"))) == 3


@pytest.mark.usefixtures("here")
def test_a_check_that_fails_ends_as_it_does_in_one_process(tmp_path: Path) -> None:
    told: list[str] = []

    def broken(x: Tensor) -> None:
        if x.requires_grad and len(x) > 2:  # two are shown to see whether gradients reach them
            raise RuntimeError("no gradient today")

    for out, more in ((tmp_path / "one", {}), (tmp_path / "two", {"shards": 2, "tell": told.append})):
        model = Net()
        model.seen = broken
        made = run(out, model, checks=("accuracy", "corruptions", "attacks"), **more)
        assert made.exit_code == 3
    assert numbers(tmp_path / "two") == numbers(tmp_path / "one")
    assert any("left to the audit itself" in line and "no gradient today" in line for line in told)


# ---- what is missing is redone alone --------------------------------------------------------------------------------


def forget_checks(out: Path) -> None:
    for path in (out / "checks").iterdir():
        path.unlink()


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that is known by its file."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        save_file(
            build_model("convnet", num_classes=3, in_channels=1, image_size=8).model.state_dict(), "net.safetensors"
        )
    return "net.safetensors"


@pytest.mark.usefixtures("here")
def test_a_missing_shard_is_redone_alone(saved: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "checks": ("accuracy", "slices", "corruptions"),
        "class_map": "order",
        "architecture": "convnet",
        "shards": 3,
    }
    out, told = tmp_path / "out", []
    run(out, saved, **asked)
    first, before = numbers(out), written(out)
    lost = next(path for path in before if "checks-2-of-3" in path)
    (out / lost).unlink()
    forget_checks(out)
    run(out, saved, tell=told.append, **asked)
    after = written(out)
    assert numbers(out) == first
    assert {path for path in before if after[path] != before[path]} == {lost}
    assert "shards: checks-2-of-3 computed, 3 of 3" in told
    assert any(line.startswith("shards: predictions: 3 of 3 computed before") for line in told)


@pytest.mark.usefixtures("here")
def test_a_damaged_file_is_not_believed(saved: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "checks": ("accuracy", "slices"),
        "class_map": "order",
        "architecture": "convnet",
        "shards": 2,
    }
    run(tmp_path / "out", saved, **asked)
    first = numbers(tmp_path / "out")
    path = next((tmp_path / "out").rglob("predictions-1-of-2/**/predictions.parquet"))
    whole = path.read_bytes()
    middle = len(whole) // 4
    changed = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
    for content, redone in ((whole[:-100], []), (changed, ["predictions"])):
        path.write_bytes(content)
        forget_checks(tmp_path / "out")
        with computed_here() as names:
            run(tmp_path / "out", saved, **asked)
        assert names == redone, "a file of another size is computed again by its shard, a changed one by the audit"
        assert numbers(tmp_path / "out") == first


@pytest.mark.usefixtures("here")
def test_an_interrupted_audit_continues_with_the_shards_that_are_missing(saved: str, tmp_path: Path) -> None:
    out, done = tmp_path / "out", []

    def tell(text: str) -> None:
        done.append(text)
        if text == "shards: predictions-2-of-3 computed, 2 of 3":
            raise KeyboardInterrupt

    asked: dict[str, Any] = {"checks": ("accuracy",), **FILE, "shards": 3}
    with pytest.raises(KeyboardInterrupt):
        run(out, saved, tell=tell, **asked)
    before = written(out)
    assert len(before) == 2
    run(out, saved, **asked)
    assert {path: time for path, time in written(out).items() if path in before} == before
    assert len(written(out)) == 3


@pytest.mark.usefixtures("here")
def test_rows_of_another_model_are_not_taken(tmp_path: Path) -> None:
    """Modules of the same name and weights: their answers tell them apart, before anything rests on them."""
    asked: dict[str, Any] = {"checks": ("accuracy", "slices", "corruptions"), "shards": 2}
    run(tmp_path / "out", Net(), **asked)
    run(tmp_path / "out", Net(sign=-1), **asked)
    run(tmp_path / "fresh", Net(sign=-1), checks=asked["checks"])
    assert numbers(tmp_path / "out") == numbers(tmp_path / "fresh")
    run(tmp_path / "out", Net(sign=-1), **asked | {"shards": 3})
    assert numbers(tmp_path / "out") == numbers(tmp_path / "fresh")
    assert {path.name.partition("-")[2] for path in (tmp_path / "out/shards").iterdir()} == {
        f"{i}-of-3" for i in (1, 2, 3)
    }


# ---- refused --------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, **more: Any) -> str:
    with pytest.raises(HoldfastError) as error:
        run(more.pop("out", tmp_path / "out"), **more)
    assert not (tmp_path / "out").exists(), "nothing is written"
    return str(error.value)


def test_what_cannot_be_done_in_shards_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path, shards=0) == "shards must be >= 1, got 0"
    assert refused(tmp_path, shards=2, out=None) == "shards need a folder to keep what they compute; name one with out"
    assert "engine is for an audit in shards; give shards, or leave it out" in refused(tmp_path, engine="ray")
    assert "address 1.2.3.4 needs engine ray" in refused(tmp_path, shards=2, address="1.2.3.4")
    monkeypatch.setattr("holdfast.executors.find_spec", lambda name: None)
    assert "pip install 'holdfast[ray]'" in refused(tmp_path, shards=2, engine="ray")
    monkeypatch.setattr("holdfast.data.tables.find_spec", lambda name: None)
    assert "pip install 'holdfast[parquet]'" in refused(tmp_path, shards=2)


def test_a_model_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.executors.usable_cores", lambda: 2)
    model = Net()
    model.seen = lambda x: None
    said = refused(tmp_path, model=model, shards=2, checks=("accuracy",))
    assert said.startswith("the model, its data or a setting cannot be sent to other processes: ")
    assert said.endswith("name them by files, start the audit with torchrun, or leave --shards out")
    monkeypatch.setattr(sys.modules["__main__"], "no_one", no_one, raising=False)
    monkeypatch.setattr(no_one, "__module__", "__main__")
    assert "a class or function of the script or notebook itself" in refused(tmp_path, shards=2, checks=("accuracy",))


def test_predictions_and_torchrun_without_shards_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("label,prediction\na,a\nb,a\n")
    assert main(["audit", "--predictions", "p.csv", "--shards", "2"]) == 2
    assert "predictions were made, and shards would compute them; leave --shards out" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["audit", "m", "--data", "digits"]) == 2
    assert "audit is one process, and torchrun started 2; give --shards, or run it" in capsys.readouterr().err


# ---- real processes -------------------------------------------------------------------------------------------------


@contextmanager
def killing(out: Path, name: str, status: str) -> Iterator[list[int]]:
    """Kill the worker that computes a shard, once it says that it is at something, while the block runs."""
    killed: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not killed and not ended.wait(0.005):
            found = holder(out / "shards", name)
            if found is not None and status in found.status:
                with suppress(ProcessLookupError):
                    os.kill(found.who["pid"], signal.SIGKILL)
                    killed.append(found.who["pid"])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_four_shards_of_which_one_is_killed_equal_one_process(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 to the worker of one shard, in the middle of its attacks: a new one continues that shard alone."""
    monkeypatch.setattr("holdfast.executors.usable_cores", lambda: 2)
    monkeypatch.setattr(shard_workers, "PAUSE", 0.0)
    told: list[str] = []
    with killing(tmp_path, "checks-2-of-4", "attacks") as killed:
        run(tmp_path, shards=4, tell=told.append)
    assert len(killed) == 1
    assert killed[0] != os.getpid()
    assert numbers(tmp_path) == numbers(alone)
    computed = [line.split()[1] for line in told if line.startswith("shards: checks")]
    assert sorted(computed) == [f"checks-{i}-of-4" for i in (1, 2, 3, 4)], "each once"
    assert not (tmp_path / "shards" / CELLS).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(killed[0], 0)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_shards_on_ray_equal_one_process(alone: Path, tmp_path: Path) -> None:
    run(tmp_path, shards=3, engine="ray")
    assert numbers(tmp_path) == numbers(alone)


MIDDLE = """
from torch import nn

def make():
    layer = nn.Linear(64, 3)
    layer.load_state_dict({"weight": layer.weight.data.fill_(0.1), "bias": layer.bias.data.fill_(0.0)})
    layer.weight.data[1] *= -1
    return nn.Sequential(nn.Flatten(), layer).eval()
"""


@pytest.mark.slow
def test_ranks_of_torchrun_compute_the_shards_and_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "middle.py").write_text(MIDDLE)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["audit", "python:middle:make", "--data", "d.npz", "--checks", "accuracy", "slices"]
    words += ["--class-map", "order", "--device", "cpu", "--workers", "0", "--batch-size", "8", "--quiet"]
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "holdfast"]
    paths = os.pathsep.join([str(Path(holdfast.__file__).parents[1]), str(tmp_path)])
    how: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    done = subprocess.run([*started, *words, "--shards", "3", "--out", "ranks"], capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ranks") == 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main([*words, "--out", "one"]) == 0
    assert numbers(tmp_path / "ranks") == numbers(tmp_path / "one")
    assert len(list(tmp_path.glob("ranks/shards/*-of-3/*/predictions.parquet"))) == 3
