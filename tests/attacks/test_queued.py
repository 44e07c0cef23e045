"""A queue takes every image through the points that plain PGD with early stop takes it through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks import QueuedPgd, pgd
from holdfast.errors import HoldfastError


def problem(n: int = 37, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """Some images wrong from the start, some after a few steps, some never."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()
    model(torch.rand(64, 3, 4, 4, dtype=torch.float64))
    x = torch.rand(n, 3, 4, 4, dtype=torch.float64)
    y = model.eval()(x).argmax(1)
    y[::9] = (y[::9] + 1) % 4
    return model.train(), x, y


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("batch", [1, 5, 37, 1000])
@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_image_goes_the_way_of_plain_pgd(norm: str, batch: int, loss: str, device: str) -> None:
    model, x, y = (part.to(device) for part in problem())
    settings = {"radius": 0.03 if norm == "linf" else 0.15, "steps": 7, "norm": norm, "loss": loss}
    expected = pgd(model, x, y, early_stop=True, **settings)
    found = QueuedPgd(model, batch=batch, **settings)(x, y)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    model.eval()
    wrong = model(found).argmax(1) != y
    assert 0.1 < float(wrong.double().mean()) < 1, "the case decides nothing"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_second_set_is_not_mixed_with_the_first(device: str) -> None:
    model, x, y = (part.to(device) for part in problem())
    attack = QueuedPgd(model, radius=0.03, steps=5, batch=8)
    first = attack(x, y)
    other = problem(seed=1)[1:]
    attack(*(part.to(device) for part in other))
    attack(x[:11], y[:11])
    assert torch.equal(attack(x, y), first)
    assert torch.equal(attack(x.flip(0), y.flip(0)).flip(0), first)


def test_going_beyond_the_border_leaves_a_margin() -> None:
    model, x, y = problem()
    model.eval()
    narrow, wide = (QueuedPgd(model, radius=0.5, steps=20, beyond=b)(x, y) for b in (0.0, 0.05))
    others = [model(found).scatter(1, y[:, None], -torch.inf).amax(1) for found in (narrow, wide)]
    margins = [
        top - model(found).gather(1, y[:, None])[:, 0] for top, found in zip(others, (narrow, wide), strict=True)
    ]
    assert bool((margins[1] > 0.05).all())
    assert bool((margins[0] > 0).all())
    assert not bool((margins[0] > 0.05).all())


def test_the_model_is_left_as_it_was() -> None:
    model, x, y = problem()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    QueuedPgd(model, radius=0.03, batch=4)(x, y)
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_images_are_no_problem_and_bad_settings_are_named() -> None:
    model, x, y = problem()
    assert len(QueuedPgd(model, radius=0.1)(x[:0], y[:0])) == 0
    with pytest.raises(HoldfastError, match="batch must be >= 1, got 0"):
        QueuedPgd(model, radius=0.1, batch=0)
    with pytest.raises(HoldfastError, match="one label per image, got 3 for 37"):
        QueuedPgd(model, radius=0.1)(x, y[:3])
