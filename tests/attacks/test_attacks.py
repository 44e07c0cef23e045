"""Attacks: inside the ball, as strong as the closed form, and gone without a trace."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.attacks import (
    PRESETS,
    CapturedAttack,
    QueuedPgd,
    apgd,
    fgsm,
    noise,
    pgd,
    square,
    transfer,
    unbounded,
)
from holdfast.attacks.objectives import dlr, log_odds, margin
from holdfast.errors import HoldfastError
from tests.attacks.small import Linear, make_images, make_net, seeded

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


Attack = Callable[..., Tensor]


ATTACKS: dict[str, Attack] = {
    "fgsm": fgsm,
    "pgd": lambda *a, **k: pgd(*a, steps=3, random_start=True, restarts=2, **k),
    "pgd, last": lambda *a, **k: pgd(*a, steps=3, keep="last", **k),
    "pgd, margin, early stop": lambda *a, **k: pgd(*a, steps=3, loss="margin", early_stop=True, restarts=2, **k),
    "pgd, queued": lambda m, x, y, generator=None, **k: QueuedPgd(m, steps=3, batch=2, **k)(x, y),
    "pgd, least likely": lambda *a, **k: pgd(*a, steps=3, target="least-likely", **k),
    "apgd": lambda *a, **k: apgd(*a, steps=6, **k),
    "apgd, dlr, early stop": lambda *a, **k: apgd(*a, steps=6, loss="dlr", early_stop=True, restarts=2, **k),
    "square": lambda *a, **k: square(*a, queries=6, **k),
    "square, early stop": lambda *a, **k: square(*a, queries=6, early_stop=True, **k),
    "transfer": lambda *a, **k: transfer(*a, steps=2, **k),
    "noise": lambda _, x, y, **k: noise(x, **k),
}


def state_of(model: nn.Module) -> list[tuple[Any, ...]]:
    modules = [(m.training,) for m in model.modules()]
    parameters = [(p.data_ptr(), p.requires_grad, id(p.grad), p._version) for p in model.parameters()]
    return [*modules, *parameters, *((b.data_ptr(), b._version) for b in model.buffers())]


def assert_inside(adversarial: Tensor, x: Tensor, radius: float, norm: str) -> None:
    assert adversarial.shape == x.shape
    assert adversarial.dtype == x.dtype
    assert not adversarial.requires_grad
    assert float(adversarial.min()) >= 0
    assert float(adversarial.max()) <= 1
    if norm == "linf":
        assert (adversarial - x).abs().max().item() <= radius  # in the type of the images
        assert (adversarial.double() - x.double()).abs().max().item() <= radius
    else:
        assert (adversarial.double() - x.double()).flatten(1).norm(dim=1).max().item() <= radius


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(ATTACKS)),
    st.sampled_from(["linf", "l2"]),
    st.one_of(st.just(0.0), st.floats(1e-7, 2.0), st.sampled_from([4 / 255, 8 / 255, 1e-3])),
    st.sampled_from(DTYPES),
    st.integers(2, 5),
    st.integers(0, 10_000),
)
def test_no_attack_leaves_the_ball_or_a_trace(
    name: str, norm: str, radius: float, dtype: torch.dtype, classes: int, seed: int
) -> None:
    model = make_net(seed, classes).to(dtype)
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[6].weight.grad = torch.full_like(model[6].weight, 7)
    x = make_images(seed, 3, dtype)
    y = torch.arange(3) % classes
    kept, before, tensors = x.clone(), state_of(model), copy.deepcopy(model.state_dict())
    adversarial = ATTACKS[name](model, x, y, radius=radius, norm=norm)
    assert_inside(adversarial, x, radius, norm)
    if radius == 0:
        same_size = torch.int16 if dtype.itemsize == 2 else torch.int32
        assert torch.equal(adversarial.view(same_size), kept.view(same_size))
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert state_of(model) == before
    assert all(torch.equal(value, tensors[key]) for key, value in model.state_dict().items())
    assert torch.equal(model[6].weight.grad, torch.full_like(model[6].weight, 7))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "6.weight")


@pytest.mark.parametrize("name", [n for n in ATTACKS if n != "noise"])
def test_as_is_mode_leaves_batch_statistics_alone(name: str) -> None:
    model = make_net(0, 3).train()
    before = copy.deepcopy(model.state_dict())
    ATTACKS[name](model, make_images(0, 4), torch.arange(4) % 3, radius=0.1, mode="as-is")
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_an_error_in_the_model_leaves_no_trace_either() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    model = nn.Sequential(make_net(0, 3), Broken())
    with pytest.raises(RuntimeError, match="no"):
        pgd(model, make_images(0, 2), torch.tensor([0, 1]), radius=0.1)
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize("gain", [1e-12, 1.0, 1e4])
@pytest.mark.parametrize(
    "attack",
    [
        fgsm,
        pgd,
        lambda *a, **k: pgd(*a, keep="last", **k),
        lambda *a, **k: pgd(*a, loss="margin", random_start=True, generator=torch.Generator().manual_seed(0), **k),
        lambda *a, **k: apgd(*a, steps=10, generator=torch.Generator().manual_seed(0), **k),
    ],
    ids=["fgsm", "pgd", "last", "margin", "apgd"],
)
def test_two_linear_classes_have_a_closed_form(attack: Attack, gain: float) -> None:
    x, y = make_images(5, 4), torch.tensor([0, 1, 0, 1])
    model = Linear(2, x[0].numel(), gain)
    direction = (model.w[1] - model.w[0]).view_as(x[0]).sign() * torch.tensor([1, -1, 1, -1]).view(-1, 1, 1, 1)
    worst = (x.double() + 0.1 * direction).clamp(0, 1)
    found = attack(model, x, y, radius=0.1)
    torch.testing.assert_close(found.double(), worst.detach(), rtol=0, atol=2e-7)


def test_the_l2_attack_of_a_linear_model_follows_its_weights() -> None:
    x, y = torch.full((1, 3, 6, 7), 0.5), torch.tensor([0])
    model = Linear(2, x[0].numel())
    direction = (model.w[1] - model.w[0]).view_as(x)
    for found in (pgd(model, x, y, radius=0.3, norm="l2"), fgsm(model, x, y, radius=0.3, norm="l2")):
        torch.testing.assert_close(found - x, (0.3 * direction / direction.norm()).detach(), rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_every_corner_of_a_small_ball_is_no_worse_than_what_apgd_finds() -> None:
    """Nine pixels: all 512 corners can be tried; the maximum of this convex margin is at one of them."""
    x, y = torch.full((1, 1, 3, 3), 0.5), torch.tensor([0])
    model = Linear(3, 9)
    corners = 0.5 + 0.1 * torch.tensor(list(itertools.product((-1.0, 1.0), repeat=9))).view(-1, 1, 3, 3)
    highest = float(margin(model(corners), y.expand(512)).max())
    for attack in (
        lambda: apgd(model, x, y, radius=0.1, loss="margin", steps=30, restarts=3, generator=seeded(0)),
        lambda: square(model, x, y, radius=0.1, queries=600, generator=seeded(0)),
    ):
        assert float(margin(model(attack()), y)) == pytest.approx(highest, rel=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_log_odds_have_the_direction_and_order_of_cross_entropy(classes: int) -> None:
    z = torch.randn(50, classes, generator=seeded(classes), dtype=torch.float64).requires_grad_()
    y = torch.arange(50) % classes
    ce = nn.functional.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(nn.functional.softplus(log_odds(z, y)), ce)
    (a,) = torch.autograd.grad(ce.sum(), z)
    (b,) = torch.autograd.grad(log_odds(z, y).sum(), z)
    torch.testing.assert_close(nn.functional.normalize(a), nn.functional.normalize(b))


def test_dlr_does_not_see_the_scale_and_falls_back_for_two_classes() -> None:
    z, y = torch.randn(20, 5, generator=seeded(0)), torch.arange(20) % 5
    torch.testing.assert_close(dlr(z, y), dlr(1000 * z, y), rtol=1e-4, atol=1e-4)
    assert torch.equal(dlr(z, y) > 0, z.argmax(1) != y)
    assert torch.equal(dlr(z[:, :2], y % 2), margin(z[:, :2], y % 2))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gain", [1e-5, 1.0, 2000.0])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_sign_survives_short_formats(autocast: torch.dtype, gain: float, batch_size: int | None) -> None:
    """Very sure and very unsure: cross-entropy's own gradient is exactly zero for the first, below range for both."""
    x, y = make_images(5, 4), torch.tensor([0, 1, 0, 1])
    layer = nn.Linear(x[0].numel(), 2)
    with torch.no_grad():
        layer.weight.copy_(Linear(2, x[0].numel(), gain).w)
    model = nn.Sequential(nn.Flatten(), layer)
    direction = (layer.weight[1] - layer.weight[0]).view_as(x[0]).sign() * torch.tensor([1, -1, 1, -1]).view(4, 1, 1, 1)
    worst = (x.double() + 0.1 * direction).clamp(0, 1)
    with torch.autocast("cpu", dtype=autocast):
        found = pgd(model, x, y, radius=0.1, steps=10, keep="last", batch_size=batch_size)
    assert float(((found.double() - worst).abs() < 1e-6).float().mean()) > 0.99


