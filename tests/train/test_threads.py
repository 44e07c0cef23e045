"""One thread trains a network that is too small for several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.models.networks import ConvNet, resnet18
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from holdfast.train.engine import Trainer
from holdfast.train.threads import SMALL, fitting_threads


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine whose user has said nothing."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads(network: nn.Module, side: int, batch_size: int, channels: int = 3) -> int:
    with fitting_threads(network, (channels, side, side), batch_size):
        return torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_networks_that_gain_little_from_a_second_thread_have_one() -> None:
    """The rows of :data:`SMALL`, whose gain was measured."""
    assert threads(ConvNet(10, 1), 16, 32, channels=1) == 1
    assert threads(ConvNet(10, 1), 28, 32, channels=1) == 2
    assert threads(ConvNet(10, 3), 32, 32) == 2
    assert threads(resnet18(10, 3), 32, 32) == 2
    assert threads(ConvNet(10, 1), 16, 128, channels=1) == 2, "of large batches every layer is long"
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_limit_counts_multiplications_per_layer_and_batch() -> None:
    """A linear layer of n × n weights takes n² multiplications per image, whatever its bias costs."""
    one = nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000, bias=False))  # 3.072 million
    most = SMALL // 3_072_000
    assert threads(one, 32, most) == 1
    assert threads(one, 32, most + 1) == 2


@pytest.mark.usefixtures("two_threads")
def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads(ConvNet(10, 1), 16, 32, channels=1) == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails", [False, True])
def test_a_training_takes_them_and_gives_them_back(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def run(self: Trainer) -> None:
        seen.append(torch.get_num_threads())
        if fails:
            raise HoldfastError("as a full disk would")
        original(self)

    original = Trainer.run
    monkeypatch.setattr(Trainer, "run", run)
    settings = build(TrainSettings, {"data": "digits", "epochs": 1, "device": "cpu"})
    if fails:
        with pytest.raises(HoldfastError, match="full disk"):
            train(settings)
    else:
        train(settings)
    assert seen == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("batch_size", "threads"), [(32, 1), (256, 2)])
def test_a_run_says_how_many_threads_trained_it(tmp_path: Path, batch_size: int, threads: int) -> None:
    settings = build(TrainSettings, {"data": "digits", "epochs": 1, "device": "cpu", "batch_size": batch_size})
    train(settings, out=tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run/run.yaml").read_text())["environment"]["threads"] == str(threads)


@pytest.mark.usefixtures("two_threads")
def test_a_network_is_looked_at_without_changing_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2)).train()
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.random.get_rng_state()
    assert threads(net, 8, 2) == 1
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(module.training for module in net.modules())
    assert not any(module._forward_hooks for module in net.modules())
