"""The nineteen corruptions against one-image versions by numpy, scipy, Pillow, scikit-image and OpenCV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from holdfast.corruptions import SEVERITIES, corrupt, corruption_names, jpeg, weather
from holdfast.corruptions.blur import glass_blur, smear
from holdfast.corruptions.imagenet_c import TABLES
from holdfast.corruptions.pixels import normal, uniform, whole
from holdfast.corruptions.weather import plasma
from holdfast.errors import HoldfastError
from holdfast.parts import CORRUPTIONS
from tests.corruptions import references as reference

LEVEL = 1 / 255
NINETEEN = corruption_names("imagenet-c")
DETERMINISTIC = frozenset(name for name in NINETEEN if not CORRUPTIONS[name].random)
CIFAR, IMAGENET = ({name: TABLES[name][table] for name in NINETEEN} for table in ("cifar", "imagenet"))


def scenes(count: int, side: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Smooth colour with a few sharp shapes, in whole levels, black, white and grey among them."""
    rng = np.random.default_rng(seed)
    images = np.empty((count, side, side, 3))
    y, x = np.mgrid[0 : 1 : side * 1j, 0 : 1 : side * 1j]
    for image in images:
        a, b, c = rng.uniform(0.5, 3, (3, 3))
        image[:] = 0.5 + 0.5 * np.sin(a * 3 * x[..., None] + b * 3 * y[..., None] + c)
        for _ in range(4):
            top, left = rng.integers(0, side - side // 4, 2)
            image[top : top + side // 4, left : left + side // 4] = (
                rng.choice([0, 1, 0.5]) if rng.random() < 0.6 else (rng.random(3))
            )
    return torch.from_numpy(np.rint(images * 255) / 255).permute(0, 3, 1, 2).to(dtype).contiguous()


def arrays(x: Tensor) -> list[np.ndarray]:
    return list(x.permute(0, 2, 3, 1).double().numpy())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


DETERMINISTIC_REFERENCES: dict[str, Callable[..., Any]] = {
    "gaussian-blur": reference.blur,
    "defocus-blur": reference.defocus,
    "zoom-blur": reference.zoom_blur,
    "brightness": reference.brightness,
    "contrast": reference.contrast,
    "pixelate": reference.pixelate,
    "saturate": reference.saturate,
    "jpeg": reference.jpeg,
}
EXACT = 1e-9
TOLERANCE = {"pixelate": 1.01 * LEVEL}  # Pillow rounds to whole levels twice


@pytest.mark.parametrize("name", sorted(DETERMINISTIC))
@pytest.mark.parametrize(("side", "severity"), [*((32, severity) for severity in SEVERITIES), (72, 1), (72, 5)])
def test_what_draws_nothing_equals_its_reference(name: str, severity: int, side: int) -> None:
    x = scenes(2, side)
    settings = (CIFAR if side < 64 else IMAGENET)[name][severity - 1]
    made = corrupt(x, name, severity=severity, generator=seeded())
    for image, ours in zip(arrays(x), arrays(made), strict=True):
        assert np.abs(DETERMINISTIC_REFERENCES[name](image, **settings) - ours).max() < TOLERANCE.get(name, EXACT)


def test_every_corruption_has_five_settings_in_both_tables_and_none_is_left_out_of_these_tests() -> None:
    assert set(NINETEEN) == set(TABLES)
    assert len(NINETEEN) == 19
    assert all(len(rows) == 5 for table in (CIFAR, IMAGENET) for rows in table.values())
    assert set(DETERMINISTIC_REFERENCES) == DETERMINISTIC


@pytest.mark.parametrize("settings", [CIFAR["glass-blur"][4], IMAGENET["glass-blur"][2], IMAGENET["glass-blur"][4]])
def test_glass_blur_copies_pixel_after_pixel(settings: dict[str, Any]) -> None:
    x = scenes(2, 40)
    made = glass_blur(x, **settings, generator=seeded(3))
    generator, shape = seeded(3), (2, settings["times"], 40, 40)
    reach = settings["reach"]
    down, right = (whole(shape, -reach, reach, like=x, generator=generator).numpy() for _ in range(2))
    for i, (image, ours) in enumerate(zip(arrays(x), arrays(made), strict=True)):
        expected = reference.glass(image, settings["sigma"], reach, down[i], right[i])
        assert np.abs(expected - ours).max() < EXACT


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1.0), (9, 2.5), (20, 15.0)])
def test_smearing_follows_the_ray(radius: int, sigma: float) -> None:
    x = scenes(4, 32)
    degrees = torch.tensor([-45.0, 0.0, 17.3, -120.0], dtype=x.dtype)
    made = smear(x, degrees, radius=radius, sigma=sigma)
    for image, angle, ours in zip(arrays(x), degrees.tolist(), arrays(made), strict=True):
        assert np.abs(reference.smear(image, angle, radius, sigma) - ours).max() < 1e-7


