"""Random resized crop, erasing, colour jitter, RandAugment and TrivialAugment against torchvision's own."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from holdfast.augment.auto_augment import (
    BINS,
    OPERATIONS,
    AutoAugment,
    apply_operations,
    color_jitter,
    shift_hue,
    strengths,
)
from holdfast.augment.basic import Augment
from holdfast.augment.random_boxes import (
    CROP_RATIO,
    ERASED_AREA,
    draw_boxes,
    random_erasing,
    random_resized_crop,
    resized,
)
from holdfast.errors import HoldfastError
from holdfast.settings import AugmentSettings

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 6, channels: int = 3, height: int = 24, width: int = 20) -> Tensor:
    """Smooth pictures of 8-bit values with some structure."""
    coarse = torch.rand(n, channels, 6, 5, generator=generator(1))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8)


def test_boxes_are_resized_as_torchvision_resizes_them() -> None:
    x = pictures().float() / 255
    boxes = torch.tensor([[0, 0, 24, 20], [3, 2, 7, 11], [23, 19, 1, 1], [0, 5, 24, 2], [10, 0, 1, 20], [5, 5, 12, 10]])
    ours = resized(x, *(part[:, None].float() for part in boxes.T))
    for image, box, made in zip(x, boxes.tolist(), ours, strict=True):
        theirs = V.resized_crop(image, *box, size=[24, 20], antialias=True)
        torch.testing.assert_close(made, theirs, rtol=0, atol=1e-5)
    assert torch.equal(ours[0], x[0])


def test_crops_are_drawn_from_the_distribution_of_torchvision() -> None:
    ours = draw_boxes(4000, (24, 20), area=(0.2, 1.0), ratio=CROP_RATIO, generator=generator(), device=CPU)
    assert ours.found.all()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        transform, image = v2.RandomResizedCrop((24, 20), scale=(0.2, 1.0)), torch.zeros(3, 24, 20)
        theirs = [transform.make_params([image]) for _ in range(1500)]
    for name in ("top", "left", "height", "width"):
        found = stats.ks_2samp(getattr(ours, name)[:, 0].numpy(), [params[name] for params in theirs])
        assert found.pvalue > 1e-3, name


def test_a_crop_of_everything_is_the_image_and_one_that_never_fits_is_the_centre() -> None:
    x = pictures(height=16, width=16).float() / 255
    assert torch.equal(random_resized_crop(x, area=1.0, ratio=(1.0, 1.0), generator=generator()), x)
    wide = pictures(height=8, width=40).float() / 255  # no crop of all its area has an allowed ratio
    found = random_resized_crop(wide, area=1.0, generator=generator())
    torch.testing.assert_close(found, resized(wide, *(torch.full((6, 1), float(v)) for v in (0, 14, 8, 11))))


def test_erased_boxes_are_as_large_and_as_frequent_as_said() -> None:
    x, fill = torch.zeros(4000, 3, 32, 24), torch.tensor([0.2, 0.5, 0.9])
    erased = random_erasing(x, p=0.25, fill=fill, generator=generator())
    changed = erased[:, 0] > 0
    share = changed.float().mean((1, 2))
    assert float((share > 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert ERASED_AREA[0] * 0.7 < float(share[share > 0].min()) <= float(share.max()) < ERASED_AREA[1] * 1.1
    assert torch.equal(erased.permute(0, 2, 3, 1)[changed], fill.expand(int(changed.sum()), 3))
    rows, columns = changed.any(2).sum(1), changed.any(1).sum(1)
    assert torch.equal(rows * columns, changed.sum((1, 2)))  # every one is a box
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        transform = v2.RandomErasing(p=1.0)
        theirs = [transform.make_params([x[0]]) for _ in range(1000)]
    hit = share > 0
    for ours, name in ((rows[hit], "h"), (columns[hit], "w")):
        assert stats.ks_2samp(ours.numpy(), [params[name] for params in theirs]).pvalue > 1e-3


@pytest.mark.parametrize("shift", [-0.5, -0.2, 0.0, 0.1, 0.37, 0.5])
def test_hue_is_shifted_as_torchvision_shifts_it(shift: float) -> None:
    x = torch.rand(4, 3, 9, 7, generator=generator())
    x[0] = 0.5  # grey has no hue
    torch.testing.assert_close(shift_hue(x, torch.tensor(shift)), V.adjust_hue(x, shift), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("strength", "adjust", "low", "high"),
    [
        ({"brightness": 0.4}, V.adjust_brightness, 0.6, 1.4),
        ({"contrast": 1.5}, V.adjust_contrast, 0.0, 2.5),
        ({"saturation": 0.7}, V.adjust_saturation, 0.3, 1.7),
        ({"hue": 0.1}, V.adjust_hue, -0.1, 0.1),
    ],
)
def test_each_change_of_colour_is_one_that_torchvision_makes(strength, adjust, low: float, high: float) -> None:
    """One factor explains every pixel of an image, it is in the range, and the factors fill the range."""
    x = pictures(1).float().div(255).expand(40, -1, -1, -1)
    ours = color_jitter(x, **strength, generator=generator())
    factors = torch.linspace(low, high, 201)
    tried = torch.stack([adjust(x[0], float(factor)) for factor in factors])
    distance = (ours[:, None] - tried[None]).abs().amax((2, 3, 4))
    nearest = distance.min(1)
    step = float((tried[1:] - tried[:-1]).abs().amax())
    assert float(nearest.values.max()) <= step
    assert stats.kstest(factors[nearest.indices].numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_the_order_of_changes_is_random_and_none_changes_nothing() -> None:
    x = pictures(1).float().div(255).expand(400, -1, -1, -1)
    assert torch.equal(color_jitter(x, generator=generator()), x)
    grey = x[:, :1]
    assert torch.equal(color_jitter(grey, saturation=0.9, hue=0.5, generator=generator()), grey)

    draws = torch.rand(8, 400, generator=generator(3))
    ours = color_jitter(x, brightness=0.9, contrast=0.9, saturation=0.9, hue=0.3, generator=generator(3))
    orders = set()
    for i in range(40):
        factors = [*(0.1 + 1.8 * draws[:3, i]).tolist(), 0.6 * float(draws[3, i]) - 0.3]
        adjusts = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue)
        order = draws[4:, i].argsort().tolist()
        orders.add(tuple(order))
        made = x[i]
        for kind in order:
            made = adjusts[kind](made, factors[kind])
        torch.testing.assert_close(ours[i], made, rtol=0, atol=1e-4)
    assert len(orders) > 12  # of 24


def reference(image: Tensor, name: str, strength: float) -> Tensor:
    """What torchvision's own policies do to a float image; to an 8-bit one where bits matter."""
    names = {"shear-x": "ShearX", "shear-y": "ShearY", "translate-x": "TranslateX", "translate-y": "TranslateY"}
    theirs = v2.RandAugment(interpolation=v2.InterpolationMode.BILINEAR)
    own = names.get(name, "AutoContrast" if name == "autocontrast" else name.capitalize())
    if name in ("posterize", "equalize"):
        image = (image * 255).round().to(torch.uint8)
    options = {"interpolation": theirs.interpolation, "fill": theirs._fill}
    made = theirs._apply_image_or_video_transform(image, own, strength, **options)
    return made.float() / 255 if made.dtype == torch.uint8 else made


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_torchvision(name: str, channels: int) -> None:
    x = pictures(4, channels).float() / 255
    number = OPERATIONS.index(name)
    for strength in strengths((24, 20), wide=True)[number][[0, 7, 16, 30]].tolist():
        for sign in (1, -1) if name in OPERATIONS[1:10] else (1,):
            ours = apply_operations(x, torch.full((4,), number), torch.full((4,), sign * strength))
            theirs = torch.stack([reference(image, name, sign * strength) for image in x])
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4, msg=f"{name} {sign * strength}")


