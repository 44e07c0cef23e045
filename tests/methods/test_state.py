"""BiasAdv's auxiliary BatchNorm in whole trainings: one update per step, resumed, not in the model that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.errors import HoldfastError, Interrupted
from holdfast.settings import TrainSettings, build
from holdfast.train import fit, train
from tests.conftest import SignalAt, make_data, same_weights

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "device": "cpu", "eval_every": 0, "model": "convnet"}
METHOD = {"name": "lff+biasadv", "steps": 1, "batch_norm": "auxiliary"}
THROUGH = METHOD | {"attack_batch_norm": "auxiliary"}


@pytest.mark.parametrize("ascent", ["none", "sam", "fsam", "sam-db", "sam-noise"])
@pytest.mark.parametrize("method", [METHOD, THROUGH], ids=["attack through its own", "through the second"])
def test_each_set_of_layers_sees_its_images_once_per_step(method: dict[str, Any], ascent: str) -> None:
    """Also under an ascent, which passes each of them forward twice."""
    result = fit(make_data(), method=method, ascent=ascent, **QUICK)
    steps = 2 * 6
    own = [int(b) for name, b in result.model.named_buffers() if name.endswith("num_batches_tracked")]
    second = [int(b) for name, b in result.state.norms.named_buffers() if name.endswith("num_batches_tracked")]
    assert own == second == [steps] * len(own)
    trained = result.state.norms.tensors()
    assert all(
        not torch.equal(trained[name], tensor)
        for name, tensor in result.model.state_dict().items()
        if name in trained and not name.endswith("num_batches_tracked")
    ), "two sets of layers that went through different images are the same"


def test_the_model_that_is_kept_has_the_layers_it_had_before() -> None:
    plain, beside = (fit(make_data(), method=m, **QUICK).model for m in ("erm", METHOD))
    assert list(plain.state_dict()) == list(beside.state_dict())


@pytest.mark.parametrize(("step", "method"), [(4, METHOD), (9, METHOD), (9, THROUGH)])
def test_a_training_resumes_identically(step: int, method: dict[str, Any], tmp_path: Path) -> None:
    settings = build(TrainSettings, {**QUICK, "method": method, "ascent": "fsam", "optimizer": "adamw"})
    whole = train(settings, data=make_data())
    with pytest.raises(Interrupted):
        train(settings, data=make_data(), out=tmp_path / "run", progress=SignalAt(step))
    resumed = train(settings, data=make_data(), out=tmp_path / "run", resume=True)
    assert same_weights(whole.model, resumed.model)
    assert same_weights(whole.state.norms, resumed.state.norms)


def test_a_model_without_batch_norm_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(HoldfastError, match="needs a model with BatchNorm layers; use --method.batch-norm shared"):
        fit(make_data(), **{**QUICK, "model": net, "method": METHOD})
