"""Captured and eager training are the same training. Needs a CUDA device."""

from __future__ import annotations

import pytest
import torch

from holdfast.parts import ASCENTS, METHODS
from holdfast.train import fit
from tests.conftest import PLAIN, Heard, brisk, flat_weights, make_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = {"device": "cuda", "epochs": 6, "batch_size": 16, "crop": 1, "flip": True, "cutout": 2, "model": "convnet"}
COMMON |= PLAIN


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_captured_equals_eager(method: str, optimizer: str) -> None:
    n = 100 if optimizer == "sgd" else 96  # with and without a smaller last batch
    settings = {
        **COMMON,
        "method": brisk(method),
        "optimizer": optimizer,
        "deterministic": True,
        "ema": 0.9,
        "clip": 1.0,
    }
    data = make_data(n, channels=3, groups=2)
    eager, captured = (fit(data, capture=c, **settings) for c in ("off", "on"))
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-5, atol=1e-6)
    losses = [[r["train_loss"] for r in run.history] for run in (eager, captured)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("ascent", "attack"), [("none", "main"), ("fsam", "main"), ("fsam", "auxiliary")])
def test_auxiliary_batch_norm_captured_equals_eager(ascent: str, attack: str, compiled: bool) -> None:
    method = {"name": "lff+biasadv", "steps": 2, "batch_norm": "auxiliary", "attack_batch_norm": attack}
    settings = {**COMMON, "method": method, "ascent": ascent, "deterministic": True, "compile": compiled}
    data = make_data(100, channels=3, groups=2)
    eager, captured = (fit(data, capture=c, **settings) for c in ("off", "on"))
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-4, atol=1e-5)
    shared = fit(
        data, capture="on", **{**settings, "method": {**method, "batch_norm": "shared", "attack_batch_norm": "main"}}
    )
    assert float((flat_weights(shared.model) - flat_weights(captured.model)).norm()) > 1e-2, "the setting does nothing"


@pytest.mark.parametrize("ascent", ["none", "sam", "sam-db"])
def test_partners_from_the_whole_set_captured_equal_eager(ascent: str) -> None:
    """A step is then given a second batch, and for sam-db a third: the graph must read the right one as partners."""
    settings = {**COMMON, "ascent": ascent, "deterministic": True, "accumulate": 2}
    data = make_data(100, channels=3)
    whole = {"name": "alps", "partners": "set"}
    eager, captured = (fit(data, capture=c, method=whole, **settings) for c in ("off", "on"))
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-4, atol=1e-5)
    within = fit(data, capture="on", method="alps", **settings)
    assert float((flat_weights(within.model) - flat_weights(captured.model)).norm()) > 1e-2, "the setting does nothing"


@pytest.mark.parametrize("ascent", sorted(ASCENTS))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_ascent_captured_equals_eager(ascent: str, optimizer: str) -> None:
    settings = {**COMMON, "ascent": ascent, "optimizer": optimizer, "deterministic": True, "clip": 1.0, "epochs": 4}
    chosen = "auto" if ASCENTS[ascent].made.reads_whole_set else "on"
    data = make_data(100, channels=3)
    eager, captured = (fit(data, capture=c, **settings) for c in ("off", chosen))
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ascent", ["sam", "fsam", "fisher-fsam"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_ascents_train_captured_in_half_precision(ascent: str, precision: str) -> None:
    settings = {**COMMON, "ascent": ascent, "precision": precision, "channels_last": True, "capture": "on"}
    result = fit(make_data(channels=3), **{**settings, "epochs": 10})
    assert result.history[-1]["train_loss"] < 0.6 * result.history[0]["train_loss"]


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_every_precision_trains_captured(precision: str, compiled: bool) -> None:
    settings = {**COMMON, "precision": precision, "channels_last": True, "compile": compiled, "capture": "on"}
    result = fit(make_data(channels=3), **{**settings, "epochs": 10})
    assert result.history[-1]["train_loss"] < 0.5 * result.history[0]["train_loss"]


def test_a_step_that_cannot_be_captured_runs_eagerly_and_says_so() -> None:
    class Peeking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1)) if x.sum().item() > -1 else x

    from holdfast.settings import TrainSettings, build
    from holdfast.train import train

    heard = Heard()
    settings = build(TrainSettings, {"device": "cuda", "epochs": 4, "batch_size": 16, "crop": 1})
    result = train(settings, data=make_data(), model=Peeking(), progress=heard)
    assert any("cannot be captured" in note for note in heard.notes)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_resuming_on_the_gpu_goes_on_where_it_stopped(tmp_path) -> None:
    from holdfast.settings import TrainSettings, build
    from holdfast.train import Interrupted, train
    from tests.conftest import SignalAt

    settings = build(TrainSettings, {**COMMON, "optimizer": "adam", "deterministic": True})
    data = make_data(channels=3)
    whole = train(settings, data=data)
    with pytest.raises(Interrupted):
        train(settings, data=data, out=tmp_path / "run", progress=SignalAt(21))
    resumed = train(settings, data=data, out=tmp_path / "run", resume=True)
    torch.testing.assert_close(flat_weights(whole.model), flat_weights(resumed.model), rtol=1e-5, atol=1e-6)


def test_streaming_and_capturing_go_together(tmp_path) -> None:
    """The loader pins memory in a thread of its own while the step is captured."""
    from tests.data.test_loaders import as_files

    data = make_data(320, channels=3)
    files = type(data)("files", data.classes, as_files(data.train, tmp_path / "a"), None, data.test)
    settings = {**COMMON, "capture": "on", "workers": 4, "epochs": 3, "deterministic": True}
    resident, streamed = (fit(d, **settings) for d in (data, files))
    torch.testing.assert_close(flat_weights(resident.model), flat_weights(streamed.model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_augment", ["trivialaugment", "randaugment"])
@pytest.mark.parametrize("ascent", ["none", "sam"])
def test_fine_tuning_captured_equals_eager(auto_augment: str, ascent: str) -> None:
    """Every augmentation that draws in the step, weights per class, and one learning rate per layer."""
    drawn = {"resized_crop": 0.3, "auto_augment": auto_augment, "color_jitter": [0.4, 0.4, 0.4, 0.1], "erasing": 0.5}
    settings = {**COMMON, **drawn, "crop": 0, "layer_decay": 0.7, "class_weights": [1.0, 2.0, 0.5], "ascent": ascent}
    data = make_data(100, channels=3)
    eager, captured = (fit(data, capture=c, deterministic=True, **settings) for c in ("off", "on"))
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-4, atol=1e-5)
