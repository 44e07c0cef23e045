"""Few labels: each way learns, the report's mistakes cost what the arithmetic says, FixMatch uses the unlabelled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from vae_report.few_labels import (
    WAYS,
    EncoderClassifier,
    Mistakes,
    accuracy,
    train_few_labels,
)

from holdfast.augment.basic import strong, weak
from holdfast.data import ArraySplit, Dataset, load
from holdfast.detect import MinimiseSettings, train_vae
from holdfast.errors import HoldfastError
from holdfast.methods.fixmatch import FixMatch
from holdfast.models.vae import VAE, VAESettings
from holdfast.train import fit
from holdfast.train.rotation import train_rotation

LOOP = MinimiseSettings(epochs=12, batch_size=20, lr=3e-3, schedule="cosine")


@pytest.fixture(scope="module")
def digits() -> tuple[ArraySplit, ArraySplit]:
    data = load("digits")
    assert isinstance(data.train, ArraySplit)
    assert isinstance(data.test, ArraySplit)
    return data.train, data.test


@pytest.fixture(scope="module")
def vae(digits: tuple[ArraySplit, ArraySplit]) -> VAE:
    return train_vae(
        digits[0].images, VAESettings((1, 16, 16)), MinimiseSettings(epochs=8, lr=3e-3, batch_size=50)
    ).model


def few(split: ArraySplit, n: int = 100) -> tuple[Tensor, Tensor]:
    return split.images[:n], split.labels[:n]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_each_way_learns(way: str, digits: tuple[ArraySplit, ArraySplit], vae: VAE) -> None:
    train, test = digits
    encoder = train_rotation(train.images[:300], MinimiseSettings(epochs=1)).model if way == "rotation" else None
    before = {k: v.clone() for k, v in vae.state_dict().items()}
    loop = MinimiseSettings(epochs=4, batch_size=20, lr=3e-3, schedule="cosine") if way == "fixmatch" else LOOP
    trained = train_few_labels(
        way,
        *few(train, 200),
        num_classes=10,
        vae=vae,
        encoder=encoder,
        unlabeled=train.images,
        loop=loop,
        fixmatch=FixMatch(ratio=2, confidence=0.8),
    )
    share, loss = accuracy(trained.model, test, test.labels)
    assert share > 0.55
    assert loss < math.log(10)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert all(torch.equal(v, before[k]) for k, v in vae.state_dict().items())


def test_softmax_before_the_loss_has_the_floor_that_explains_the_reports_loss() -> None:
    """The least loss with five classes is log(1 + 4/e) = 0.905: even a perfect classifier shows it."""
    perfect = torch.eye(5)
    floor = torch.nn.functional.cross_entropy(perfect, torch.arange(5))
    assert float(floor) == pytest.approx(math.log(1 + 4 / math.e)) == pytest.approx(0.9048, abs=1e-4)
    # a share 0.81 of one-hot answers right, the rest wrong by one class: the report's 1.0983, to two digits
    wrong = torch.nn.functional.cross_entropy(perfect, (torch.arange(5) + 1) % 5)
    assert 0.81 * float(floor) + 0.19 * float(wrong) == pytest.approx(1.0983, abs=0.005)


def test_mistakes_do_what_they_are_called(vae: VAE, digits: tuple[ArraySplit, ArraySplit]) -> None:
    x = digits[1].images[:20].float() / 255
    wrong = EncoderClassifier(vae, 10, mistakes=Mistakes(softmax_before_loss=True, sampled_z=True))
    right = EncoderClassifier(vae, 10)
    assert torch.allclose(wrong(x).sum(1), torch.ones(20))
    assert not torch.equal(wrong(x), wrong(x))
    assert torch.equal(right(x), right(x))
    torch.testing.assert_close(right(x), right.head(vae(x)))


def test_a_head_without_activations_is_one_linear_layer(vae: VAE) -> None:
    linear, bent = (EncoderClassifier(vae, 10, mistakes=Mistakes(linear_head=on)).head.double() for on in (True, False))
    a, b = (torch.randn(50, vae.settings.latent, dtype=torch.float64) for _ in range(2))
    for head, is_linear in ((linear, True), (bent, False)):
        sums = head(a) + head(b) - head(torch.zeros_like(a))
        assert torch.allclose(head(a + b), sums, atol=1e-10) is is_linear


def test_a_frozen_encoder_is_asked_once_and_a_moving_one_every_step(
    vae: VAE, digits: tuple[ArraySplit, ArraySplit], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    encode = VAE.encode

    def counted(self: VAE, x: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(len(x))
        return encode(self, x)

    monkeypatch.setattr(VAE, "encode", counted)
    loop = MinimiseSettings(epochs=3, batch_size=25)
    found = {}
    for way in ("frozen", "fine-tuned"):
        asked.clear()
        found[way] = train_few_labels(way, *few(digits[0]), num_classes=10, vae=vae, loop=loop)
        assert asked == ([100] if way == "frozen" else [25] * 12)
    head = found["frozen"].model
    assert isinstance(head, EncoderClassifier)
    x = digits[1].images[:20].float() / 255
    torch.testing.assert_close(head(x), head.classify(*encode(vae, x)))


@pytest.mark.slow
def test_mistakes_cost_accuracy_and_show_the_floor(digits: tuple[ArraySplit, ArraySplit], vae: VAE) -> None:
    train, test = digits
    found = {}
    for mistakes in (Mistakes(), Mistakes(softmax_before_loss=True, sampled_z=True)):
        model = train_few_labels(
            "frozen", *few(train, 300), num_classes=10, vae=vae, mistakes=mistakes, loop=LOOP
        ).model
        found[mistakes.sampled_z] = accuracy(model, test, test.labels)
    assert found[False][0] > found[True][0]
    assert found[True][1] > math.log(1 + 9 / math.e)


@pytest.mark.slow
def test_any_method_and_ascent_can_train_the_head(digits: tuple[ArraySplit, ArraySplit], vae: VAE) -> None:
    train, test = digits
    model = EncoderClassifier(vae, 10)
    before = {k: v.clone() for k, v in vae.state_dict().items()}
    data = Dataset("few", tuple(map(str, range(10))), train=train.subset(torch.arange(200)), test=test)
    result = fit(data, model=model, ascent="sam", epochs=15, lr=0.1, batch_size=20, device="cpu")
    assert result.history[-1]["test_accuracy"] > 0.5
    assert all(torch.equal(v, before[k]) for k, v in vae.state_dict().items())


def test_seeds(digits: tuple[ArraySplit, ArraySplit]) -> None:
    first, again, other = (
        train_few_labels(
            "supervised", *few(digits[0], 40), num_classes=10, loop=MinimiseSettings(epochs=1, seed=s)
        ).history
        for s in (0, 0, 1)
    )
    assert first == again != other


def test_augmentations_keep_range_and_shape_and_differ_by_draw() -> None:
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for change in (weak, strong):
        first, again, other = (change(x, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert first.shape == x.shape
        assert 0 <= first.min() <= first.max() <= 1


def test_bad_input_is_refused(digits: tuple[ArraySplit, ArraySplit]) -> None:
    x, y = few(digits[0])
    for way, changes, message in (
        ("fixmach", {}, "unknown way 'fixmach'; did you mean 'fixmatch'"),
        ("frozen", {}, "frozen needs a trained VAE"),
        ("rotation", {}, "rotation needs an encoder"),
        ("fixmatch", {}, "fixmatch needs unlabelled images"),
        ("fixmatch", {"unlabeled": torch.zeros(9, 3, 16, 16, dtype=torch.uint8)}, "make them equal"),
        ("supervised", {"num_classes": 5}, "labels must be in 0..4"),
    ):
        with pytest.raises(HoldfastError, match=message):
            train_few_labels(way, x, y, **{"num_classes": 10, **changes})  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="need as many labels"):
        train_few_labels("supervised", x, y[:5], num_classes=10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("way", WAYS)
def test_captured_steps_are_the_eager_ones(way: str, digits: tuple[ArraySplit, ArraySplit], vae: VAE) -> None:
    train, test = digits
    encoder = train_rotation(train.images[:300], MinimiseSettings(epochs=1)).model if way == "rotation" else None
    captured, eager = (
        train_few_labels(
            way,
            *few(train, 100),
            num_classes=10,
            vae=vae,
            encoder=encoder,
            unlabeled=train.images[:500],
            validation=few(test),
            loop=MinimiseSettings(epochs=2, batch_size=20, schedule="cosine", capture=capture),
            fixmatch=FixMatch(ratio=2),
            device="cuda",
        ).history
        for capture in (True, False)
    )
    assert [r["loss"] for r in captured] == pytest.approx([r["loss"] for r in eager], rel=2e-2)
