"""Label-free training: the VAE lowers its bound, the encoder learns turns, both repeat under a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim import Adam, AdamW

from holdfast.data import ArraySplit
from holdfast.detect import LikelihoodRegret, MinimiseSettings, VAEExtractor, auroc, extract, train_rotation, train_vae
from holdfast.detect.detectors import make_detector
from holdfast.detect.features import RotationExtractor
from holdfast.detect.fitted_detector import FittedDetector
from holdfast.errors import HoldfastError
from holdfast.losses import squared_error
from holdfast.methods import Method, State
from holdfast.models.vae import VAE, VAESettings
from holdfast.module_state import evaluating
from holdfast.rng import Generators, derive
from holdfast.train.unlabelled import _order_of_full_batches, minimise
from holdfast.types import Views
from tests.conftest import same_weights

SHAPE = (1, 16, 16)


@pytest.mark.slow
def test_the_bound_falls_and_sigma_is_learned(normal: Tensor) -> None:
    trained = train_vae(normal, VAESettings(SHAPE, latent=8), MinimiseSettings(epochs=5, lr=3e-3, batch_size=50))
    losses = [record["loss"] for record in trained.history]
    assert losses[-1] < losses[0]
    error = squared_error(normal.float() / 255, trained.model.terms(normal.float() / 255).decoded).mean() / 256
    assert 1 < trained.model.sigma**2 / float(error.detach()) < 2  # training draws z, which adds to the error
    last = trained.history[-1]
    assert last["loss"] == pytest.approx(last["reconstruction"] + last["kl"], rel=1e-4)
    assert not trained.model.training


@pytest.mark.slow
def test_sigma_a_half_acts_as_a_large_beta(normal: Tensor) -> None:
    """σ² = 1/2 weighs a pixel's error 1/(2σ²) = 1, a learned σ many times more: the KL term wins and z goes dark."""
    loop = MinimiseSettings(epochs=6, lr=3e-3, batch_size=50)
    fixed, learned = (train_vae(normal, VAESettings(SHAPE, latent=8, sigma=s), loop) for s in (0.5**0.5, None))
    assert fixed.history[-1]["kl"] < 0.6 * learned.history[-1]["kl"]


@pytest.mark.slow
def test_half_precision_learns_as_well(normal: Tensor) -> None:
    settings = VAESettings(SHAPE, latent=8)
    short, full = (
        train_vae(normal, settings, MinimiseSettings(epochs=3, lr=3e-3, batch_size=50, precision=p)).history[-1]["loss"]
        for p in ("bf16", "fp32")
    )
    assert short == pytest.approx(full, abs=10)


@pytest.mark.slow
def test_iwae_and_the_halves_alone(normal: Tensor) -> None:
    loop, settings = MinimiseSettings(epochs=2, lr=3e-3, batch_size=50), VAESettings(SHAPE, latent=4)
    iwae = train_vae(normal, settings, loop, bound="iwae", samples=3)
    assert iwae.history[-1]["loss"] < iwae.history[0]["loss"]
    halves = {b: train_vae(normal, settings, loop, bound=b).history[-1] for b in ("reconstruction", "kl")}
    assert halves["kl"]["kl"] < 0.1 < halves["reconstruction"]["kl"]
    assert halves["reconstruction"]["reconstruction"] < halves["kl"]["reconstruction"]


def test_seeds(normal: Tensor) -> None:
    before = torch.get_rng_state()
    first, again, other = (
        train_vae(normal[:100], VAESettings(SHAPE), MinimiseSettings(epochs=1, seed=s)).model for s in (1, 1, 2)
    )
    assert same_weights(first, again)
    assert not same_weights(first, other)
    assert torch.equal(before, torch.get_rng_state())


@dataclass(frozen=True)
class ThreeTimesWeight(Method):
    """A loss of 3w, whose gradient is always 3."""

    name: ClassVar[str] = "three-times-weight"
    measures: ClassVar[tuple[str, ...]] = ()

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        return (model.weight.expand(1),)

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        return 3 * logits[0].sum()

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ()


def minimised(loop: MinimiseSettings, n: int = 5, **options: Any) -> tuple[float, tuple[dict[str, float], ...]]:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    cpu, images = torch.device("cpu"), ArraySplit(torch.zeros(n, 1, 2, 2, dtype=torch.uint8))
    rng = Generators(loop.seed, cpu)
    history = minimise(ThreeTimesWeight(), model, images, loop, rng=rng, device=cpu, **options)
    return model.weight.item(), history


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_each_optimiser_takes_its_steps(optimizer: str) -> None:
    """On loss = 3w, whose gradient is always 3: Adam moves by the rate, SGD by a sum of powers of its momentum."""
    weight, _ = minimised(MinimiseSettings(epochs=4, batch_size=5, lr=0.1, optimizer=optimizer))
    moved = {"adam": 0.1 * 4, "sgd": 0.1 * 3 * (4 + 3 * 0.9 + 2 * 0.9**2 + 0.9**3)}
    assert weight == pytest.approx(-moved[optimizer], rel=1e-6)