def test_motion_blur_draws_angles_uniformly_within_45_degrees() -> None:
    x = torch.zeros(4000, 1, 21, 21, dtype=torch.float64)
    x[:, :, 10, 10] = 1
    made = corrupt(x, "motion-blur", severity=5, generator=seeded())[:, 0]
    at = torch.arange(21.0) - 10
    mass = made.sum((1, 2))
    down, right = (made.sum(2) @ at.double() / mass, made.sum(1) @ at.double() / mass)
    degrees = torch.rad2deg(torch.atan2(-down, -right))  # the bright point leaves a trail against the ray
    assert degrees.abs().max() < 50
    assert abs(float(degrees.mean())) < 3 * 26 / 4000**0.5 + 0.5
    assert abs(float(degrees.std()) - 90 / 12**0.5) < 1.5


@pytest.mark.parametrize("table", [CIFAR, IMAGENET])
def test_snow_equals_its_reference_for_the_same_flakes(table: Any) -> None:
    x = scenes(3, 32)
    for severity in (1, 4, 5):
        settings = table["snow"][severity - 1]
        name = "cifar" if table is CIFAR else "imagenet"
        made = corrupt(x, "snow", severity=severity, table=name, generator=seeded(7))
        generator = seeded(7)
        layer = settings["mean"] + settings["deviation"] * normal((3, 1, 32, 32), like=x, generator=generator)
        degrees = uniform((3,), -135, -45, like=x, generator=generator)
        for i, (image, ours) in enumerate(zip(arrays(x), arrays(made), strict=True)):
            expected = reference.snow(image, layer[i, 0].numpy(), float(degrees[i]), settings)
            assert np.abs(expected - ours).max() < 1e-6


def test_the_plasma_of_fog_is_the_diamond_square_of_its_noise() -> None:
    made = plasma(1, 16, 2.0, like=torch.empty(0, dtype=torch.float64), generator=seeded(5))[0]
    generator = seeded(5)

    def noise(shape: tuple[int, int], amplitude: float) -> np.ndarray:
        like = torch.empty(0, dtype=torch.float64)
        return uniform((1, *shape), -amplitude, amplitude, like=like, generator=generator)[0].numpy()

    assert np.abs(reference.plasma(16, 2.0, noise) - made.numpy()).max() < EXACT


@pytest.mark.parametrize("side", [32, 72])
def test_fog_lays_its_plasma_over_the_image(side: int) -> None:
    x = scenes(2, side)
    settings = (CIFAR if side == 32 else IMAGENET)["fog"][2]
    made = corrupt(x, "fog", severity=3, generator=seeded(2))
    cloud = plasma(2, 32 if side == 32 else 128, settings["decay"], like=x, generator=seeded(2))[:, :side, :side]
    for image, own, ours in zip(arrays(x), cloud.numpy(), arrays(made), strict=True):
        assert np.abs(reference.fog(image, own, settings["density"]) - ours).max() < EXACT


