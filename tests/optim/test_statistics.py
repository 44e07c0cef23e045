"""Running statistics move once a step, whoever keeps them, and batches are still normalised by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from holdfast.optim import SAM, FriendlySAM, frozen_statistics
from tests.optim.problems import identical


class InPlace(nn.Module):
    """Running statistics as anyone may write them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.update(x.detach().mean(0))
        return x - x.mean(0)

    def update(self, mean: Tensor) -> None:
        self.mean.lerp_(mean, 0.1)
        self.seen += 1


class Reassigned(InPlace):
    def update(self, mean: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * mean
        self.seen = self.seen + 1


class BehindAutograd(InPlace):
    def update(self, mean: Tensor) -> None:
        self.mean.data.mul_(0.9).add_(0.1 * mean)
        self.seen.data.add_(1)


class OwnForward(nn.BatchNorm1d):
    """A BatchNorm by name that does not look at ``track_running_stats``."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running_mean.lerp_(x.detach().mean(0), 0.1)
            self.running_var.lerp_(x.detach().var(0), 0.1)
            self.num_batches_tracked += 1
        return F.batch_norm(x, None, None, training=True)


class MadeLate(InPlace):
    """The buffer is there from the start, but holds nothing until the first forward."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("last", None)

    def update(self, mean: Tensor) -> None:
        super().update(mean)
        self.last = mean


def timm_norm() -> nn.Module:
    from timm.layers import BatchNormAct2d

    return BatchNormAct2d(4)


KEEPERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "batch norm 1d": (lambda: nn.BatchNorm1d(4), 2),
    "batch norm 2d": (lambda: nn.BatchNorm2d(4), 4),
    "sync batch norm": (lambda: nn.SyncBatchNorm(4), 4),
    "cumulative": (lambda: nn.BatchNorm1d(4, momentum=None), 2),
    "instance norm": (lambda: nn.InstanceNorm2d(4, track_running_stats=True, affine=True), 4),
    "own batch norm": (lambda: OwnForward(4), 2),
    "timm": (timm_norm, 4),
    "own, in place": (lambda: InPlace(4), 2),
    "own, reassigned": (lambda: Reassigned(4), 2),
    "own, behind autograd": (lambda: BehindAutograd(4), 2),
    "own, made late": (lambda: MadeLate(4), 2),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), 2),
}


@pytest.fixture(params=KEEPERS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    make, dims = KEEPERS[request.param]
    torch.manual_seed(0)
    first, last = (nn.Conv2d(3, 4, 1), nn.Linear(16, 2)) if dims == 4 else (nn.Linear(3, 4), nn.Linear(4, 2))
    made = nn.Sequential(first, make(), nn.Flatten(), last)
    made(images(made))  # statistics that have seen something
    return made


def images(model: nn.Sequential, *, seed: int = 1) -> Tensor:
    shape = (6, 3, 2, 2) if isinstance(model[0], nn.Conv2d) else (6, 3)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_nothing_moves_inside_and_everything_moves_again_afterwards(model: nn.Sequential) -> None:
    before, places = statistics(model), [b.data_ptr() for b in model.buffers()]
    with frozen_statistics(model):
        for seed in range(2, 5):
            model(images(model, seed=seed))
    assert identical(statistics(model), before)
    assert places == [b.data_ptr() for b in model.buffers()]
    model(images(model, seed=5))
    moved = statistics(model)
    unmoved = {name for name in before if torch.equal(moved[name], before[name])}
    assert unmoved == ({"1.num_batches_tracked"} if isinstance(model[1], nn.InstanceNorm2d) else set())


def test_outputs_and_gradients_inside_are_those_of_ordinary_training(model: nn.Sequential) -> None:
    x = images(model, seed=3)
    kept = {name: value.clone() for name, value in model.state_dict().items()}

    def evaluate() -> list[Tensor]:
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), *(p.grad for p in model.parameters())]

    with frozen_statistics(model):
        frozen = evaluate()
    model.load_state_dict(kept)
    assert identical(frozen, evaluate())


def test_a_step_moves_them_as_one_forward_at_the_unmoved_weights_does(model: nn.Sequential) -> None:
    x = images(model, seed=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(x)
    once = statistics(model)
    model.load_state_dict(before)

    def closure() -> Tensor:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer = SAM(model.parameters(), SGD, rho=0.5, lr=0.0)
    optimizer.step(closure, descent_context=lambda: frozen_statistics(model))
    assert identical(statistics(model), once)
    model.load_state_dict(before)
    optimizer.step(closure)
    assert not identical(statistics(model), once)


def test_modules_in_evaluation_mode_stay_as_they_are(model: nn.Sequential) -> None:
    x = images(model, seed=3)
    model[1].eval()
    before, out = statistics(model), model(x)
    with frozen_statistics(model):
        inside = model(x)
    assert torch.equal(inside, out)
    assert identical(statistics(model), before)
    assert not model[1].training


def test_a_buffer_that_held_nothing_holds_nothing_again() -> None:
    model = MadeLate(3)
    with frozen_statistics(model):
        model(torch.ones(2, 3))
    assert model.last is None


def test_batches_are_normalised_by_themselves() -> None:
    norm, x = nn.BatchNorm1d(3, affine=False), torch.randn(8, 3) * 5 + 2
    with frozen_statistics(norm):
        out = norm(x)
    assert torch.equal(out, F.batch_norm(x, None, None, training=True))
    assert not torch.allclose(out, norm.eval()(x))


def test_statistics_come_back_when_a_forward_raises() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(4, 1))
    before = statistics(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), frozen_statistics(model):
        model(torch.randn(5, 3))
    assert identical(statistics(model), before)
    assert model[0].track_running_stats


def test_constants_that_the_graph_needs_are_left_alone() -> None:
    """Leaving the context before the backward pass must not spoil it."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor(3.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    model = nn.Sequential(nn.Linear(3, 1), Scale())
    with frozen_statistics(model):
        loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    assert torch.equal(model[0].bias.grad, torch.tensor([6.0]))


def test_the_whole_training_matches_one_that_resets_statistics_by_hand() -> None:
    def run(by_hand: bool) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = FriendlySAM(model.parameters(), SGD, rho=0.2, lr=0.1, momentum=0.9)
        for seed in range(6):
            x = images(model, seed=seed)

            def closure(x: Tensor = x) -> Tensor:
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if not by_hand:
                optimizer.step(closure, descent_context=lambda: frozen_statistics(model))
                continue
            closure()
            optimizer.first_step(zero_grad=True)
            kept = statistics(model)
            closure()
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
            optimizer.second_step(zero_grad=True)
        return model

    assert identical(run(by_hand=True).state_dict(), run(by_hand=False).state_dict())


def test_a_buffer_that_repeats_itself_is_no_obstacle() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("mask", torch.ones(1, 3).expand(4, 3))
    before = model[0].running_mean.clone()
    with frozen_statistics(model):
        model(torch.randn(4, 3))
    assert torch.equal(model[0].running_mean, before)
