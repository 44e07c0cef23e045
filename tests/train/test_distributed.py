"""Several ranks are one training: the same numbers, one folder, one end."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.cli import main
from holdfast.rng import derive
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from tests.conftest import make_data, make_split
from tests.data.pictures import write_class_folder
from tests.train.ranks import (
    CASES,
    PROCESSES,
    Commands,
    case,
    in_ranks,
    trained,
    trained_all,
    trained_on_files,
    under_an_agent,
)

PARTS = 6
"""Into how many tests the cases are split: each starts ranks once."""


def compare(cases: Sequence[Mapping[str, Any]], size: int = 2) -> None:
    """Assert that so many ranks end where one process does, on every rank."""
    together = in_ranks(size, trained_all, cases)
    for n, one in enumerate(cases):
        alone = trained(one)
        for key in alone:
            for rank, found in enumerate(together):
                said = f"{one}: {key} on rank {rank} of {size}"
                torch.testing.assert_close(
                    found[str(n)][key],
                    alone[key],
                    rtol=0,
                    atol=1e-10,
                    equal_nan=True,
                    msg=lambda m, s=said: f"{s}\n{m}",
                )


@pytest.mark.slow
def test_two_ranks_equal_one_process() -> None:
    """One method of each kind: plain, with its own network and averages, mixing within the batch and in the network."""
    last = case("erm", channels_last="on")
    compare([case("erm"), last, case("lff", "fsam"), case("mixup", "sam"), case("manifold-mixup", "fsam")])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_method_and_ascent(part: int) -> None:
    compare([case(method, ascent) for method, ascent in CASES[part::PARTS]])


@pytest.mark.slow
def test_hosts_that_would_read_files_differently_read_them_alike(tmp_path: Path) -> None:
    for name, seed in (("ant", 1), ("bee", 2)):
        write_class_folder(tmp_path / name, 9, seed=seed, side=8)
    first, second = in_ranks(2, trained_on_files, str(tmp_path))
    assert torch.equal(first["weights"], second["weights"])


@pytest.mark.slow
def test_what_else_a_step_does() -> None:
    """Augmentation, parts of a batch, class weights, averages of weights, clipping, every study ascent, evaluation."""
    changes = {"crop": 1, "flip": True, "cutout": 2, "erasing": 0.5, "color_jitter": [0.4]}
    compare([
        case("erm", **changes),
        case("cutmix", "sam", accumulate=3, **changes),
        case("lff+biasadv", accumulate=2, class_weights=["balanced"], ema=0.9, clip=0.1),
        case("mixup", "sam-large", nesterov=True),
        case("erm", "sam-noise"),
        case("jtt", "sam-db", eval_every=1, diagnose=1),
    ])  # fmt: skip


def test_one_rank_is_a_plain_process() -> None:
    compare([case("erm"), case("lff+biasadv", "fsam")], 1)


@pytest.mark.slow
def test_three_ranks_with_uneven_parts() -> None:
    compare([case("lff", "fsam"), case("logit-correction"), case("dropout", "sam"), case("vat")], 3)


def test_files_that_each_rank_reads_its_part_of() -> None:
    """Mixing needs all images of a batch, and so do parts of one: ranks exchange what they have decoded."""
    stream = {"loader": "stream", "workers": 0}
    compare([case("erm", **stream), case("mixup", **stream), case("erm", "sam-full", accumulate=2, **stream)])


def test_statistics_of_its_own_per_rank_unless_synchronised() -> None:
    """Ranks stay one model, whose running statistics are the mean of theirs; but that is not one process's."""
    one = case("erm", sync_batchnorm=False)
    first, second = (found["0"] for found in in_ranks(2, trained_all, [one]))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.allclose(first["weights"], trained(one)["weights"], atol=1e-6)
    step = {**one, "batch_size": 23}  # 12 rows and 11: their means, each by its rows, are the mean of all
    alone, (together, _) = (
        trained(step)["statistics"],
        (found["0"]["statistics"] for found in in_ranks(2, trained_all, [step])),
    )
    torch.testing.assert_close(together[:4], alone[:4], rtol=0, atol=1e-10)
    assert not torch.allclose(together[4:8], alone[4:8], rtol=0, atol=1e-10), (
        "variances within ranks miss the one between them"
    )


