"""Ascents in the engine against loops written by hand."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from holdfast.optim.foreach import inner, without_projection
from holdfast.rng import derive
from holdfast.train import fit
from tests.conftest import Heard, flat_weights, make_data
from tests.train.test_engine import Linear

COMMON = {"device": "cpu", "batch_size": 16, "epochs": 2, "schedule": "constant", "lr": 0.1, "weight_decay": 1e-3}


def by_hand(model: nn.Module, optimizer: SAM, *, direction: str = "batch") -> None:
    train = make_data().train
    x, y = train.images.float() / 255, train.labels

    def loss(index: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x[index]), y[index])

    def order(purpose: str, epoch: int):
        generator = torch.Generator().manual_seed(derive(0, f"{purpose}/0/{epoch}"))
        return torch.randperm(len(y), generator=generator).split(16)

    for epoch in range(2):
        for index, other, third in zip(
            *(order(purpose, epoch) for purpose in ("order", "other-order", "other-order2")), strict=True
        ):
            everything = torch.arange(len(y))
            together = torch.cat([index, other, third])
            climb = {"other-batch": other, "full": everything, "large-batch": together}.get(direction, index)
            loss(climb).backward()
            if direction == "noise":
                full = torch.autograd.grad(loss(everything), list(model.parameters()))
                whole = torch.cat([g.flatten() for g in full])
                own = torch.cat([p.grad.flatten() for p in model.parameters()])
                share = own @ whole / (whole @ whole)
                for p, g in zip(model.parameters(), full, strict=True):
                    p.grad -= share * g
            optimizer.first_step(zero_grad=True)
            loss(index).backward()
            optimizer.second_step(zero_grad=True)


@pytest.mark.parametrize(
    ("ascent", "make", "direction"),
    [
        ({"name": "sam", "rho": 0.2}, lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k), "batch"),
        (
            {"name": "fsam", "rho": 0.2, "lmbda": 0.6},
            lambda p, **k: FriendlySAM(p, torch.optim.SGD, rho=0.2, lmbda=0.6, **k),
            "batch",
        ),
        ({"name": "sam-db", "rho": 0.2}, lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k), "other-batch"),
        (
            {"name": "sam-large", "rho": 0.2, "batches": 3},
            lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k),
            "large-batch",
        ),
        (
            {"name": "sam-large", "rho": 0.2, "batches": 1},
            lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k),
            "batch",
        ),
        ({"name": "sam-full", "rho": 0.2}, lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k), "full"),
        ({"name": "sam-noise", "rho": 0.2}, lambda p, **k: SAM(p, torch.optim.SGD, rho=0.2, **k), "noise"),
        (
            {"name": "asam", "rho": 0.9, "eta": 0.1},
            lambda p, **k: ASAM(p, torch.optim.SGD, rho=0.9, eta=0.1, **k),
            "batch",
        ),
        (
            {"name": "fisher-sam", "rho": 0.2, "eta": 30.0},
            lambda p, **k: FisherSAM(p, torch.optim.SGD, rho=0.2, eta=30.0, **k),
            "batch",
        ),
        (
            {"name": "fasam", "rho": 0.9, "eta": 0.1, "sigma": 0.8, "lmbda": 0.6},
            lambda p, **k: ASAM(p, torch.optim.SGD, rho=0.9, eta=0.1, friendly=True, sigma=0.8, lmbda=0.6, **k),
            "batch",
        ),
        (
            {"name": "fisher-fsam", "rho": 0.2, "eta": 30.0, "sigma": 0.8, "lmbda": 0.6},
            lambda p, **k: FisherSAM(p, torch.optim.SGD, rho=0.2, eta=30.0, friendly=True, sigma=0.8, lmbda=0.6, **k),
            "batch",
        ),
    ],
)
def test_the_engine_climbs_as_one_would_by_hand(ascent, make, direction: str) -> None:
    torch.manual_seed(0)
    ours, theirs = (m := Linear()), copy.deepcopy(m)
    by_hand(theirs, make(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3), direction=direction)
    fit(make_data(), model=ours, ascent=ascent, **COMMON)
    torch.testing.assert_close(flat_weights(ours), flat_weights(theirs), rtol=1e-5, atol=1e-6)


def test_asam_in_the_engine_goes_by_names_where_it_is_asked_to() -> None:
    torch.manual_seed(0)
    body = (nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    theirs = nn.Sequential(*body)
    ends = {scales: copy.deepcopy(theirs) for scales in ("matrices", "weights")}
    descent = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    by_hand(theirs, ASAM(theirs.named_parameters(), torch.optim.SGD, rho=0.9, scales="weights", **descent))
    for scales, model in ends.items():
        fit(make_data(), model=model, ascent={"name": "asam", "rho": 0.9, "scales": scales}, **COMMON)
    torch.testing.assert_close(flat_weights(ends["weights"]), flat_weights(theirs), rtol=1e-4, atol=1e-5)
    assert float((flat_weights(ends["matrices"]) - flat_weights(theirs)).norm()) > 1e-3, "the setting changes nothing"


def test_noise_is_what_a_batch_gradient_has_beside_the_full_one() -> None:
    torch.manual_seed(0)
    g, full = ([torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)] for _ in range(2))
    rest = without_projection(g, full)
    assert abs(float(inner(rest, full))) < 1e-12
    share = inner(g, full) / inner(full, full)
    for r, a, b in zip(rest, g, full, strict=True):
        torch.testing.assert_close(r + share * b, a)


@pytest.mark.parametrize(("ascent", "cost"), [("sam-full", 7), ("sam-noise", 8)])
def test_the_cost_of_a_full_gradient_is_said(ascent: str, cost: int) -> None:
    """Six steps, each with the whole set once, and one or two passes over its own batch."""
    from holdfast.settings import TrainSettings, build
    from holdfast.train import train

    heard = Heard()
    settings = build(TrainSettings, {"ascent": ascent, **COMMON})
    train(settings, data=make_data(), progress=heard)
    said = f"{ascent} takes the gradient of all 96 training images at each of 6 steps per epoch: an epoch costs about"
    assert any(f"{said} {cost} plain ones" in note for note in heard.notes)


def test_statistics_are_updated_once_a_step_whatever_the_ascent() -> None:
    for ascent in ("none", "sam", "fsam", "sam-db", "sam-large", "sam-full", "sam-noise"):
        result = fit(make_data(), ascent=ascent, **COMMON)
        counts = {b.item() for name, b in result.model.named_buffers() if name.endswith("num_batches_tracked")}
        assert counts == {12}, ascent


def test_radius_schedules_reach_the_optimiser() -> None:
    seen: list[float] = []
    original = SAM.first_step

    def spy(self, *args, **kwargs):
        seen.append(float(self.param_groups[0]["rho"]))
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SAM, "first_step", spy)
        fit(make_data(), ascent={"name": "sam", "rho": 0.4, "rho_schedule": "linear"}, **COMMON)
    assert seen == pytest.approx([0.4 * (1 - s / 12) for s in range(12)])


def test_diagnostics_are_recorded_and_change_nothing() -> None:
    plain, looked = (fit(make_data(), ascent="fsam", diagnose=d, **COMMON) for d in (0, 1))
    torch.testing.assert_close(flat_weights(plain.model), flat_weights(looked.model), rtol=0, atol=0)
    for record in looked.history:
        assert record["ascent_norm"] == pytest.approx(0.05, rel=1e-4)
        assert 0 <= record["full_gradient_share"] <= 1
        assert -1 <= record["ema_cosine"] <= 1
        assert record["gradient_norm"] > 0
    whole = fit(make_data(), model=Linear(), ascent="sam", diagnose=1, **{**COMMON, "batch_size": 96})
    assert whole.history[0]["full_gradient_share"] == pytest.approx(1, abs=1e-6)  # one batch is the whole set


def test_unknown_ascents_and_radii_are_refused() -> None:
    with pytest.raises(HoldfastError, match="unknown ascent 'fsamm'; did you mean 'fsam'"):
        fit(make_data(), ascent="fsamm")
    with pytest.raises(HoldfastError, match="batches must be >= 1, got 0"):
        fit(make_data(), ascent={"name": "sam-large", "batches": 0})
    with pytest.raises(HoldfastError, match="rho must be >= 0, got -1"):
        fit(make_data(), ascent={"name": "sam", "rho": -1.0})


def test_a_look_at_the_ascent_draws_nothing_that_the_training_would_draw() -> None:
    """Dropout takes its numbers from torch's own generator."""
    runs = []
    for diagnose in (0, 1):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        runs.append(fit(make_data(), model=net, ascent="fsam", diagnose=diagnose, **COMMON))
    assert torch.equal(*(flat_weights(run.model) for run in runs))


@pytest.mark.parametrize(("ascent", "diagnose"), [("sam-full", 0), ("sam-noise", 0), ("sam", 1)])
def test_one_image_left_over_is_left_out_of_the_full_gradient_too(ascent: str, diagnose: int) -> None:
    """BatchNorm has no variance for it."""
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    result = fit(make_data(97), model=net, ascent=ascent, diagnose=diagnose, **{**COMMON, "batch_size": 16})
    assert all(bool(p.isfinite().all()) for p in result.model.parameters())