@pytest.mark.parametrize("attack", [pgd, apgd])
def test_restarts_begin_elsewhere(attack: Callable[..., Tensor]) -> None:
    """A model that is flat around the image itself: the first run stands still, and any other start is up the hill."""

    def plateau(x: Tensor) -> Tensor:
        rise = (x - 0.52).relu().sum((1, 2, 3))
        return torch.stack([torch.full_like(rise, 0.01), rise], 1)

    x, y = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    for restarts, wrong in ((1, False), (2, True)):
        found = attack(plateau, x, y, radius=0.1, random_start=False, restarts=restarts)
        assert ((plateau(found).argmax(1) != y) == wrong).all()


def test_best_of_all_points_is_kept() -> None:
    """A model that errs only near the middle of the way: the last point is past it."""

    def bump(x: Tensor) -> Tensor:
        place = x.mean((1, 2, 3))
        return torch.stack([torch.zeros_like(place), 10 * (place - 0.5) - 40 * (place - 0.62).relu() * 4], 1)

    x, y = torch.full((2, 1, 2, 2), 0.48), torch.tensor([0, 0])
    settings_: dict[str, Any] = {"radius": 0.4, "steps": 4, "step_size": 0.13}
    wrong = [(bump(pgd(bump, x, y, keep=k, **settings_)).argmax(1) != y).all() for k in ("best", "last")]  # type: ignore[arg-type]
    assert bool(wrong[0])
    assert not bool(wrong[1])