@pytest.mark.parametrize(("severity", "table"), [(1, "cifar"), (2, "cifar"), (5, "cifar"), (2, "imagenet")])
def test_elastic_equals_its_reference_for_the_same_draws(severity: int, table: Any) -> None:
    x = scenes(3, 36)
    settings = (CIFAR if table == "cifar" else IMAGENET)["elastic"][severity - 1]
    made = corrupt(x, "elastic", severity=severity, table=table, generator=seeded(1))
    generator, most = seeded(1), settings["affine"] * 36
    moved = uniform((3, 3, 2), -most, most, like=x, generator=generator).numpy()
    noise = uniform((3, 2, 36, 36), -1, 1, like=x, generator=generator).numpy()
    for i, (image, ours) in enumerate(zip(arrays(x), arrays(made), strict=True)):
        if settings["shift"]:
            expected = reference.elastic(image, moved[i], noise[i], settings["sigma"] * 36, settings["shift"] * 36)
        else:
            expected = reference.affine(image, moved[i])
        assert np.abs(expected - ours).max() < 1e-8


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("gaussian-noise", lambda s, v: s["scale"]),
        ("speckle-noise", lambda s, v: s["scale"] * v),
        ("shot-noise", lambda s, v: (v / s["photons"]) ** 0.5),
    ],
)
def test_noise_has_the_stated_mean_and_deviation(name: str, deviation: Any, severity: int) -> None:
    value = 0.3
    x = torch.full((8, 3, 64, 64), value, dtype=torch.float64)
    made = corrupt(x, name, severity=severity, table="cifar", generator=seeded(severity))
    expected = deviation(CIFAR[name][severity - 1], value)
    n = made.numel()
    assert abs(float(made.mean()) - value) < 5 * expected / n**0.5 + 1e-3 * (expected > 0.09)  # clipping at 0
    assert float(made.std()) == pytest.approx(expected, rel=0.02)
    neighbours = torch.corrcoef(torch.stack([made[..., :-1].flatten(), made[..., 1:].flatten()]))[0, 1]
    channels = torch.corrcoef(torch.stack([made[:, 0].flatten(), made[:, 1].flatten()]))[0, 1]
    assert max(abs(float(neighbours)), abs(float(channels))) < 0.02


def test_shot_noise_is_whole_photons_and_poisson_in_its_fourth_moment() -> None:
    x = torch.full((4, 3, 128, 128), 0.2, dtype=torch.float64)
    counts = corrupt(x, "shot-noise", severity=5, table="cifar", generator=seeded()) * 50
    assert torch.allclose(counts, counts.round(), atol=1e-9)
    centred = counts - 10
    assert float((centred**4).mean()) == pytest.approx(10 + 3 * 10**2, rel=0.03)  # λ + 3λ²


def test_impulse_noise_replaces_the_stated_share_by_black_and_white_alike() -> None:
    x = torch.full((8, 3, 64, 64), 0.5)
    made = corrupt(x, "impulse-noise", severity=5, table="cifar", generator=seeded())
    n = made.numel()
    for value in (0.0, 1.0):
        assert abs(float((made == value).double().mean()) - 0.035) < 5 * (0.035 / n) ** 0.5
    assert set(made.unique().tolist()) == {0.0, 0.5, 1.0}


def test_frost_is_a_piece_of_a_texture() -> None:
    x = scenes(6, 32)
    settings = CIFAR["frost"][4]
    made = corrupt(x, "frost", severity=5, generator=seeded(4))
    textures = weather.grown(32).numpy()
    generator = seeded(4)
    which, top, left = (
        whole((6,), 0, most, like=x, generator=generator).tolist() for most in (5, textures.shape[2] - 32, 96)
    )
    for i, (image, ours) in enumerate(zip(arrays(x), arrays(made), strict=True)):
        piece = textures[which[i], :, top[i] : top[i] + 32, left[i] : left[i] + 32].transpose(1, 2, 0)
        expected = np.clip(settings["keep"] * image + settings["cover"] * piece, 0, 1)
        assert np.abs(expected - ours).max() < EXACT


def test_grown_frost_is_light_bluish_structured_and_the_same_every_time() -> None:
    textures = weather.grown(32)
    assert torch.equal(textures, weather.grown.__wrapped__(32))
    assert 0.4 < float(textures.mean()) < 0.75
    assert float(textures.std()) > 0.08
    red, _, blue = textures.mean((0, 2, 3)).tolist()
    assert blue > red
    assert (textures[0] - textures[1]).abs().mean() > 0.05


def test_photographs_of_frost_are_used_as_they_are(tmp_path: Path) -> None:
    Image.new("RGB", (300, 280), (200, 220, 240)).save(tmp_path / "one.png")
    x = torch.zeros(2, 3, 32, 32, dtype=torch.float64)
    made = corrupt(x, "frost", severity=1, frost_folder=tmp_path, generator=seeded())
    expected = torch.tensor([200, 220, 240], dtype=torch.float64).view(3, 1, 1) / 255 * 0.2
    assert torch.allclose(made, expected.expand_as(made))
    with pytest.raises(HoldfastError, match="one.png is 300x280 pixels; images of 300 need a larger one"):
        corrupt(torch.zeros(1, 3, 300, 300), "frost", severity=1, frost_folder=tmp_path, generator=seeded())
    with pytest.raises(HoldfastError, match="no frost textures in"):
        corrupt(x, "frost", severity=1, frost_folder=tmp_path / "none", generator=seeded())


