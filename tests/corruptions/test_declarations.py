"""Every registered corruption by any spelling of its name, and one of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from holdfast.corruptions import corrupt, corruption_names, find_corruption
from holdfast.errors import HoldfastError
from holdfast.parts import CORRUPTIONS, corruption


@pytest.fixture
def vignette() -> Iterator[str]:
    @corruption("vignette", about="darker toward the border", cpu_only=True)
    def darker(x: Tensor, *, severity: int, generator: torch.Generator) -> Tensor:
        shade = torch.linspace(-1, 1, x.shape[-1]).abs() * severity / 10
        return (x - shade * torch.rand(len(x), 1, 1, 1, generator=generator)).clamp(0, 1)

    yield "vignette"
    del CORRUPTIONS._parts["vignette"]


@pytest.mark.parametrize("name", corruption_names())
@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 1, 32, 32)])
def test_every_corruption_takes_a_severity_and_needs_no_generator(name: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    made = corrupt(x, name, severity=3)
    assert made.shape == x.shape
    assert made.dtype == x.dtype
    assert not torch.equal(made, x)
    after = corrupt(x, name, severity=3)
    torch.manual_seed(3)
    assert torch.equal(made, corrupt(x, name.replace("-", "_"), severity=3))
    if not CORRUPTIONS[name].random:
        assert torch.equal(made, after)


@pytest.mark.parametrize(
    ("name", "scale", "found"),
    [
        ("Gaussian noise", "severity", "gaussian-noise"),
        ("gaussian_noise", "strength", "gaussian"),
        ("jpeg_compression", "severity", "jpeg"),
        ("jpeg_compression", "strength", "imgaug-jpeg-compression"),
        ("elastic_transform", "severity", "elastic"),
        ("gaussian-blur", "severity", "gaussian-blur"),
        ("gaussian-blur", "strength", "imgaug-gaussian-blur"),
        ("imgaug-gaussian-blur", "severity", "imgaug-gaussian-blur"),
        ("rotation", "severity", "rotation"),
    ],
)
def test_names_resolve_by_spelling_and_scale(name: str, scale: str, found: str) -> None:
    assert find_corruption(name, scale=scale).name == found  # type: ignore[arg-type]


def test_families_come_in_their_published_order() -> None:
    assert corruption_names("imagenet-c")[:3] == ("gaussian-noise", "shot-noise", "impulse-noise")
    short = [CORRUPTIONS[name].label for name in corruption_names("imgaug")]
    assert short == [
        "gaussian",
        "salt-and-pepper",
        "cutout",
        "dropout",
        "rotation",
        "perspective",
        "jpeg-compression",
        "gaussian-blur",
    ]
    assert corruption_names("none") == ()


def test_a_corruption_of_ones_own(vignette: str) -> None:
    assert vignette in corruption_names()
    assert vignette in corruption_names("")
    x = torch.ones(2, 3, 8, 8)
    made = corrupt(x, "Vignette", severity=2, generator=torch.Generator().manual_seed(0))
    assert made.shape == x.shape
    assert float(made[..., 0].max()) < 1
    with pytest.raises(HoldfastError, match="severity must be 1, 2, 3, 4 or 5, got 7"):
        corrupt(x, vignette, severity=7)
    with pytest.raises(HoldfastError, match="unknown corruption 'vignette'"):
        corrupt(x, vignette, strength=1.0)
