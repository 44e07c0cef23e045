"""What every ascent must do with every method and optimiser. A new one is a row more, found by its registration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast import parts
from holdfast.augment.basic import to_float
from holdfast.data import Dataset
from holdfast.rng import derive
from holdfast.settings import TrainSettings, build
from holdfast.train import Interrupted, fit, train
from tests.conftest import SignalAt, brisk, make_data, same_weights

ASCENTS = sorted(parts.ASCENTS)
METHODS = sorted(parts.METHODS)
RATES = {"sgd": 0.05, "adam": 0.005, "adamw": 0.005}
QUICK = {"device": "cpu", "batch_size": 16, "model": "convnet"}


TRIPLES = [
    (ascent, method, [*RATES][(i + j) % len(RATES)])
    for i, ascent in enumerate(ASCENTS)
    for j, method in enumerate(METHODS)
]
"""Every two of ascent, method and optimiser meet once or more. A method makes a loss, an ascent asks for its gradients,
an optimiser steps along what the ascent leaves. None knows of both others, so that pairs show what triples would."""


@pytest.mark.parametrize(("ascent", "method", "optimizer"), TRIPLES)
def test_every_two_train_and_resume_with_a_third(ascent: str, method: str, optimizer: str, tmp_path: Path) -> None:
    values = {
        "ascent": ascent,
        "method": brisk(method),
        "optimizer": optimizer,
        "lr": RATES[optimizer],
        "epochs": 2,
        **QUICK,
    }
    settings = build(TrainSettings, values)
    data = make_data(48, groups=2)
    whole = train(settings, data=data)
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    with pytest.raises(Interrupted):
        train(settings, data=data, out=tmp_path / "run", progress=SignalAt(4))
    assert same_weights(whole.model, train(settings, data=data, out=tmp_path / "run", resume=True).model)


def test_every_two_meet() -> None:
    kinds = (ASCENTS, METHODS, [*RATES])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert {(t[a], t[b]) for t in TRIPLES} == {(one, other) for one in kinds[a] for other in kinds[b]}


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def trained_by_torch_alone(data: Dataset, epochs: int) -> nn.Module:
    """AdamW on batches of 16 in the engine's order, and nothing else."""
    net = small_net().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=5e-4)
    x, y = to_float(data.train.read(torch.arange(len(data.train)))), data.train.labels
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(derive(0, f"order/0/{epoch}"))
        for index in torch.randperm(len(y), generator=generator).split(16):
            optimizer.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("ascent", ASCENTS)
def test_no_ascent_and_a_radius_of_zero_are_a_plain_optimiser(ascent: str) -> None:
    data, chosen = make_data(48), "none" if ascent == "none" else {"name": ascent, "rho": 0.0}
    named = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 5e-4, "schedule": "constant"}
    settings = {**QUICK, **named, "epochs": 2, "model": small_net()}
    moved = fit(data, ascent=chosen, **settings).model
    plain = trained_by_torch_alone(data, epochs=2)
    assert not same_weights(plain, small_net()), "the case decides nothing"
    for (name, a), b in zip(plain.state_dict().items(), moved.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("ascent", ASCENTS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(ascent: str, precision: str) -> None:
    result = fit(make_data(48), ascent=ascent, precision=precision, epochs=2, lr=0.05, **QUICK)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
