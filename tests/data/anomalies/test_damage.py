"""Damage shows, grows with its severity, and is what it is called."""

from __future__ import annotations

import pytest
import torch

from holdfast.data.making import DAMAGES, damage, damage_each
from holdfast.errors import HoldfastError

RAMP = torch.arange(32 * 32).view(1, 32, 32).remainder(200).to(torch.uint8)


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", DAMAGES)
def test_it_shows_and_grows(name: str) -> None:
    change = []
    for severity in (0.2, 1.0):
        other = damage(RAMP, name, severity=severity, generator=seeded())
        assert other.shape == RAMP.shape
        change.append(float((other.float() - RAMP.float()).square().mean()))
    assert change[0] > 0
    assert change[1] > change[0] or name == "shuffle"


def test_noise_and_specks_have_the_stated_strength() -> None:
    grey = torch.full((1, 200, 200), 128, dtype=torch.uint8)
    noisy = damage(grey, "noise", severity=0.2, generator=seeded()).float() / 255
    assert noisy.std() == pytest.approx(0.1, rel=0.02)
    specks = damage(grey, "salt-and-pepper", severity=0.4, generator=seeded())
    assert (specks != 128).float().mean() == pytest.approx(0.1, rel=0.05)


def test_rearranging_keeps_every_pixel() -> None:
    shuffled = damage(RAMP, "shuffle", severity=0.5, generator=seeded())
    assert torch.equal(shuffled.flatten().sort().values, RAMP.flatten().sort().values)
    assert not torch.equal(shuffled, RAMP)
    odd = damage(RAMP[:, :31, :29], "shuffle", severity=0.5, generator=seeded())
    assert torch.equal(odd[:, 30], RAMP[:, 30, :29])


def test_the_rest_does_what_it_says() -> None:
    assert torch.equal(damage(RAMP, "inversion", severity=1.0, generator=seeded()), 255 - RAMP)
    lost = (damage(RAMP + 1, "stripes", severity=0.5, generator=seeded()) == 0).all(2)[0]
    assert int(lost.sum()) == 8
    covered = damage(RAMP, "occlusion", severity=0.5, generator=seeded()) != RAMP
    assert 100 <= int(covered.sum()) <= 11 * 11


def test_each_image_draws_its_own() -> None:
    many = RAMP.expand(120, 1, 32, 32)
    done = damage_each(many, severity=0.5, generator=seeded())
    assert len({bytes(x.flatten().tolist()) for x in done}) > 60
    assert torch.equal(done, damage_each(many, severity=0.5, generator=seeded()))
    assert damage_each(many[:0], severity=0.5, generator=seeded()).shape == (0, 1, 32, 32)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(HoldfastError, match="unknown damage 'stripe'; did you mean 'stripes'"):
        damage(RAMP, "stripe", severity=0.5, generator=seeded())