@pytest.mark.parametrize("severity", [4, 5])
def test_mud_covers_where_smoothed_noise_is_high(severity: int) -> None:
    x = scenes(3, 32)
    s = CIFAR["spatter"][severity - 1]
    made = corrupt(x, "spatter", severity=severity, generator=seeded(9))
    noise = normal((3, 1, 32, 32), like=x, generator=seeded(9))[:, 0].numpy()
    for image, own, ours in zip(arrays(x), noise, arrays(made), strict=True):
        wet = reference.blur(s["mean"] + s["deviation"] * own, s["size"]) > s["threshold"]
        mask = reference.blur(wet.astype(float), s["strength"])
        mask[mask < 0.8] = 0
        expected = image * (1 - mask[..., None]) + mask[..., None] * np.array([63, 42, 20]) / 255
        assert np.abs(expected - ours).max() < EXACT
        assert mask.max() > 0


def test_the_chamfer_distance_is_close_to_the_true_one() -> None:
    from scipy import ndimage

    marked = torch.from_numpy(np.random.default_rng(0).random((3, 1, 40, 40)) < 0.01)
    true = np.stack([ndimage.distance_transform_edt(~m) for m in marked[:, 0].numpy()])
    made = weather.chamfer(marked)[:, 0].numpy()
    assert np.abs(made - np.minimum(true, 20)).max() < 0.03 * 20
    assert (weather.chamfer(torch.zeros(1, 1, 9, 9, dtype=torch.bool)) == 20).all()


def liquid(side: int, s: dict[str, Any], seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(s["mean"], s["deviation"], (side, side))
    layer = reference.blur(noise, s["size"])
    layer[layer < s["threshold"]] = 0
    return layer


@pytest.mark.dev
@pytest.mark.parametrize("severity", [1, 2, 3])
@pytest.mark.parametrize(("side", "table"), [(32, CIFAR), (96, IMAGENET)])
def test_water_is_what_opencv_makes_of_it(severity: int, side: int, table: Any) -> None:
    cv2 = pytest.importorskip("cv2")
    s = table["spatter"][severity - 1]
    for seed in range(4):
        layer = liquid(side, s, seed)
        height = (layer * 255).astype(np.uint8)
        edges = cv2.Canny(height, 50, 150)
        levels = torch.from_numpy(height.astype(float))[None, None]
        assert np.array_equal(weather.edges(levels)[0, 0].numpy(), edges > 0)
        distance = np.minimum(cv2.distanceTransform(255 - edges, cv2.DIST_L2, 5), 20)
        ours = weather.chamfer(torch.from_numpy(edges > 0)[None, None])[0, 0].numpy()
        assert np.abs(ours - distance).max() < 1e-3
        rim = cv2.blur(distance, (3, 3)).astype(np.uint8)
        even = cv2.equalizeHist(rim)
        assert np.array_equal(weather.equalised(torch.from_numpy(rim.astype(float))[None, None])[0, 0].numpy(), even)
        relief = cv2.blur(cv2.filter2D(even, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])), (3, 3))
        light = height * relief.astype(np.float32)
        made = weather.water(torch.from_numpy(layer)[None, None])[0, 0].numpy()
        assert np.mean(np.abs(made - light / max(light.max(), 1e-9)) > 0.02) < 0.02


def test_water_only_adds_light_and_where_there_is_no_drop_nothing_changes() -> None:
    x = scenes(16, 32)
    made = corrupt(x, "spatter", severity=3, generator=seeded())
    assert (made >= x).all()
    changed = (made != x).any(1).double().mean()
    assert 0.05 < changed < 0.6
    assert (weather.water(torch.zeros(2, 1, 16, 16, dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("quality", [7, 22, 40, 80, 95])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 30, 45), (1, 64, 96)])
def test_jpeg_by_tensors_is_pillows_but_for_a_few_ties(quality: int, shape: tuple[int, int, int]) -> None:
    x = scenes(6, 96)[:, :, : shape[1], : shape[2]]
    x = (x * 0.8 + torch.rand(x.shape, generator=seeded(1)) * 0.2)[:, : shape[0]].contiguous()
    qualities = torch.full((6,), quality)
    ours, theirs = (jpeg.jpeg(x, qualities, codec=codec) * 255 for codec in ("torch", "pillow"))
    difference = (ours - theirs).abs()
    assert float((difference > 1.5).double().mean()) < 0.06
    assert float(difference.mean()) < 0.35
    loss = float((theirs - x * 255).abs().mean())
    assert float(difference.mean()) < 0.1 * loss