@pytest.mark.parametrize(("wide", "theirs"), [(False, v2.RandAugment), (True, v2.TrivialAugmentWide)])
def test_strengths_are_those_of_torchvision(wide: bool, theirs: type) -> None:
    space = list(theirs._AUGMENTATION_SPACE.values())
    assert len(space) == len(OPERATIONS)
    for name, ours, (magnitudes, signed) in zip(OPERATIONS, strengths((24, 20), wide=wide), space, strict=True):
        expected = magnitudes(BINS, 24, 20)
        expected = torch.zeros(BINS) if expected is None else expected.float()
        expected = expected.trunc() if name.startswith("translate") else expected
        torch.testing.assert_close(ours, expected)
        assert signed == (name in OPERATIONS[1:10])


def test_each_image_takes_its_own_operation_and_all_are_drawn_alike() -> None:
    x = pictures(len(OPERATIONS)).float() / 255
    table = strengths((24, 20), wide=True)[:, 20]
    together = apply_operations(x, torch.arange(len(OPERATIONS)), table)
    for number in range(len(OPERATIONS)):
        one = slice(number, number + 1)
        assert torch.equal(together[one], apply_operations(x[one], torch.tensor([number]), table[one]))
    assert torch.equal(together[0], x[0])

    image = torch.rand(3, 20, 20, generator=generator())  # its every operation shows
    policy = AutoAugment("randaugment", (3, 20, 20), ops=1, magnitude=20, device=CPU)
    many = policy(image.expand(2800, 3, 20, 20), generator())
    unchanged = float((many == image).flatten(1).all(1).float().mean())
    assert unchanged == pytest.approx(1 / len(OPERATIONS), abs=4 * math.sqrt(1 / 14 * 13 / 14 / 2800))


def test_what_is_off_draws_nothing_and_the_same_seed_gives_the_same_images() -> None:
    x, mean = pictures(), torch.tensor([0.5, 0.4, 0.3])
    drawn = generator()
    Augment(AugmentSettings(), (3, 24, 20), mean)(x, drawn)
    assert torch.equal(drawn.get_state(), generator().get_state())
    everything = AugmentSettings(
        resized_crop=0.3, flip=True, auto_augment="trivialaugment", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5
    )
    augment = Augment(everything, (3, 24, 20), mean)
    first, again, other = augment(x, generator()), augment(x, generator()), augment(x, generator(1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape
    assert 0 <= float(first.min()) <= float(first.max()) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"color_jitter": (0.1, 0.2)}, r"color_jitter must be 1, 3 or 4 numbers .* got \[0.1, 0.2\]"),
        ({"color_jitter": (0.1, 0.2, 0.1, 0.6)}, "the last at most 0.5"),
        ({"color_jitter": (-0.1,)}, "numbers >= 0"),
        ({"crop": 2, "resized_crop": 0.5}, "crop 2 and resized_crop 0.5 are two ways to crop; set one of them to 0"),
        ({"erasing": 1.5}, r"erasing must be in \[0, 1\], got 1.5"),
        ({"rand_magnitude": 31}, "rand_magnitude must be in 0..30, got 31"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        AugmentSettings(**settings)  # type: ignore[arg-type]
