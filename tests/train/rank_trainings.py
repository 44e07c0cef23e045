"""Trainings that one process and several ranks do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast import parts
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from tests.conftest import brisk, flat_weights, make_data
from tests.train.rank_work import Net

CASES = [(method, ascent) for method in sorted(parts.METHODS) for ascent in ("none", "sam", "fsam")]
PLAIN = {"device": "cpu", "batch_size": 10, "epochs": 1, "lr": 0.05, "sync_batchnorm": True, "eval_every": 0}


def trained(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Weights, statistics and record of a short training in float64: batches of 10, 10 and 3."""
    torch.set_default_dtype(torch.float64)
    try:
        run = train(build(TrainSettings, {**PLAIN, **changes}), data=make_data(23, groups=2, test=7), model=Net)
    finally:
        torch.set_default_dtype(torch.float32)
    statistics = torch.cat([b.double().flatten() for b in run.model.buffers()])
    remembered = [b.double().flatten() for b in run.state.state_dict().values()]
    last = run.history[-1]
    record = torch.tensor([last[key] for key in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")])
    return {
        "weights": flat_weights(run.model),
        "statistics": statistics,
        "method": torch.cat([torch.zeros(1), *remembered]),
        "record": record,
    }


def case(method: str, ascent: str, **more: object) -> dict[str, object]:
    return {"method": brisk(method), "ascent": ascent, **more}


def trained_all(ranks: object, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Tensor]]:
    return {str(n): trained(one) for n, one in enumerate(cases)}
