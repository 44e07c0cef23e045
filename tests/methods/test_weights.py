"""Weights that follow the trained model's own losses are taken at the unmoved weights, whatever the ascent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.augment.basic import to_float
from holdfast.methods import group_dro
from holdfast.methods.lff import Lff
from holdfast.parts import ASCENTS
from holdfast.train import fit
from holdfast.train.step import Step
from holdfast.types import Batch
from tests.conftest import brisk, make_data

SETTINGS = {"device": "cpu", "batch_size": 16, "epochs": 2, "model": "convnet", "lr": 0.1}


@pytest.mark.parametrize("ascent", sorted(ASCENTS))
@pytest.mark.parametrize("method", ["lff", "lff+biasadv", "group-dro"])
def test_the_model_is_weighed_before_it_moves(ascent: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per step, with the losses that a copy of the model, made before the step, has in training mode."""
    plain_step, plain_weight, plain_means = Step.__call__, Lff.relative_difficulty, group_dro.cell_means
    weighed: list[tuple[Tensor, Tensor]] = []

    def relative_difficulty(self: Lff, batch: Batch, *, loss_f: Tensor, **others: Any) -> Tensor:
        weighed.append((batch.y, loss_f))
        return plain_weight(self, batch, loss_f=loss_f, **others)

    def cell_means(logits: Tensor, y: Tensor, *others: Any) -> Tensor:
        if not logits.requires_grad:
            weighed.append((y, F.cross_entropy(logits, y, reduction="none")))
        return plain_means(logits, y, *others)

    def step(self: Step, raw: Batch, *others: Batch) -> None:
        before = copy.deepcopy(self.model)
        expected = F.cross_entropy(before(to_float(raw.x)), raw.y, reduction="none").detach()
        weighed.clear()
        plain_step(self, raw, *others)
        own = [losses for y, losses in weighed if y is raw.y or (len(y) == len(raw) and y.equal(raw.y))]
        matching = [losses for losses in own if torch.allclose(losses, expected, rtol=1e-5, atol=1e-6)]
        assert len(matching) == 1, f"{len(own)} weighings of the batch, {len(matching)} of them before it moved"
        assert len(own) == 1 or ascent in ("sam-full", "sam-noise")  # a batch of the whole set may have its labels

    monkeypatch.setattr(Step, "__call__", step)
    monkeypatch.setattr(Lff, "relative_difficulty", relative_difficulty)
    monkeypatch.setattr(group_dro, "cell_means", cell_means)
    chosen: Any = ascent if ascent == "none" else {"name": ascent, "rho": 0.5}
    fit(make_data(48, groups=2), method=brisk(method), ascent=chosen, **SETTINGS)