def test_climbing_per_rank_is_m_sharpness() -> None:
    """Each rank climbs along its own rows' gradient; the mean of the gradients found there is descended along."""
    found = in_ranks(2, climb_apart)
    w, x, y = (found[0][key] for key in ("before", "x", "y"))
    slopes = []
    for own in (slice(0, None, 2), slice(1, None, 2)):
        g = gradient(w, x[own], y[own])
        slopes.append(gradient(w + 0.5 * g / g.norm(), x[own], y[own]))
    expected = w - 0.1 * sum(slopes) / 2
    for one in found:
        torch.testing.assert_close(one["after"], expected, rtol=0, atol=1e-10)
    joint = gradient(w, x, y)
    assert not torch.allclose(expected, w - 0.1 * gradient(w + 0.5 * joint / joint.norm(), x, y), atol=1e-6)


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    w = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x.flatten(1) @ w.T, y), w)
    return found


def climb_apart(ranks: object) -> dict[str, Tensor]:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 3, bias=False).double()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.double().flatten(1))
            return out

    torch.manual_seed(0)
    model, data = Plain(), make_data(12)
    before = model.layer.weight.detach().clone()
    sam = {"name": "sam", "rho": 0.5, "per_rank": True}
    plain = {"batch_size": 12, "epochs": 1, "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "device": "cpu"}
    train(build(TrainSettings, {"ascent": sam, "schedule": "constant", **plain}), data=data, model=model)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(derive(0, "order/0/0")))
    x = (data.train.read(order).float() / 255).double()
    return {"before": before, "after": model.layer.weight.detach(), "x": x, "y": data.train.labels[order]}