@pytest.mark.parametrize(("name", "kind"), [("adam", Adam), ("adamw", AdamW)])
def test_each_optimiser_decays_weights_as_its_name_says(name: Any, kind: type[Adam]) -> None:
    """Adam adds the decay to the gradient, which it then divides by its size; AdamW shrinks the weight itself."""
    weight, _ = minimised(MinimiseSettings(epochs=4, batch_size=5, lr=0.1, weight_decay=2.0, optimizer=name))
    plain = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = kind([plain], lr=0.1, weight_decay=2.0)
    for _ in range(4):
        plain.grad = torch.full_like(plain, 3.0)
        optimizer.step()
    assert weight == pytest.approx(plain.item(), rel=1e-6)
    if name == "adamw":
        assert weight == pytest.approx(-0.1 * sum(0.8**i for i in range(4)), rel=1e-6)


def test_images_that_fill_no_batch_wait_for_another_epoch() -> None:
    weight, history = minimised(MinimiseSettings(epochs=3, batch_size=4, lr=0.1), n=11)
    assert weight == pytest.approx(-0.1 * 6, rel=1e-6), "two steps per epoch"
    assert len(history) == 3


def test_one_generator_shuffles_all_epochs() -> None:
    generator = torch.Generator().manual_seed(derive(7, "order"))
    expected = [torch.randperm(11, generator=generator)[:8] for _ in range(3)]
    order = _order_of_full_batches(11, 4, 7)
    for epoch in (0, 1, 2, 2, 0, 1):
        assert torch.equal(order(epoch), expected[epoch])


def test_what_else_is_measured_is_in_the_history_and_heard() -> None:
    heard: list[tuple[int, dict[str, float]]] = []
    _, history = minimised(
        MinimiseSettings(epochs=2, lr=0.1),
        measure=lambda epoch, model: {"validation_weight": model.weight.item()},
        on_epoch=lambda epoch, record: heard.append((epoch, record)),
    )
    assert [record["validation_weight"] for record in history] == pytest.approx([-0.1, -0.2])
    assert heard == list(enumerate(history, 1))


def test_turns_are_learned_and_foreign_digits_confuse(fitted: FittedDetector, fresh: ArraySplit) -> None:
    model = fitted.encoder
    assert model is not None
    seen = extract(RotationExtractor(model), fresh.images)
    assert seen.rotation is not None
    assert seen.features is not None
    assert auroc(seen.rotation, fresh.labels >= 5) > 0.65
    x = fresh.images.float() / 255
    with evaluating(model), torch.no_grad():
        surprise = [
            -model(x.rot90(k, (2, 3))).log_softmax(1)[:, k] for k in range(4)
        ]  # each turn is to be recognised as what it is
        torch.testing.assert_close(seen.rotation, torch.stack(surprise).mean(0), rtol=1e-3, atol=1e-4)


def test_the_bound_at_a_drawn_z_beside_that_at_the_mean() -> None:
    """Against torch's own Normal: its mean over draws is the ELBO's expectation, and μ is not a draw."""
    torch.manual_seed(0)
    vae, x = VAE(VAESettings(SHAPE, latent=4)).eval(), torch.rand(6, *SHAPE)
    found = [VAEExtractor(vae, drawn=True, seed=seed).extract(x) for seed in (0, 0, 1)]
    first, again, other = (f.drawn for f in found)
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with torch.no_grad():
        mean, log_var = vae.encode(x)
        z = mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=torch.Generator().manual_seed(0))
        own, at_mean = (-Normal(vae.decode(at), vae.sigma).log_prob(x).sum((1, 2, 3)) for at in (z, mean))
    torch.testing.assert_close(first, own)
    torch.testing.assert_close(found[0].reconstruction, at_mean)
    assert found[0].kl is not None
    torch.testing.assert_close(make_detector("elbo-drawn").score_features(found[0]), first + found[0].kl)
    assert VAEExtractor(vae).extract(x).drawn is None


@pytest.mark.slow
def test_likelihood_regret_is_never_negative_and_larger_for_the_unseen(normal: Tensor, fresh: ArraySplit) -> None:
    trained = train_vae(normal, VAESettings(SHAPE, latent=8), MinimiseSettings(epochs=6, lr=3e-3, batch_size=50)).model
    scores = LikelihoodRegret(VAEExtractor(trained, regret=10)).score(fresh.images)
    assert (scores >= 0).all()
    assert auroc(scores, fresh.labels >= 5) > 0.65
    assert all(p.grad is None for p in trained.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be >= 1"),
        ({"lr": 0.0}, "lr must be > 0"),
        ({"schedule": "step"}, "schedule must be constant or cosine"),
        ({"optimizer": "lion"}, "optimizer must be adam, adamw or sgd, got 'lion'"),
        ({"precision": "fp16"}, "precision must be fp32, tf32 or bf16"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        MinimiseSettings(**changes)  # type: ignore[arg-type]


def test_bad_images_are_refused() -> None:
    with pytest.raises(HoldfastError, match="these are .1, 16, 16."):
        train_vae(torch.zeros(9, *SHAPE, dtype=torch.uint8), VAESettings((1, 32, 32)))
    with pytest.raises(HoldfastError, match="quarter turns need square images, got 8x9"):
        train_rotation(torch.zeros(9, 1, 8, 9, dtype=torch.uint8))
    with pytest.raises(HoldfastError, match="NaN or infinite"):
        train_vae(torch.full((9, *SHAPE), float("nan")), VAESettings(SHAPE))
    with pytest.raises(HoldfastError, match="training diverged in epoch 1"):
        train_vae(torch.rand(64, *SHAPE), VAESettings(SHAPE), MinimiseSettings(epochs=1, lr=1e30, batch_size=8))