def test_targets_are_reached() -> None:
    x, y = make_images(2, 6), torch.arange(6) % 4
    model = Linear(4, x[0].numel())
    goal = (y + 1) % 4
    found = pgd(model, x, y, radius=0.5, steps=20, target=goal)
    assert torch.equal(model(found).argmax(1), goal)
    clean = model(x).detach()
    least = clean.scatter(1, y[:, None], math.inf).argmin(1)
    assert torch.equal(model(pgd(model, x, y, radius=0.5, steps=20, target="least-likely")).argmax(1), least)
    assert not bool((least == y).any())


def test_unbounded_is_pgd_without_a_radius() -> None:
    x, y = make_images(2, 4), torch.arange(4) % 3
    model = make_net(1, 3)
    found = unbounded(model, x, y, steps=20)
    assert torch.equal(found, pgd(model, x, y, radius=math.inf, steps=20, step_size=0.01))
    assert 0.1 < float((found - x).abs().max()) <= 0.2 + 1e-6


def test_normalised_space_equals_an_attack_behind_the_normalisation() -> None:
    """On a model without its first layer, attacked in its own space, as the paper's kin do."""
    std, mean = torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1), torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    inner = make_net(4, 5).eval()
    x, y = 0.3 + 0.4 * make_images(1, 4), torch.arange(4)
    unlimited = (-math.inf, math.inf)
    inside = pgd(inner, (x - mean) / std, y, radius=0.05, steps=5, keep="last", bounds=unlimited)
    found = pgd(
        lambda images: inner((images - mean) / std), x, y,
        radius=0.05, steps=5, keep="last", space="normalised", scale=std.flatten(),
    )  # fmt: skip
    close = ((found - mean) / std - inside).abs() < 1e-5
    assert float(close.float().mean()) > 0.98  # signs of gradients near zero may differ


def test_presets_are_those_of_the_tables() -> None:
    x, y, model = make_images(1, 4), torch.arange(4), make_net(4, 5)
    std = (0.2, 0.25, 0.3)
    assert torch.equal(PRESETS["alps-table-5"](model, x, y), fgsm(model, x, y, radius=4 / 255))
    textbook = pgd(model, x, y, radius=4 / 255, step_size=1 / 255, steps=10, keep="last")
    assert torch.equal(PRESETS["alps-table-6"](model, x, y), textbook)
    for name in ("alps-table-5-normalised", "alps-table-6-normalised"):
        moved = (PRESETS[name](model, x, y, scale=std) - x).abs().amax((0, 2, 3))
        assert bool((moved <= 4 / 255 * torch.tensor(std)).all())
        torch.testing.assert_close(moved, 4 / 255 * torch.tensor(std), rtol=1e-4, atol=0)


def test_generators_repeat() -> None:
    x, y, model = make_images(2, 4), torch.arange(4) % 3, make_net(1, 3)
    for attack in (
        lambda g: pgd(model, x, y, radius=0.1, random_start=True, steps=2, generator=g, keep="last"),
        lambda g: apgd(model, x, y, radius=0.1, steps=3, generator=g),
        lambda g: square(model, x, y, radius=0.1, queries=5, norm="l2", generator=g),
        lambda g: noise(x, radius=0.1, generator=g),
    ):
        state = torch.get_rng_state()
        assert torch.equal(attack(seeded(1)), attack(seeded(1)))
        assert not torch.equal(attack(seeded(1)), attack(seeded(2)))
        assert torch.equal(torch.get_rng_state(), state)


