"""The eight corruptions of BiasAdv D.3 against Pillow, scipy, OpenCV and their stated distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from holdfast.corruptions import corrupt, corruption_names, example_grid
from holdfast.corruptions.imgaug import blur, jpeg_compression, pull_corners, quality_of, rotate
from holdfast.parts import CORRUPTIONS
from tests.corruptions.references import interpolate, jpeg
from tests.corruptions.test_imagenet_c import arrays, scenes, seeded

EIGHT = tuple(CORRUPTIONS[name].label for name in corruption_names("imgaug"))


@pytest.mark.parametrize("name", EIGHT)
def test_strength_0_gives_the_image_back_and_more_strength_changes_more(name: str) -> None:
    x = scenes(16, 32)
    assert torch.allclose(corrupt(x, name, strength=0, generator=seeded()), x, atol=1e-12)
    changes = [float((corrupt(x, name, strength=s, generator=seeded(1)) - x).abs().mean()) for s in (0.3, 1, 3)]
    assert changes == sorted(changes)
    assert changes[0] < changes[2]


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 40)])
def test_a_seed_repeats_images_differ_and_the_range_holds(name: str, shape: tuple[int, int, int]) -> None:
    x = scenes(1, 40, dtype=torch.float32)[:, : shape[0], : shape[1], : shape[2]].expand(64, -1, -1, -1).contiguous()
    made = corrupt(x, name, strength=1, generator=seeded(2))
    assert torch.equal(made, corrupt(x, name, strength=1, generator=seeded(2)))
    assert made.shape == x.shape
    assert made.dtype == x.dtype
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1 + 1e-6
    assert len({tuple(image.flatten().tolist()) for image in made}) > 1


def test_gaussian_noise_has_a_uniform_deviation_and_is_shared_by_the_channels() -> None:
    x = torch.full((400, 3, 32, 32), 0.5, dtype=torch.float64)
    made = corrupt(x, "gaussian", strength=1, generator=seeded())
    assert torch.allclose(made[:, 0], made[:, 2])
    deviations = made[:, 0].flatten(1).std(1)
    assert stats.kstest(deviations.numpy(), "uniform", args=(0, 0.01)).pvalue > 1e-3
    standard = ((made - x)[:, 0] / deviations[:, None, None]).flatten()
    assert stats.kstest(standard[::37].numpy(), "norm").pvalue > 1e-3


def test_salt_and_pepper_hits_one_pixel_in_a_thousand_with_a_grey_of_the_arcsine_law() -> None:
    x = torch.full((200, 3, 64, 64), 0.31, dtype=torch.float64)
    made = corrupt(x, "salt-and-pepper", strength=1, generator=seeded())
    hit = made[:, 0] != 0.31
    n = hit.numel()
    assert abs(int(hit.sum()) - 0.001 * n) < 5 * (0.001 * n) ** 0.5
    assert torch.equal(made[:, 0], made[:, 1])
    assert stats.kstest(made[:, 0][hit].numpy(), "beta", args=(0.5, 0.5)).pvalue > 1e-3


def test_cutout_lays_two_grey_squares_of_a_fifth() -> None:
    x = torch.zeros(2000, 3, 50, 50)
    made = corrupt(x, "cutout", strength=1, generator=seeded())
    assert torch.allclose(made.unique(), torch.tensor([0.0, 128 / 255]))
    covered = (made[:, 0] > 0).sum((1, 2))
    assert covered.max() == 200
    # a 10 px square around a uniform centre keeps 1 - 10/(4·50) of each side on average; two overlap in part
    alone = (1 - 10 / 200) ** 2 * 100
    assert 1.9 * alone < float(covered.float().mean()) < 2 * alone
    rows = (made[:, 0] > 0).any(2).float().mean(0)
    assert float(rows[25]) == pytest.approx(1 - (1 - 10 / 50) ** 2, abs=0.04)


def test_dropout_blackens_whole_cells_of_a_coarse_grid_by_the_stated_share() -> None:
    x = torch.ones(4000, 1, 40, 40)
    made = corrupt(x, "dropout", strength=1, generator=seeded())[:, 0]
    assert set(made.unique().tolist()) == {0.0, 1.0}
    assert float((made == 0).float().mean()) == pytest.approx(0.025, abs=0.004)
    some = made[(made == 0).any(2).any(1)]
    least = min(int((image == 0).sum()) for image in some)
    assert least == 25  # 40 / 8 pixels squared, the smallest cell there is
    assert 0.2 < len(some) / len(made) < 0.6


@pytest.mark.parametrize("degrees", [-30.0, 12.5, 90.0])
def test_rotation_is_scipys_with_symmetric_padding(degrees: float) -> None:
    x = scenes(2, 32)
    made = rotate(x, torch.full((2,), degrees, dtype=x.dtype))
    row, column = np.mgrid[:32, :32] - 15.5
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for image, ours in zip(arrays(x), arrays(made), strict=True):
        expected = interpolate(image, c * row - s * column + 15.5, s * row + c * column + 15.5, "reflect")
        assert np.abs(expected - ours).max() < 1e-9


def test_a_positive_angle_turns_clockwise_as_pillow_turns_by_a_negative_one() -> None:
    x = scenes(1, 33)
    picture = Image.fromarray((arrays(x)[0] * 255).round().astype(np.uint8))
    theirs = np.asarray(picture.rotate(-20, Image.Resampling.BILINEAR)) / 255
    ours = arrays(rotate(x, torch.tensor([20.0], dtype=x.dtype)))[0]
    middle = slice(10, 23)
    assert np.abs(theirs - ours)[middle, middle].max() < 2 / 255


def test_rotation_angles_are_uniform_within_30_degrees() -> None:
    x = torch.zeros(3000, 1, 41, 41, dtype=torch.float64)
    x[:, :, 19:22, 32:36] = 1
    made = corrupt(x, "rotation", strength=1, generator=seeded())[:, 0]
    at = torch.arange(41.0, dtype=torch.float64) - 20
    mass = made.sum((1, 2))
    angle = torch.rad2deg(torch.atan2(made.sum(2) @ at / mass, made.sum(1) @ at / mass))
    assert stats.kstest(angle.numpy(), "uniform", args=(-30, 60)).pvalue > 1e-3


def test_perspective_is_pillows_for_the_same_corners() -> None:
    x = scenes(1, 40)
    inward = torch.tensor([[[0.1, 0.05], [0.2, 0.0], [0.03, 0.15], [0.12, 0.22]]], dtype=x.dtype)
    ours = arrays(pull_corners(x, inward))[0]
    unit = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    source, target = unit * 40, (unit + inward[0].numpy() * (1 - 2 * unit)) * 40
    rows = []
    for (u, v), (a, b) in zip(source, target, strict=True):
        rows += [[u, v, 1, 0, 0, 0, -a * u, -a * v], [0, 0, 0, u, v, 1, -b * u, -b * v]]
    coefficients = np.linalg.solve(np.array(rows), target.flatten())
    picture = Image.fromarray((arrays(x)[0] * 255).round().astype(np.uint8))
    theirs = picture.transform((40, 40), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(theirs) / 255 - ours)[1:-1, 1:-1].max() < 1.5 / 255


def test_perspective_magnifies_and_a_corner_moves_by_the_stated_spread() -> None:
    x = torch.zeros(6000, 1, 24, 24, dtype=torch.float64)
    ramp = torch.linspace(0, 1, 24, dtype=torch.float64)
    made = corrupt(x + ramp, "perspective", strength=1, generator=seeded())[:, 0]
    # a pixel's centre lies half a pixel inside, and the ramp runs from centre to centre
    left = (made[:, 0, 0] * 23 + 0.5) / 24  # the ramp's value at the upper left corner says how far inside it came from
    expected = 0.1 * math.sqrt(2 / math.pi)  # the mean of |N(0, s)|, s uniform in 0.05..0.15
    assert float(left.mean()) == pytest.approx(expected + 0.5 / 24, rel=0.08)
    assert bool((made[:, 0, -1] <= 1).all())


@pytest.mark.parametrize(("compression", "quality"), [(80.0, 22), (95.0, 7), (0.0, 100), (101.0, 1)])
def test_compression_becomes_imgaugs_quality(compression: float, quality: int) -> None:
    assert quality_of(torch.tensor([compression])).tolist() == [quality]
    x = scenes(1, 32)
    made = jpeg_compression(x, generator=seeded(), compression=(compression, compression))
    assert np.array_equal(arrays(made)[0], jpeg(arrays(x)[0], quality))


def test_jpeg_qualities_span_the_range() -> None:
    x = scenes(1, 16).expand(300, -1, -1, -1)
    made = corrupt(x, "jpeg-compression", strength=1, generator=seeded())
    possible = {q: jpeg(arrays(x[:1])[0], q) for q in range(7, 23)}
    found = {q for q, image in possible.items() if any(np.array_equal(image, ours) for ours in arrays(made))}
    assert len(found) >= 14
    assert all(any(np.array_equal(image, ours) for image in possible.values()) for ours in arrays(made))


@pytest.mark.dev
@pytest.mark.parametrize("sigma", [1.0, 1.6, 2.2, 3.0, 4.0])
def test_blur_is_opencvs_with_imgaugs_kernel_size(sigma: float) -> None:
    cv2 = pytest.importorskip("cv2")
    size = max(int((3.3 if sigma < 3 else 2.9 if sigma < 5 else 2.6) * sigma), 5)
    size += size % 2 == 0
    x = scenes(2, 32)
    made = blur(x, torch.full((2,), sigma, dtype=x.dtype))
    for image, ours in zip(arrays(x), arrays(made), strict=True):
        theirs = cv2.GaussianBlur(image, (size, size), sigma, borderType=cv2.BORDER_REFLECT_101)
        assert np.abs(theirs - ours).max() < 1e-6


def test_every_image_of_a_batch_is_blurred_by_its_own_width() -> None:
    x = torch.zeros(2, 1, 31, 31, dtype=torch.float64)
    x[:, :, 15, 15] = 1
    made = blur(x, torch.tensor([1.0, 2.0], dtype=x.dtype))[:, 0]
    for image, (sigma, radius) in zip(made, ((1.0, 2), (2.0, 3)), strict=True):
        tap = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
        tap /= tap.sum()
        assert np.abs(image.sum(0)[15 - radius : 16 + radius].numpy() - tap).max() < 1e-12


def test_the_grid_of_figure_3_holds_every_corruption_at_every_strength() -> None:
    x = scenes(1, 32)[0]
    grid = example_grid(x, generator=seeded(), strengths=(0, 1, 2))
    assert grid.names == tuple(EIGHT)
    assert grid.images.shape == (8, 3, 3, 32, 32)
    assert torch.allclose(grid.images[:, 0], x.expand(8, -1, -1, -1))
    noise = (grid.images[0] - x)[1:]
    inside = (grid.images[0, 1:] > 0).all(0) & (grid.images[0, 1:] < 1).all(0)
    assert torch.allclose(2 * noise[0][inside], noise[1][inside])  # the same noise, twice as strong
