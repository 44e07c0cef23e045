"""Against torchattacks, foolbox and AutoAttack, on one trained net, at equal settings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks import apgd, fgsm, pgd, square
from holdfast.data import load
from holdfast.train import fit

pytestmark = pytest.mark.dev

N = 200
Problem = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture(scope="module")
def problem() -> Problem:
    data = load("digits", image_size=8)
    assert data.test is not None
    model = fit(data, epochs=4, device="cpu", progress=False, eval_every=0).model.eval()
    index = torch.arange(N)
    return model.requires_grad_(False), data.test.read(index).float() / 255, data.test.labels[index]


def error(problem: Problem, adversarial: Tensor) -> float:
    model, _, y = problem
    with torch.no_grad():
        return float((model(adversarial).argmax(1) != y).double().mean())


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


@pytest.mark.parametrize("radius", [4 / 255, 12 / 255, 24 / 255])
def test_pgd_finds_what_torchattacks_finds(problem: Problem, radius: float) -> None:
    peer = imported("torchattacks")
    model, x, y = problem
    theirs = peer.PGD(model, eps=radius, alpha=radius / 4, steps=10, random_start=False)(x, y)
    last = pgd(model, x, y, radius=radius, step_size=radius / 4, steps=10, keep="last")
    best = pgd(model, x, y, radius=radius, step_size=radius / 4, steps=10)
    assert float(((theirs - last).abs() < 1e-5).float().mean()) > 0.97  # the same path, but for signs of tiny numbers
    assert error(problem, x) < error(problem, theirs) <= error(problem, best) + 0.005
    one_step = peer.FGSM(model, eps=radius)(x, y)
    assert float(((one_step - fgsm(model, x, y, radius=radius)).abs() < 1e-5).float().mean()) > 0.97


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_finds_what_foolbox_finds(problem: Problem, norm: str) -> None:
    peer = imported("foolbox")
    model, x, y = problem
    radius = 12 / 255 if norm == "linf" else 0.4
    made = {"linf": peer.attacks.LinfPGD, "l2": peer.attacks.L2PGD}[norm]
    attack = made(abs_stepsize=radius / 4, steps=10, random_start=False)
    _, theirs, _ = attack(peer.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=radius)
    ours = pgd(model, x, y, radius=radius, step_size=radius / 4, steps=10, norm=norm)  # type: ignore[arg-type]
    assert error(problem, x) + 0.05 < error(problem, theirs) <= error(problem, ours) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "radius"), [("linf", 12 / 255), ("l2", 0.4)])
@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_apgd_agrees_with_autoattack(problem: Problem, norm: str, radius: float, loss: str) -> None:
    peer = imported("pyautoattack.autopgd_base")
    model, x, y = problem
    name = {"linf": "Linf", "l2": "L2"}[norm]
    attack = peer.APGDAttack(model, n_iter=30, norm=name, eps=radius, loss=loss, device="cpu", seed=0)
    theirs = error(problem, attack.perturb(x, y))
    ours = error(problem, apgd(model, x, y, radius=radius, steps=30, norm=norm, loss=loss, generator=seeded()))  # type: ignore[arg-type]
    assert error(problem, x) + 0.05 < theirs
    assert abs(ours - theirs) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "radius"), [("linf", 16 / 255), ("l2", 0.6)])
def test_square_agrees_with_autoattack(problem: Problem, norm: str, radius: float) -> None:
    peer = imported("pyautoattack.square")
    model, x, y = problem
    name = {"linf": "Linf", "l2": "L2"}[norm]
    attack = peer.SquareAttack(model, norm=name, eps=radius, n_queries=150, p_init=0.8, device="cpu", seed=0)
    theirs = error(problem, attack.perturb(x, y))
    ours = error(problem, square(model, x, y, radius=radius, queries=150, norm=norm, generator=seeded()))  # type: ignore[arg-type]
    assert error(problem, x) + 0.05 < theirs
    assert abs(ours - theirs) <= 0.06


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