def test_transfer_attacks_the_surrogates() -> None:
    x, y = make_images(2, 8), torch.arange(8) % 3
    first, second, victim = (make_net(s, 3) for s in (1, 2, 3))
    before = state_of(victim)
    assert torch.equal(transfer(first, x, y, radius=0.1), pgd(first, x, y, radius=0.1))
    both = transfer([first, second], x, y, radius=0.3)
    for net in (first.eval(), second.eval()):
        with torch.no_grad():
            assert float(log_odds(net(both), y).mean()) > float(log_odds(net(x), y).mean())
    assert state_of(victim) == before


def test_a_model_without_a_graph_gets_no_gradient() -> None:
    x, y = make_images(2, 3), torch.arange(3)
    found = pgd(lambda images: Linear(3, images[0].numel())(images).detach(), x, y, radius=0.1)
    assert torch.equal(found, x)


def test_compiled_models_are_attacked_alike_and_given_back() -> None:
    x, y, model = make_images(2, 4), torch.arange(4) % 3, make_net(1, 3).train()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(pgd(compiled, x, y, radius=0.1, steps=3), pgd(model, x, y, radius=0.1, steps=3))
    assert all(m.training for m in model.modules())


def test_a_captured_attack_is_the_attack_where_there_is_no_gpu() -> None:
    x, y, model = make_images(2, 4), torch.arange(4) % 3, make_net(1, 3)
    captured = CapturedAttack(model, attack=pgd, radius=0.1, steps=3)
    assert torch.equal(captured(x, y), pgd(model, x, y, radius=0.1, steps=3))
    with pytest.raises(HoldfastError, match="early_stop"):
        CapturedAttack(model, radius=0.1, early_stop=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_attack_is_the_attack_on_a_gpu() -> None:
    model = make_net(1, 3).cuda().eval()
    batches = [(make_images(s, n).cuda(), (torch.arange(n) % 3).cuda()) for s, n in ((1, 8), (2, 8), (3, 5))]
    captured = CapturedAttack(model, attack=pgd, radius=0.1, steps=4)
    for x, y in batches:
        torch.testing.assert_close(captured(x, y), pgd(model, x, y, radius=0.1, steps=4))
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"restarts": 0}, "restarts must be >= 1, got 0"),
        ({"step_size": 0.0}, "step_size must be > 0, got 0.0"),
        ({"loss": "cw"}, "unknown loss 'cw'"),
        ({"keep": "first"}, "unknown keep 'first'"),
        ({"mode": "train"}, "unknown mode 'train'"),
        ({"target": "likely"}, "did you mean 'least-likely'?"),
        ({"target": torch.zeros(1)}, "target must be as y"),
    ],
)
def test_bad_settings_name_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as error:
        pgd(make_net(0, 3), make_images(0, 2), torch.tensor([0, 1]), **{"radius": 0.1, **changes})
    assert message in str(error.value)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_misspelt_setting_is_refused(name: str) -> None:
    """``nrom="l2"`` would otherwise attack in L∞ without a word."""
    with pytest.raises(HoldfastError, match="unknown setting of the attack 'nrom'; did you mean 'norm'"):
        ATTACKS[name](make_net(0, 3), make_images(0, 2), torch.tensor([0, 1]), radius=0.1, nrom="l2")


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_batch_of_none(name: str, norm: str) -> None:
    x, y = torch.zeros(0, 3, 6, 7), torch.zeros(0, dtype=torch.int64)
    assert ATTACKS[name](make_net(0, 3), x, y, radius=0.1, norm=norm).shape == x.shape


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"noise"}))
def test_images_and_labels_that_no_attack_can_work_on(name: str) -> None:
    def attack(x: Tensor, y: Tensor, model: nn.Module | None = None) -> Tensor:
        return ATTACKS[name](model or make_net(0, 3), x, y, radius=0.1)

    x, y = make_images(0, 4), torch.tensor([0, 1, 2, 0])
    broken = x.clone()
    broken[2, 0, 0, 0] = math.nan
    with pytest.raises(HoldfastError, match="image 2 has NaN or infinite pixels"):
        attack(broken, y)
    for wrong in (3, -1):
        with pytest.raises(HoldfastError, match=f"label {wrong} of image 1 is not a class of the model, .* 0 to 2"):
            attack(x, torch.tensor([0, wrong, 2, 0]))
    for odd in (y.float(), y.view(2, 2), y.int()):
        with pytest.raises(HoldfastError, match=r"y must be classes \(B,\) of type int64"):
            attack(x, odd)
    lost = make_net(0, 3)
    nn.init.constant_(lost[-1].bias, math.nan)  # type: ignore[arg-type]
    if "last" not in name:  # as in training, where the loss tells
        with pytest.raises(HoldfastError, match="the model gives NaN for image 0"):
            attack(x, y, lost)