@pytest.mark.parametrize("quality", [1, 10, 49, 50, 75, 100])
def test_quantisation_steps_are_those_pillow_writes(quality: int, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", quality=quality)
    written = Image.open(tmp_path / "a.jpg").quantization
    ours = jpeg.quantisation(torch.tensor([quality]))[0]
    for table in (0, 1):
        assert sorted(written[table]) == sorted(ours[table].flatten().int().tolist())


def test_every_jpeg_of_a_batch_has_its_own_quality() -> None:
    x = scenes(1, 32).expand(2, -1, -1, -1)
    for codec in ("torch", "pillow"):
        both = jpeg.jpeg(x, torch.tensor([5, 95]), codec=codec)
        error = (both - x).abs().mean((1, 2, 3))
        assert error[0] > 3 * error[1]


@pytest.mark.dev
def test_hsv_corruptions_agree_with_scikit_image() -> None:
    color = pytest.importorskip("skimage.color")
    x = scenes(2, 32)
    made = corrupt(x, "saturate", severity=4, generator=seeded())
    for image, ours in zip(arrays(x), arrays(made), strict=True):
        hsv = color.rgb2hsv(image)
        hsv[..., 1] = np.clip(hsv[..., 1] * 2 + 0.1, 0, 1)
        assert np.abs(color.hsv2rgb(hsv) - ours).max() < 1e-6


@pytest.mark.parametrize("name", NINETEEN)
def test_severity_hurts_more_in_the_mean_and_a_seed_gives_the_same_again(name: str) -> None:
    x = scenes(24, 32, dtype=torch.float32)
    changes = []
    for severity in (1, 3, 5):
        made = corrupt(x, name, severity=severity, generator=seeded(severity))
        assert torch.equal(made, corrupt(x, name, severity=severity, generator=seeded(severity)))
        assert made.dtype == x.dtype
        assert made.shape == x.shape
        assert float(made.min()) >= 0
        assert float(made.max()) <= 1 + 1e-6
        changes.append(float((made - x).abs().mean()))
    if name not in ("elastic", "saturate", "frost"):  # there severities change their kind, not their degree
        assert changes[0] < changes[2]
    assert min(changes) > 0


@pytest.mark.parametrize("name", NINETEEN)
def test_images_are_corrupted_one_by_one_and_grey_ones_stay_grey(name: str) -> None:
    x = scenes(1, 32).expand(2, -1, -1, -1)
    made = corrupt(x, name, severity=5, generator=seeded())
    assert torch.equal(made[0], made[1]) == (name in DETERMINISTIC)
    grey = corrupt(x[:, :1], name, severity=5, generator=seeded())
    assert grey.shape == (2, 1, 32, 32)


@pytest.mark.parametrize("name", NINETEEN)
def test_images_need_not_be_square(name: str) -> None:
    x = scenes(2, 40)[:, :, :32].contiguous()
    assert corrupt(x, name, severity=5, generator=seeded()).shape == x.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NINETEEN)
def test_a_cpu_generator_gives_the_same_on_the_gpu(name: str) -> None:
    x = scenes(8, 32)
    on_cpu = corrupt(x, name, severity=4, generator=seeded(), codec="torch")
    on_gpu = corrupt(x.cuda(), name, severity=4, generator=seeded(), codec="torch").cpu()
    assert float(((on_cpu - on_gpu).abs() > 1e-6).double().mean()) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "snw", "severity": 1}, "unknown corruption 'snw'; did you mean 'snow'?"),
        ({"name": "snow", "severity": 6}, "severity must be 1, 2, 3, 4 or 5, got 6"),
        ({"name": "gausian"}, "unknown corruption 'gausian'; did you mean 'gaussian'"),
        ({"name": "snow"}, r"give either severity \(1..5\) or strength"),
        ({"name": "rotation", "strength": -1.0}, "strength must be >= 0, got -1.0"),
        ({"name": "snow", "strength": 1.0}, "unknown corruption 'snow'"),
    ],
)
def test_bad_requests_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        corrupt(torch.zeros(1, 3, 8, 8), generator=seeded(), **arguments)


def test_bytes_are_refused() -> None:
    with pytest.raises(HoldfastError, match=r"images must be float \(B, 1 or 3, H, W\), got torch.uint8"):
        corrupt(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "snow", severity=1, generator=seeded())
