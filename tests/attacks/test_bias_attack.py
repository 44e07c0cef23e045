"""Images against a biased model: they raise what they climb, stay where they may, and leave the models alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.attacks import bias_adversarial
from holdfast.attacks.bias_attack import objective
from holdfast.errors import HoldfastError


def net(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(width * 64, 4)
    )


@pytest.fixture
def models() -> tuple[nn.Module, nn.Module]:
    """Of different architectures, with statistics that are not those of any batch."""
    model, biased = net(8, 0), nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 4))
    model.train()
    model(torch.rand(64, 3, 8, 8))
    return model, biased


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("space", ["pixel", "normalised"])
@pytest.mark.parametrize("mode", ["eval", "as-is"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_every_batch_rises_within_its_ball(models, norm: str, space: str, mode: str, lam: float) -> None:
    model, biased = models
    before = [copy.deepcopy(m.state_dict()) for m in models]
    flags = [m.training for part in models for m in part.modules()]
    scale = (0.25, 0.3, 0.2)
    radius = 0.03 if norm == "linf" else 0.4
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.rand(16, 3, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)
        found = bias_adversarial(
            x, y, model, biased, radius=radius, lam=lam, norm=norm, space=space,
            scale=scale if space == "normalised" else None, mode=mode,
        )  # fmt: skip
        unit = torch.tensor(scale).view(3, 1, 1) if space == "normalised" else torch.ones(1)
        moved = ((found.double() - x.double()) / unit.double()).flatten(1)
        size = moved.abs().amax(1) if norm == "linf" else moved.norm(dim=1)
        assert float(size.max()) <= radius * (1 + 1e-12)
        assert float(found.min()) >= 0
        assert float(found.max()) <= 1
        assert not found.requires_grad
        if mode == "eval":
            model.eval()
            with torch.no_grad():
                gain = objective(found, y, model, biased, lam=lam) - objective(x, y, model, biased, lam=lam)
            model.train()
            assert float(gain.mean()) > 0
            assert float((gain > -1e-4).float().mean()) > 0.9
    for part, old in zip(models, before, strict=True):
        assert all(torch.equal(v, old[k]) for k, v in part.state_dict().items())
        assert all(p.grad is None for p in part.parameters())
    assert [m.training for part in models for m in part.modules()] == flags


def test_lambda_spares_the_model(models) -> None:
    model, biased = models
    model.eval()
    x, y = torch.rand(64, 3, 8, 8), torch.randint(4, (64,))
    losses = []
    for lam in (0.0, 1.0):
        found = bias_adversarial(x, y, model, biased, radius=1.0, lam=lam)
        losses.append(float(objective(found, y, biased, model, lam=0.0).detach().mean()))
    assert losses[1] < losses[0]


def test_radius_zero_is_the_identity(models) -> None:
    x = torch.rand(3, 3, 8, 8)
    assert torch.equal(bias_adversarial(x, torch.zeros(3, dtype=torch.int64), *models, radius=0, lam=1), x)


@pytest.mark.parametrize(("change", "message"), [({"steps": 0}, "steps must be >= 1, got 0"), ({"lam": -1.0}, "lam")])
def test_bad_settings_are_named(models, change: dict, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        bias_adversarial(torch.rand(1, 3, 8, 8), torch.tensor([0]), *models, **{"radius": 1.0, "lam": 1.0, **change})


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_step_is_as_long_as_it_is_documented(models, steps: int) -> None:
    """2.5 radius / steps, at most the radius: below three steps the limit decides, and every text says so."""
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8) % 4
    options = {"radius": 0.4, "lam": 0.5, "steps": steps}
    found = bias_adversarial(x, y, *models, **options)
    stated = bias_adversarial(x, y, *models, **options, step_size=min(0.4, 2.5 * 0.4 / steps))
    assert torch.equal(found, stated)
    if steps == 2:
        assert not torch.equal(found, bias_adversarial(x, y, *models, **options, step_size=2.5 * 0.4 / steps))
    for page in ("docs/methods/biasadv.md", "src/holdfast/methods/biasadv.py", "src/holdfast/methods/adversarial.py"):
        text = (Path(__file__).parents[2] / page).read_text()
        assert "steps, at most the radius" in text or "steps ≤ radius" in text, page


def test_without_a_radius_the_range_of_pixels_is_the_limit(models) -> None:
    found = bias_adversarial(torch.rand(4, 3, 8, 8), torch.arange(4), *models, radius=math.inf, lam=0.5, steps=20)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_images_labels_and_settings_that_cannot_be(models) -> None:
    x, y = torch.rand(2, 3, 8, 8), torch.tensor([0, 3])
    settings = {"radius": 0.1, "lam": 0.5}
    assert bias_adversarial(x[:0], y[:0], *models, random_start=True, **settings).shape == (0, 3, 8, 8)
    with pytest.raises(HoldfastError, match="unknown setting of the attack 'spaces'; did you mean 'space'"):
        bias_adversarial(x, y, *models, spaces="pixel", **settings)
    with pytest.raises(HoldfastError, match="label 4 of image 1 is not a class"):
        bias_adversarial(x, y + 1, *models, **settings)
    with pytest.raises(HoldfastError, match="image 1 has NaN"):
        bias_adversarial(torch.where(torch.tensor([0, 1]).view(2, 1, 1, 1) > 0, torch.nan, x), y, *models, **settings)
