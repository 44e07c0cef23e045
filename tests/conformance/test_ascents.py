"""What every ascent must do with every method and optimiser. A new one is a row more, found by its registration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.settings import AscentSettings, MethodSettings, TrainSettings, build
from holdfast.train import Interrupted, fit, train
from tests.conftest import SignalAt, brisk, make_data, same_weights

ASCENTS = sorted(AscentSettings.known)
METHODS = sorted(MethodSettings.known)
RATES = {"sgd": 0.05, "adam": 0.005, "adamw": 0.005}
QUICK = {"device": "cpu", "batch_size": 16, "model": "convnet"}


@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ascent", ASCENTS)
def test_every_triple_trains_and_resumes(ascent: str, method: str, optimizer: str, tmp_path: Path) -> None:
    values = {
        "ascent": ascent,
        "method": brisk(method),
        "optimizer": optimizer,
        "lr": RATES[optimizer],
        "epochs": 3,
        **QUICK,
    }
    settings = build(TrainSettings, values)
    data = make_data(48, groups=2)
    whole = train(settings, data=data)
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    with pytest.raises(Interrupted):
        train(settings, data=data, out=tmp_path / "run", progress=SignalAt(4))
    assert same_weights(whole.model, train(settings, data=data, out=tmp_path / "run", resume=True).model)


@pytest.mark.parametrize("ascent", ASCENTS)
def test_radius_zero_is_no_ascent(ascent: str) -> None:
    if ascent == "none":
        return
    values = {"epochs": 2, "optimizer": "adamw", **QUICK}
    plain = fit(make_data(48), **values)
    moved = fit(make_data(48), ascent={"name": ascent, "rho": 0.0}, **values)
    for a, b in zip(plain.model.parameters(), moved.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ascent", ASCENTS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(ascent: str, precision: str) -> None:
    result = fit(make_data(48), ascent=ascent, precision=precision, epochs=4, lr=0.05, **QUICK)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
