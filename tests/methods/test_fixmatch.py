"""FixMatch against its formula: sure guesses on weak copies are the labels of strong ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from holdfast.methods import Context, State
from holdfast.methods.fixmatch import FixMatch
from holdfast.rng import Generators
from holdfast.types import Batch
from tests.methods.made import evaluate


class Brightness(nn.Module):
    """Two logits: the mean of the image times a factor, and 0. Remembers how many images it saw."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.norm = nn.BatchNorm2d(1)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.norm(x)
        self.seen.append(len(x))
        light = self.factor * (x.mean((1, 2, 3)) - 0.3)
        return torch.stack([light, torch.zeros_like(light)], 1)


def made(unlabeled: Tensor | None, **changes: float) -> tuple[FixMatch, State]:
    labels = torch.zeros(4, dtype=torch.int64)
    context = Context(2, labels, labels, 1, lambda: Brightness(1.0), unlabeled)
    method = FixMatch(**changes)  # type: ignore[arg-type]
    return method, method.start(context)


def batch(n: int = 4) -> Batch:
    index = torch.arange(n)
    return Batch(index, torch.rand(n, 1, 16, 16, generator=torch.Generator().manual_seed(0)), index % 2, index * 0)


def test_views_and_loss_are_the_formula() -> None:
    others = torch.cat([torch.full((30, 1, 16, 16), 255), torch.full((30, 1, 16, 16), 77)]).to(torch.uint8)
    (method, state), model = made(others, ratio=5, confidence=0.9, weight=2.0), Brightness(20.0)
    own = batch()
    views = method.views(own, model=model, state=state, rng=Generators(0, torch.device("cpu")))
    known, guessed = views.items
    assert torch.equal(known.x, own.x)
    assert guessed.x.shape == (20, 1, 16, 16)
    # white images: 20 · (1 − 0.3), shifted copies a little less, so the guess is class 0 and sure; grey ones: nothing
    assert guessed.weight is not None
    sure = guessed.weight > 0
    assert set(guessed.weight.tolist()) == {0.0, 2.0}
    assert (guessed.label[sure] == 0).all()
    assert model.seen == [20]
    assert model.norm.running_mean is not None
    assert float(model.norm.running_mean) == 0  # guessing leaves no trace
    loss, logits, _ = evaluate(method, model, views, state)
    assert model.seen == [20, 24]
    expected = 0.0
    for x, y, weight, n in (
        *((x, y, 1.0, 4) for x, y in zip(known.x, known.label, strict=True)),
        *((x, y, w, 20) for x, y, w in zip(guessed.x, guessed.label, guessed.weight.tolist(), strict=True)),
    ):
        light = 20 * (float(x.mean()) - 0.3)
        expected += weight / n * math.log1p(math.exp(-light if int(y) == 0 else light))
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert logits.shape == (4, 2)


def test_an_unsure_model_learns_from_labels_alone() -> None:
    others = torch.randint(0, 255, (10, 1, 16, 16)).to(torch.uint8)
    (method, state), model = made(others, ratio=3), Brightness(0.1)
    views = method.views(batch(), model=model, state=state, rng=Generators(0, torch.device("cpu")))
    assert views.items[1].weight is not None
    assert float(views.items[1].weight.sum()) == 0
    loss, logits, _ = evaluate(method, model, views, state)
    assert loss.item() == pytest.approx(float(nn.functional.cross_entropy(logits.detach(), batch().y)), rel=1e-5)


def test_without_other_images_the_batch_serves() -> None:
    method, state = made(None)
    views = method.views(batch(), model=Brightness(1.0), state=state, rng=Generators(0, torch.device("cpu")))
    assert views.items[1].x.shape == batch().x.shape
    assert not torch.equal(views.items[1].x, batch().x)


def test_images_are_not_part_of_a_checkpoint() -> None:
    assert made(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))[1].state_dict() == {}
