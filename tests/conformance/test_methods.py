"""What every method must do. A new method is one row more, found by its registration."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

import pytest
import torch

from holdfast import parts
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build
from holdfast.train import Interrupted, Run, fit, train
from tests.conftest import SignalAt, brisk, make_data, same_weights

METHODS = sorted(parts.METHODS)
QUICK = {"epochs": 3, "batch_size": 16, "lr": 0.05, "device": "cpu"}


def quick(method: str, **changes: object) -> Run:
    classes, n = int(changes.pop("classes", 3)), int(changes.pop("n", 96))  # type: ignore[call-overload]
    data = make_data(n, classes, groups=2)
    return fit(data, method=brisk(method), **{**QUICK, **changes})


@cache
def unbroken(method: str) -> tuple[TrainSettings, Run]:
    settings = build(TrainSettings, {"method": brisk(method), "ema": 0.9, "crop": 1, "flip": True, **QUICK})
    return settings, train(settings, data=make_data(groups=2))


@pytest.mark.parametrize("method", METHODS)
class TestMethod:
    def test_learns(self, method: str) -> None:
        result = quick(method, epochs=8)
        losses = [r["train_loss"] for r in result.history]
        # mixed labels leave a loss that nothing can undercut; guesses join the loss as they become sure
        assert losses[-1] < (0.8 if method == "fixmatch" else 0.7) * losses[0]
        assert result.history[-1]["test_accuracy"] > 0.8

    def test_repeats_under_a_seed_and_differs_under_another(self, method: str) -> None:
        first, again, other = (quick(method, seed=s) for s in (5, 5, 6))
        assert same_weights(first.model, again.model)
        assert not same_weights(first.model, other.model)

    def test_leaves_the_global_generator_alone(self, method: str) -> None:
        before = torch.get_rng_state()
        quick(method, epochs=1)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("step", [1, 6, 7, 17])
    def test_resumes_identically(self, method: str, step: int, tmp_path: Path) -> None:
        settings, whole = unbroken(method)
        data = make_data(groups=2)
        with pytest.raises(Interrupted) as stopped:
            train(settings, data=data, out=tmp_path / "run", progress=SignalAt(step))
        assert stopped.value.signum == signal.SIGTERM
        resumed = train(settings, data=data, out=tmp_path / "run", resume=True)
        assert same_weights(whole.model, resumed.model)
        drop = ("seconds", "images_per_second")
        plain = [[{k: v for k, v in r.items() if k not in drop} for r in h.history] for h in (whole, resumed)]
        assert plain[0] == plain[1]

    @pytest.mark.parametrize(("n", "batch_size"), [(97, 16), (33, 32), (7, 64), (20, 1), (50, 7)])
    def test_survives_odd_batches(self, method: str, n: int, batch_size: int) -> None:
        result = quick(method, n=n, batch_size=batch_size, epochs=1)
        assert all(torch.isfinite(p).all() for p in result.model.parameters())

    def test_survives_two_classes(self, method: str) -> None:
        assert quick(method, classes=2).history[-1]["test_accuracy"] > 0.8

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_survives_half_precision(self, method: str, precision: str) -> None:
        result = quick(method, precision=precision, n=48, epochs=2)
        assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]

    def test_splits_batches_for_memory(self, method: str) -> None:
        result = quick(method, accumulate=4, epochs=4)
        assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]

    def test_refuses_settings_it_does_not_know(self, method: str) -> None:
        with pytest.raises(HoldfastError, match=f"unknown method {method.replace('+', '.')} key 'nonsense'"):
            fit(make_data(), method={"name": method, "nonsense": 1}, **QUICK)