# ---- one folder, one end --------------------------------------------------------------------------------------------


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """48 images and a test set in a file."""
    arrays = {}
    for name, split in (("train", make_split(48, 3, seed=1)), ("test", make_split(12, 3, seed=2))):
        arrays |= {f"x_{name}": split.images[:, 0], f"y_{name}": split.labels}
    np.savez(tmp_path / "bars.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    return tmp_path / "bars.npz"


def words(bars: Path, out: str = "run", **changes: object) -> list[str]:
    given = {"data": bars, "out": bars.parent / out, "epochs": 3, "batch-size": 12, "device": "cpu", "ascent": "fsam"}
    flags = {**given, "method": "lff", **changes}.items()
    return ["train", *(word for name, value in flags for word in (f"--{name}", str(value)))]


def messages(logs: Sequence[str]) -> list[str]:
    """What ranks said that is neither the progress of a training nor the method's caution."""
    usual = ("epoch ", "chosen for ", "lff is for data")
    return [line for log in logs for line in log.splitlines() if not line.startswith(usual)]


def weights(bars: Path, out: str) -> dict[str, Tensor]:
    return load_file(bars.parent / out / "model.safetensors")


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_resume_continues(bars: Path) -> None:
    """What differs by rank is saved as well: here the mean gradient of Friendly SAM, when each climbs by itself. And so
    is the state of the generator that dropout masks of the whole batch are drawn with."""
    apart = ["--ascent.per-rank"]
    dropped = {"method": "dropout"}
    codes, logs = Commands([*words(bars, "whole", **dropped), *apart], bars.parent).end()
    assert codes == [0, 0]
    assert logs[0].count("epoch ") == 3
    assert logs[1] == ""
    command = [*words(bars, **dropped), *apart]
    codes, logs = Commands(command, bars.parent, at_step=6, rank=1, signum=signal.SIGTERM).end()
    assert codes == [143, 143]
    (said,) = messages(logs)
    assert said.startswith("stopped at step ")
    assert "continue with --resume --out" in said
    codes, logs = Commands([*command, "--resume"], bars.parent).end()
    assert codes == [0, 0]
    assert same(weights(bars, "run"), weights(bars, "whole"))


@pytest.mark.slow
def test_one_process_continues_what_two_ranks_began(bars: Path) -> None:
    sync = ["--sync-batchnorm"]
    assert main([*words(bars, "whole"), *sync]) == 0
    codes, logs = Commands([*words(bars), *sync], bars.parent, at_step=6, rank=None).end()  # as schedulers signal
    assert codes == [143, 143]
    assert len(messages(logs)) == 1
    assert "".join(logs).count("lff is for data") == 1, "by one of the two"
    assert main([*words(bars), *sync, "--resume"]) == 0
    found, expected = weights(bars, "run"), weights(bars, "whole")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_a_restart_continues(bars: Path) -> None:
    assert Commands(words(bars, "whole"), bars.parent).end()[0] == [0, 0]
    for rank in (0, 1):
        out = f"killed{rank}"
        began = time.monotonic()
        commands = Commands(words(bars, out), bars.parent, at_step=6, rank=rank, signum=signal.SIGKILL)
        codes, logs = commands.end()
        assert time.monotonic() - began < 20
        assert codes[rank] == -9
        assert codes[1 - rank] == 4
        (said,) = messages(logs)
        assert "a rank was lost" in said
        assert "--resume" in said
        codes, logs = Commands(words(bars, out), bars.parent, restart=1).end()  # as torchrun does, without --resume
        assert codes == [0, 0]
        assert "continuing at step 4" in logs[0]
        assert same(weights(bars, out), weights(bars, "whole"))


@pytest.mark.slow
def test_torchrun_restarts_a_training_whose_rank_was_killed(bars: Path) -> None:
    """By torchrun's own agent, whose restart hangs where ranks read what the dead ones left in its store."""
    assert Commands(words(bars, "whole"), bars.parent).end()[0] == [0, 0]
    log = bars.with_name("agent.log")
    agent = PROCESSES.Process(target=under_an_agent, args=(words(bars), str(log)))
    agent.start()
    agent.join(60)
    alive = agent.is_alive()
    agent.kill()
    assert not alive, log.read_text()
    assert agent.exitcode == 0, log.read_text()
    assert "continuing at step 4" in log.read_text()
    assert same(weights(bars, "run"), weights(bars, "whole"))


def test_a_full_disk_gives_one_message(bars: Path) -> None:
    codes, logs = Commands(words(bars), bars.parent, largest_file=20_000).end()
    assert codes == [2, 2]
    (said,) = messages(logs)
    assert "cannot write a checkpoint" in said
    assert not (bars.parent / "run").exists()


def test_what_fails_on_one_rank_ends_all(bars: Path) -> None:
    """Its message names it; and a second training may follow in the same folder."""
    other = bars.with_name("other.npz")
    np.savez(other, **{**np.load(bars), "y_train": (np.arange(48) + 1) % 3})
    codes, logs = Commands([words(bars), words(other)], bars.parent).end()
    assert codes == [2, 2]
    (said,) = messages(logs)
    assert "the training data of rank 1 differs from that of rank 0" in said
    codes, logs = Commands([words(bars), words(bars.with_name("gone.npz"))], bars.parent).end()
    assert codes == [2, 2]
    (said,) = messages(logs)
    assert said.startswith("error: rank 1: ")
    assert "gone.npz" in said


def test_a_usage_error_is_shown_once(bars: Path) -> None:
    codes, logs = Commands(words(bars, epochs="many"), bars.parent).end()
    assert codes == [2, 2]
    assert "--epochs" in logs[0]
    assert logs[1] == ""


def test_only_training_runs_under_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["list", "methods"]) == 2
    assert "list is one process, and torchrun started 2; run it without torchrun" in capsys.readouterr().err
