"""Changes an encoder learns to tell: each does what it says, to every image in its own way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vae_report.digits_anomalies import make_digits_anomalies

from holdfast.data.making import DAMAGES
from holdfast.detect import MinimiseSettings, train_rotation
from holdfast.detect.features import RotationExtractor
from holdfast.train.rotation import CHANGES, TURNS, blurred, change_each, flattened, mixed, pasted, rotation_card


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(12, 1, 16, 16, generator=seeded(9))


@pytest.mark.parametrize("name", CHANGES)
def test_every_image_changes_within_its_range(name: str, images: Tensor) -> None:
    made = CHANGES[name](images, seeded())
    assert made.shape == images.shape
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert ((made - images).abs().flatten(1).amax(1) > 0.01).all()
    assert torch.equal(made, CHANGES[name](images, seeded()))
    same = CHANGES[name](images[:1].expand(12, 1, 16, 16), seeded())
    assert name == "mixed" or len({bytes(x.numpy().tobytes()) for x in same}) == 12


def test_they_are_what_they_are_called(images: Tensor) -> None:
    assert (blurred(images, seeded()).flatten(1).var(1) < images.flatten(1).var(1)).all()
    ratio = flattened(images, seeded()).flatten(1).std(1) / images.flatten(1).std(1)
    assert ((ratio > 0.29) & (ratio < 0.71)).all()
    light = torch.stack([torch.zeros(1, 16, 16), torch.ones(1, 16, 16)])
    share = pasted(light, seeded()).mean((1, 2, 3))
    assert 3 * 3 / 256 < float(share[0]) < 9 * 9 / 256
    assert torch.allclose(mixed(light, seeded()).mean((1, 2, 3)).sum(), torch.tensor(1.0), atol=0.2)


def test_each_image_gets_one_of_them_in_turn(images: Tensor) -> None:
    made, which = change_each(images, seeded())
    assert which.tolist() == [i % len(CHANGES) for i in range(12)]
    assert ((made - images).abs().flatten(1).amax(1) > 0.01).all()
    assert change_each(images[:2], seeded())[0].shape == (2, 1, 16, 16)


def test_none_is_what_anomalies_are_made_with() -> None:
    assert not set(CHANGES) & set(DAMAGES)


@pytest.mark.slow
def test_an_encoder_that_knows_changes_sees_damage_that_it_was_not_shown() -> None:
    data = make_digits_anomalies(seed=3)
    loop = MinimiseSettings(6, 50, 3e-3, schedule="cosine")
    built = train_rotation(data.unlabeled, loop, changes=True)
    assert rotation_card(built, data.unlabeled.shape).classes[TURNS:] == tuple(CHANGES)
    pooled = data.pooled()
    changed, which = change_each(pooled.images[pooled.groups < 0].float() / 255, seeded())
    with torch.no_grad():
        told = built.model(changed).argmax(1) - TURNS
    assert float((told == which).float().mean()) > 0.5
    scores = RotationExtractor(built.model).extract(pooled.images.float() / 255).rotation
    assert scores is not None
    damaged, normal = scores[pooled.groups == 0], scores[pooled.groups < 0]
    assert float((damaged[:, None] > normal).float().mean()) > 0.7
